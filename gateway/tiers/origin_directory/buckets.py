"""Buckets of a directory origin: the folders of its root. All block."""

import stat

import msgspec
from msgspec import Struct

from gateway.errors import BucketAlreadyExists, BucketNotEmpty, NoSuchTagSet
from gateway.model.objects import BucketEntry
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.listing import is_empty
from gateway.tiers.origin_directory.objects import Bucket
from gateway.tiers.origin_directory.paths import STATE_NAME, check_new_bucket, is_bucket
from gateway.tiers.origin_directory.records import check_tags, modified_ms
from gateway.tiers.origin_directory.scratch import write_whole

_NOTE_NAME = "bucket"
_TAG_LIMIT = 50

Tags = tuple[tuple[str, str], ...]


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a bucket; a folder that others made has none until it is tagged."""

    created_ms: int | None = None
    tags: Tags = ()


def list_buckets(backend: Backend) -> list[BucketEntry]:
    """As `Origin.list_buckets`, by name."""
    found: list[BucketEntry] = []
    with backend.mount.root() as root:
        for name, kind in sorted(root.scan()):
            if kind != stat.S_IFDIR or not is_bucket(name):
                continue
            try:
                with root.enter(name) as folder:
                    made_ms = modified_ms(folder.status())
                    created_ms = _read(folder).created_ms
            except ABSENT:
                continue
            found.append(BucketEntry(name, created_ms if created_ms is not None else made_ms))
    return found


def create_bucket(backend: Backend, name: str) -> None:
    """As `Origin.create_bucket`."""
    with backend.mount.root() as root:
        status = root.stat(name) if is_bucket(name) else None
        if status is not None and stat.S_ISDIR(status.st_mode):
            return
        check_new_bucket(name)
        if status is not None:
            raise BucketAlreadyExists(fields={"BucketName": name})
        with root.make(name) as folder:
            _write(folder, Note(created_ms=backend.now_ns() // 1_000_000))


def delete_bucket(backend: Backend, name: str) -> None:
    """As `Origin.delete_bucket`; uploads in progress go with it. What is no object (a link, a
    device, a name that is not UTF-8) is not ours to delete and keeps the bucket."""
    with backend.bucket(name) as bucket:
        # Before anybody is held up.
        if not is_empty(bucket):
            raise BucketNotEmpty(fields={"BucketName": name})
    with backend.bucket(name) as bucket, bucket.locks.close(name):
        if not is_empty(bucket):
            raise BucketNotEmpty(fields={"BucketName": name})
        for entry, kind in bucket.folder.scan():
            if entry != STATE_NAME and not (
                kind == stat.S_IFDIR and _remove_empty(bucket.folder, entry)
            ):
                raise BucketNotEmpty(
                    "The bucket's folder holds entries that are not objects.",
                    fields={"BucketName": name},
                )
        bucket.folder.remove_tree(STATE_NAME)
        with backend.mount.root() as root:
            if not root.remove_folder(name):
                raise BucketNotEmpty(fields={"BucketName": name})
            root.sync()
        backend.mount.forget(name)


def get_tags(bucket: Bucket) -> Tags:
    """NoSuchTagSet where there are none."""
    tags = _read(bucket.folder).tags
    if not tags:
        raise NoSuchTagSet(fields={"BucketName": bucket.name})
    return tags


def put_tags(bucket: Bucket, tags: Tags) -> None:
    """Replaces the bucket's tags; none at all removes them."""
    checked = check_tags(tags, _TAG_LIMIT)
    with bucket.locks.share(bucket.name), bucket.locks.hold((bucket.name, _NOTE_NAME)):
        _write(bucket.folder, Note(created_ms=_read(bucket.folder).created_ms, tags=checked))
        bucket.check()


def _remove_empty(parent: Folder, name: str) -> bool:
    """Removes a folder that holds nothing but folders; says whether it is gone."""
    try:
        with parent.enter(name) as folder:
            for entry, kind in folder.scan():
                if kind != stat.S_IFDIR or not _remove_empty(folder, entry):
                    return False
    except ABSENT:
        return True
    return parent.remove_folder(name)


def _read(folder: Folder) -> Note:
    try:
        with folder.enter(STATE_NAME) as state:
            raw = state.read(_NOTE_NAME)
            return msgspec.msgpack.decode(raw, type=Note) if raw else Note()
    except (*ABSENT, msgspec.DecodeError, UnicodeDecodeError):
        # Anyone may write there; what we have not written says nothing.
        return Note()


def _write(folder: Folder, note: Note) -> None:
    write_whole(folder, (STATE_NAME, _NOTE_NAME), msgspec.msgpack.encode(note))
