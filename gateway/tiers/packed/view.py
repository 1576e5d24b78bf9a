"""One pack with what was written over it since: what a key is, and where its bytes lie.

Synchronous and without a clock: who asks has seen to it that the view is current (`known.py`).
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from gateway.model.checksums import among as checksums_among
from gateway.model.objects import (
    ChecksumType,
    ObjectEntry,
    ObjectInfo,
    ObjectRef,
    ObjectVersion,
    Span,
)
from gateway.tiers.protocol import PackedAt
from packer.format import (
    Index,
    Manifest,
    Override,
    OverrideBatch,
    Overrides,
    Place,
    Record,
    etag_text,
)

Tags = tuple[tuple[str, str], ...]


class PackedObject(Struct, frozen=True):
    """A key for which the pack speaks. `tags` as GetObjectTagging answers them."""

    info: ObjectInfo
    at: PackedAt
    tags: Tags


class Unsure(Struct, frozen=True):
    """A key of a listing of which the origin must be asked."""

    key: str


Listed = ObjectEntry | Unsure


class Watchers(list[Callable[[], None]]):
    """Who is told of each change to a pack's view, or to whether it takes overrides, in the step
    that makes it."""

    def __call__(self) -> None:
        for told in self:
            told()


class PackView:
    """A whole pack: its index, and the log over it. `add` is the one thing that changes it."""

    def __init__(
        self, origin: str, bucket: str, manifest: Manifest, index: Index, overrides: Overrides
    ) -> None:
        self.manifest = manifest
        self.overrides = overrides
        self._index = index
        place = Place(manifest.prefix)
        self._shards = [
            _whole(ObjectRef(origin, bucket, place.shard(shard.sha256)), shard.sha256, size)
            for shard in index.shards
            for size in (shard.size_bytes,)
        ]
        self._overridden = sorted(key.encode() for key in overrides)
        # The last key that was asked for: the same read asks what it is, and then where.
        self._last: tuple[str, PackedObject | None] | None = None

    @property
    def shards(self) -> list[Span]:
        """Each shard as what it is in the cache: one span as large as its file."""
        return self._shards

    @property
    def index(self) -> Index:
        return self._index

    def add(self, sequence: int, batch: OverrideBatch) -> None:
        """Takes in the next record of the log. OverrideError where one is missing before it."""
        known = {override.key for override in batch.records if self.overrides.get(override.key)}
        self.overrides.add(sequence, batch)
        for key in {override.key for override in batch.records} - known:
            insort(self._overridden, key.encode())
        self._last = None

    def packed(self, key: str) -> PackedObject | None:
        """What the pack says of a key; None where it does not speak for it: ask the origin."""
        if self._last is None or self._last[0] != key:
            self._last = key, self._look_up(key)
        return self._last[1]

    def left(self, key: str) -> PackedObject | None:
        """What the pack has of a key that the origin does not have: as `packed`, and where it was
        only written, by several nodes, the last time with the packed bytes. They were not deleted
        then, but the original was, for being packed."""
        packed = self.packed(key)
        stand = self.overrides.get(key)
        if packed is not None or stand is None or not stand.written:
            return packed
        record = self._index.get(key.encode())
        if record is None or record.shard is None:
            return None
        same = stand.override.etag == etag_text(record.etag)
        return self._packed(record, stand.override) if same else None

    def walk(
        self, start: bytes, changing: Collection[bytes] = ()
    ) -> Iterator[tuple[bytes, Listed]]:
        """Every key from `start` on, in order of bytes, as a listing has it. Nobody is sure of what
        is `changing`. What changes the view ends the walk's sense: take what is needed in one
        step."""
        indexed = self._index.walk(start)
        overridden = self._overridden[bisect_left(self._overridden, start) :]
        written = iter(overridden)
        if changing:
            beyond = {key for key in changing if key >= start}
            written = iter(sorted(beyond.union(overridden)))
        packed, over = next(indexed, None), next(written, None)
        while packed is not None or over is not None:
            if over is None or (packed is not None and packed[0] < over):
                assert packed is not None  # noqa: S101 - one of the two is left
                yield packed[0], _entry(packed[0].decode(), packed[1])
                packed = next(indexed, None)
                continue
            key = over.decode()
            listed = Unsure(key) if over in changing else self._written(key)
            if listed is not None:
                yield over, listed
            if packed is not None and packed[0] == over:
                packed = next(indexed, None)
            over = next(written, None)

    def _look_up(self, key: str) -> PackedObject | None:
        record = self._index.get(key.encode())
        if record is None or record.shard is None:
            return None
        stand = self.overrides.get(key)
        override = None
        if stand is not None:
            override = stand.override
            same = override.op == "put" and override.etag == etag_text(record.etag)
            if not (same and stand.sure):
                return None
        return self._packed(record, override)

    def _packed(self, record: Record, override: Override | None) -> PackedObject:
        assert record.shard is not None  # noqa: S101 - the caller has looked
        assert isinstance(record.headers, dict)  # noqa: S101 - `Index.get` gives the set
        headers, modified_ms, tags = record.headers, record.modified_ms, record.tags
        if override is not None:
            # The same bytes were written again: the bytes are the pack's, what is said of them new.
            headers, modified_ms, tags = override.headers, override.modified_ms, override.tags
        if tags:
            headers = headers | {"x-amz-tagging-count": str(len(tags))}
        info = ObjectInfo(
            etag=etag_text(record.etag),
            size_bytes=record.size_bytes,
            last_modified_ms=modified_ms,
            headers=headers,
            checksums=checksums_among(record.checksums),
            checksum_type=_checksum_type(record.checksums),
        )
        at = PackedAt(self._shards[record.shard], record.offset, record.size_bytes, record.checksum)
        return PackedObject(info, at, tags)

    def _written(self, key: str) -> Listed | None:
        stand = self.overrides.get(key)
        assert stand is not None  # noqa: S101 - what is in the list is in the log
        override = stand.override
        if not stand.sure:
            return Unsure(key)
        if override.op == "delete":
            return None
        return ObjectEntry(
            key=key,
            etag=override.etag,
            size_bytes=override.size_bytes,
            last_modified_ms=override.modified_ms,
            storage_class=override.headers.get("x-amz-storage-class", "STANDARD"),
        )


def _whole(ref: ObjectRef, sha256: str, size_bytes: int) -> Span:
    """A shard's one span. Its key names its bytes, so that its hash may stand for its ETag."""
    return Span(ObjectVersion(ref, sha256, size_bytes), 0, 0, size_bytes)


def _entry(key: str, record: Record) -> ObjectEntry:
    assert isinstance(record.headers, dict)  # noqa: S101 - `Index.walk` gives the set
    return ObjectEntry(
        key=key,
        etag=etag_text(record.etag),
        size_bytes=record.size_bytes,
        last_modified_ms=record.modified_ms,
        storage_class=record.headers.get("x-amz-storage-class", "STANDARD"),
        checksum_algorithms=tuple(checksums_among(record.checksums)),
        checksum_type=_checksum_type(record.checksums),
    )


def _checksum_type(headers: dict[str, str]) -> ChecksumType | None:
    match headers.get("x-amz-checksum-type"):
        case "FULL_OBJECT":
            return "FULL_OBJECT"
        case "COMPOSITE":
            return "COMPOSITE"
        case _:
            return None
