"""What the index of this node says of objects, chunks and small objects, and under which keys.

Object keys may be longer than LMDB's 511 bytes, so everything is filed under hashes and carries
its full name, which is compared at every look-up. Values are MessagePack. A value that does not
decode is treated as absent: the cache can always ask again.
"""

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, Span

BLOCK_BYTES = 65_536
# Versions of one key remembered by version id; beyond, the oldest are forgotten.
_MAX_VERSIONS = 16

_SUM_BYTES = 8
_ENTRY = struct.Struct("<16sII")
_EXTENT_KEY = struct.Struct(">II")


class Table(IntEnum):
    """The tables of the index."""

    OBJECTS = 0
    CHUNKS = 1
    SMALL = 2
    EXTENTS = 3

    # An enumeration's own is a Python function, at every look-up in what is not committed yet.
    __hash__ = int.__hash__


class Name(Struct, frozen=True, array_like=True):
    """The full name of an object version; texts as bytes, since not all that clients and origins
    send is valid UTF-8."""

    origin: str
    bucket: bytes
    key: bytes
    version_id: bytes | None
    etag: bytes
    object_bytes: int


class ChunkRecord(Struct, frozen=True, array_like=True):
    """One chunk in a file of its own. `sums`: the XXH3-64 of each 64 KiB block, 8 bytes each."""

    name: Name
    size_bytes: int
    sums: bytes


class SmallRecord(Struct, frozen=True, array_like=True):
    """One small object: `size_bytes` from `offset` of shard `shard`, number `ordinal` of its
    extent. `sum` is the XXH3-64 of all its bytes."""

    name: Name
    shard: int
    extent: int
    ordinal: int
    offset: int
    size_bytes: int
    sum: int


class Remembered(Struct, frozen=True, array_like=True):
    """What is remembered of one version id of a key (None: the current version)."""

    version_id: bytes | None
    info: ObjectInfo


class ObjectRecord(Struct, frozen=True, array_like=True):
    """Everything remembered of one key."""

    origin: str
    bucket: bytes
    key: bytes
    versions: tuple[Remembered, ...]


class ExtentEntry(Struct, frozen=True):
    """One object of an extent: the digest of its version, and where in the file it lies."""

    digest: bytes
    offset: int
    size_bytes: int


R = TypeVar("R")
_encoder = msgspec.msgpack.Encoder()
decode_chunk = msgspec.msgpack.Decoder(ChunkRecord).decode
decode_small = msgspec.msgpack.Decoder(SmallRecord).decode
decode_object = msgspec.msgpack.Decoder(ObjectRecord).decode


def encode(record: ChunkRecord | SmallRecord | ObjectRecord) -> bytes:
    """A record's bytes. UnicodeEncodeError where a text in it is not valid Unicode."""
    return _encoder.encode(record)


def object_key(ref: ObjectRef) -> bytes:
    """Where what is remembered of a key is filed, whatever the version id."""
    origin, bucket, key = raw_text(ref.origin), raw_text(ref.bucket), raw_text(ref.key)
    named = b"%b%b%b%b%b%b" % (
        len(origin).to_bytes(4, "big"),
        origin,
        len(bucket).to_bytes(4, "big"),
        bucket,
        len(key).to_bytes(4, "big"),
        key,
    )
    return blake2b(named, digest_size=16).digest()


def chunk_key(digest: bytes, number: int) -> bytes:
    """Where a chunk is filed: the chunks of a version are neighbours."""
    return digest + number.to_bytes(4, "big")


def extent_key(shard: int, extent: int) -> bytes:
    """Where the list of an extent's objects is filed."""
    return _EXTENT_KEY.pack(shard, extent)


def raw_text(text: str) -> bytes:
    """UTF-8, lone surrogates included: keys come from clients."""
    return text.encode("utf-8", "surrogatepass")


def name_of(version: ObjectVersion) -> Name:
    """The full name of a version."""
    ref = version.ref
    return Name(
        ref.origin,
        raw_text(ref.bucket),
        raw_text(ref.key),
        None if ref.version_id is None else raw_text(ref.version_id),
        raw_text(version.etag),
        version.size_bytes,
    )


