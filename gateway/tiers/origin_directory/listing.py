"""Pages of a bucket's objects. Blocks; folding and cutting is the same for every kind of page."""

import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct

from gateway.model.objects import ListPage, ObjectEntry, VersionEntry, VersionPage
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.objects import Bucket, Names, find
from gateway.tiers.origin_directory.paths import OBJECT_NAME, names_of
from gateway.tiers.origin_directory.records import Identity, etag_of, modified_ms
from gateway.tiers.origin_directory.walk import Scans, Walk

NULL_VERSION: Literal["null"] = "null"


class Folded(Struct, frozen=True):
    """A row of a page before it is looked up: a key, or a common prefix."""

    name: str
    is_prefix: bool


def fold(
    keys: Iterable[str], prefix: str, delimiter: str, skip: Callable[[str], None]
) -> Iterator[Folded]:
    """Keys in order, those with the delimiter behind the prefix folded; `skip` is told every
    common prefix, and need not be heard."""
    last: str | None = None
    for key in keys:
        folded = common_prefix(key, prefix, delimiter)
        if folded is None:
            yield Folded(key, is_prefix=False)
        elif folded != last:
            last = folded
            yield Folded(folded, is_prefix=True)
            skip(folded)


def common_prefix(key: str, prefix: str, delimiter: str) -> str | None:
    """What stands for the key where it is folded, else None."""
    if not delimiter or not key.startswith(prefix):
        return None
    place = key.find(delimiter, len(prefix))
    return None if place < 0 else key[: place + len(delimiter)]


def list_page(
    bucket: Bucket, scans: Scans, *, prefix: str, delimiter: str, after: str, limit: int
) -> ListPage:
    """As `Origin.list_objects`."""
    walk = Walk(bucket, scans, prefix=prefix, after=after)
    if common_prefix(after, prefix, delimiter) == after:
        walk.skip(after)
    objects: list[ObjectEntry] = []
    prefixes: list[str] = []
    last = ""
    with _Entries(bucket) as entries:
        for row in fold(walk.keys(), prefix, delimiter, walk.skip):
            entry = None if row.is_prefix else entries.entry(row.name)
            if entry is None and not row.is_prefix:
                continue
            if len(objects) + len(prefixes) == limit:
                return ListPage(
                    objects=tuple(objects), common_prefixes=tuple(prefixes), next_after=last
                )
            last = row.name
            if entry is not None:
                objects.append(entry)
            else:
                prefixes.append(row.name)
    return ListPage(objects=tuple(objects), common_prefixes=tuple(prefixes))


def version_page(page: ListPage) -> VersionPage:
    """A page of objects as ListObjectVersions tells it: everything is the null version."""
    versions = tuple(
        VersionEntry(
            key=entry.key,
            version_id=NULL_VERSION,
            is_latest=True,
            last_modified_ms=entry.last_modified_ms,
            etag=entry.etag,
            size_bytes=entry.size_bytes,
            storage_class=entry.storage_class,
        )
        for entry in page.objects
    )
    ends_with_object = page.next_after is not None and page.next_after not in page.common_prefixes
    return VersionPage(
        versions=versions,
        common_prefixes=page.common_prefixes,
        next_key_marker=page.next_after,
        next_version_id_marker=NULL_VERSION if ends_with_object else None,
    )


def is_empty(bucket: Bucket) -> bool:
    """Whether there is no object at all."""
    return next(Walk(bucket, Scans(), prefix="", after="").keys(), None) is None


class _Entries:
    """Looks up keys in order; neighbours share an open folder."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._names: Names | None = None
        self._folder: Folder | None = None

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def entry(self, key: str) -> ObjectEntry | None:
        """The object's row, or None where it is gone."""
        names = names_of(key)
        if names[:-1] != self._names:
            self._let_go()
            try:
                self._folder = self._bucket.folder.enter(*names[:-1])
            except ABSENT:
                return None
            self._names = names[:-1]
        if self._folder is None:
            return None
        return self._row(key, self._folder, names[-1]) or self._elsewhere(key, names)

    def _elsewhere(self, key: str, names: Names) -> ObjectEntry | None:
        """The row of an object that is not where it was when its folder was opened."""
        with find(self._bucket, names) as place:
            return self._row(key, place.folder, place.name) if place is not None else None

    def _row(self, key: str, folder: Folder, name: str) -> ObjectEntry | None:
        looked = self._bucket.records.peek(folder, name)
        if looked is None:
            return None
        status, record = looked
        if stat.S_ISDIR(status.st_mode) and name != OBJECT_NAME:
            try:
                with folder.enter(name) as inner:
                    return self._row(key, inner, OBJECT_NAME)
            except ABSENT:
                return None
        if not stat.S_ISREG(status.st_mode):
            return None
        storage_class = record.headers.get("x-amz-storage-class") if record is not None else None
        return ObjectEntry(
            key=key,
            etag=etag_of(Identity.of(status), record),
            size_bytes=status.st_size,
            last_modified_ms=modified_ms(status),
            storage_class=storage_class or "STANDARD",
            checksum_algorithms=tuple(record.checksums) if record is not None else (),
            checksum_type=record.checksum_type if record is not None else None,
        )

    def _let_go(self) -> None:
        self._names = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None