def named(name: Name) -> ObjectVersion:
    """The version of a full name. UnicodeDecodeError."""
    version_id = None if name.version_id is None else _text(name.version_id)
    ref = ObjectRef(name.origin, _text(name.bucket), _text(name.key), version_id)
    return ObjectVersion(ref, _text(name.etag), name.object_bytes)


def chunk_span(key: bytes, raw: bytes, chunk_bytes: int) -> Span | None:
    """What an entry of CHUNKS is of; None where it is no good. A shard is one chunk, as large as it
    is."""
    try:
        record = decode_chunk(raw)
        version = named(record.name)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    number = int.from_bytes(key[16:], "big")
    return Span(version, number, number * chunk_bytes, number * chunk_bytes + record.size_bytes)


def small_span(key: bytes, raw: bytes, chunk_bytes: int) -> Span | None:  # noqa: ARG001 - as `chunk_span`
    """What an entry of SMALL is of; None where it is no good."""
    try:
        record = decode_small(raw)
        version = named(record.name)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Span(version, 0, 0, record.size_bytes)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def is_of(record: ChunkRecord | SmallRecord, span: Span) -> bool:
    """Whether the record is the span's: hashes may collide, sizes may be of another setting."""
    name, version = record.name, span.version
    ref = version.ref
    # As `record.name == name_of(version)`, without making one: this is asked at every read.
    return (
        record.size_bytes == span.stop - span.start
        and name.key == raw_text(ref.key)
        and name.etag == raw_text(version.etag)
        and name.object_bytes == version.size_bytes
        and name.bucket == raw_text(ref.bucket)
        and name.origin == ref.origin
        and name.version_id == (None if ref.version_id is None else raw_text(ref.version_id))
    )


def find(record: ObjectRecord, ref: ObjectRef) -> ObjectInfo | None:
    """What the record says of `ref`; None where it is of another key."""
    if (record.origin, record.bucket, record.key) != (
        ref.origin,
        raw_text(ref.bucket),
        raw_text(ref.key),
    ):
        return None
    wanted = None if ref.version_id is None else raw_text(ref.version_id)
    for remembered in record.versions:
        if remembered.version_id == wanted:
            return remembered.info
    return None


def with_info(record: ObjectRecord | None, ref: ObjectRef, info: ObjectInfo) -> ObjectRecord:
    """The record with what is now known of `ref`, the newest first."""
    wanted = None if ref.version_id is None else raw_text(ref.version_id)
    others: tuple[Remembered, ...] = ()
    if record is not None and record.key == raw_text(ref.key):
        others = tuple(old for old in record.versions if old.version_id != wanted)
    return ObjectRecord(
        ref.origin,
        raw_text(ref.bucket),
        raw_text(ref.key),
        (Remembered(wanted, info), *others)[:_MAX_VERSIONS],
    )


def version_of(ref: ObjectRef, remembered: Remembered) -> ObjectVersion:
    """The object version that a remembered entry of `ref`'s key describes."""
    raw = remembered.version_id
    version_id = None if raw is None else raw.decode("utf-8", "surrogatepass")
    info = remembered.info
    return ObjectVersion(
        ObjectRef(ref.origin, ref.bucket, ref.key, version_id), info.etag, info.size_bytes
    )


def pack_sums(sums: list[int]) -> bytes:
    """Block checksums as they lie in a record."""
    return struct.pack(f"<{len(sums)}Q", *sums)


def block_sums(sums: bytes, first: int, count: int) -> tuple[int, ...]:
    """The checksums of `count` blocks from `first` on. IndexError where there are not as many."""
    if first < 0 or (first + count) * _SUM_BYTES > len(sums):
        raise IndexError(first)
    return struct.unpack_from(f"<{count}Q", sums, first * _SUM_BYTES)


def pack_entries(entries: list[ExtentEntry]) -> bytes:
    """The list of an extent's objects as it lies in the index."""
    return b"".join(_ENTRY.pack(entry.digest, entry.offset, entry.size_bytes) for entry in entries)


def unpack_entries(raw: bytes) -> list[ExtentEntry]:
    """What `pack_entries` made; nothing where the bytes are not such a list."""
    if len(raw) % _ENTRY.size:
        return []
    return [ExtentEntry(*fields) for fields in _ENTRY.iter_unpack(raw)]
