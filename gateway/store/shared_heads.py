"""The keeper's remembered heads in shared memory, for the workers beside it to believe.

One process writes, any number read, and nobody waits: an entry lies under a checksum of its key,
its content and the table's epoch, so whatever a reader meets half written, left by an earlier
keeper or damaged, it does not believe. A drop is two stores of eight bytes and cannot fail; that is
why this is no LMDB file (docs/workers.md).

The memory is a header page, then sets of 8 KiB. A key's hash names its set, which is 16 tags of
eight bytes, then 16 places: seal, time, length, content. In a full set the oldest makes room.
"""

import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable

import msgspec
import xxhash

from gateway.index.records import object_key
from gateway.model.objects import (
    ChecksumType,
    KnownObject,
    ObjectInfo,
    ObjectRef,
    known_object,
)

_HEADER_BYTES = 4096
_WAYS = 16
_SET_BYTES = 8192
_SETS = 8192
_SIZE_BYTES = _HEADER_BYTES + _SETS * _SET_BYTES
_TAGS_BYTES = 8 * _WAYS
_PLACE_BYTES = (_SET_BYTES - _TAGS_BYTES) // _WAYS

# Words of the header.
_EPOCH = 0
_MARK = 1
_UNTIL = 2
_FOR_EVER = (1 << 63) - 1

_SEAL = struct.Struct("=Q")
# What the seal covers besides the key and the epoch: time, length, and then the content.
_FRAME = struct.Struct("=dH")
_BODY = _SEAL.size
_CONTENT = _BODY + _FRAME.size
_PLACE = struct.Struct("=QdH")
_KEY = struct.Struct("=QQ")
_LARGEST_BYTES = _PLACE_BYTES - _CONTENT


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """An `ObjectInfo` without the names of its fields, which would take a fifth of a place."""

    etag: str
    size_bytes: int
    last_modified_ms: int
    version_id: str | None
    headers: dict[str, str]
    checksums: dict[str, str]
    checksum_type: ChecksumType | None
    checksums_known: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def make_memory() -> int:
    """A descriptor of empty memory for one table; pages that are not used take nothing."""
    descriptor = os.memfd_create("feedrack-heads", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _SIZE_BYTES)
    return descriptor


def index_mark(file: tuple[int, int] | None, generation: int) -> int:
    """Names an index file, by device and inode, under one generation of the configuration; 0 names
    none."""
    if file is None:
        return 0
    return xxhash.xxh3_64_intdigest(struct.pack("=QQQ", *file, generation)) or 1


class SharedHeads:
    """The writer's side: one at a time, from `begin` on.

    It is what a `VersionTable` tells of what it remembers and drops; neither ever raises. Where it
    is not `unbounded`, readers believe nothing until `trust` says so, and not for longer.
    """

    def __init__(self, descriptor: int, *, unbounded: bool = True) -> None:
        self._unbounded = unbounded
        self._map = mmap.mmap(descriptor, _SIZE_BYTES)
        self._words = memoryview(self._map).cast("Q")
        self._epoch = b""

    def begin(self) -> None:
        """Voids what the memory holds. Call before anything else, when no other one lives."""
        self._words[_MARK] = 0
        self._words[_UNTIL] = _FOR_EVER if self._unbounded else 0
        self.dropped_all()

    def remembered(self, ref: ObjectRef, info: ObjectInfo, since: float) -> None:
        """Shares what `ref`'s key holds, as known since `since` (monotonic seconds). What does not
        fit into a place is not shared, and nor are versions that were asked for by their id."""
        if ref.version_id is not None:
            return
        key = object_key(ref)
        self._drop(key)
        content = _pack(info)
        if len(content) > _LARGEST_BYTES:
            return
        start, tag = _filed(key)
        way = self._free_way(start)
        body = _FRAME.pack(since, len(content)) + content
        offset = _place(start, way)
        seal = _seal(self._epoch, key, body)
        self._map[offset : offset + _BODY + len(body)] = _SEAL.pack(seal) + body
        self._words[start // 8 + way] = tag

    def dropped(self, ref: ObjectRef) -> None:
        """On return no reader that begins to look finds the key."""
        self._drop(object_key(ref))

    def dropped_all(self) -> None:
        """On return no reader finds anything that was shared until now."""
        self._words[_EPOCH] = secrets.randbits(64)
        self._epoch = bytes(self._map[:8])
        # Nothing of it is believed any more: this only gives the memory back.
        self._map.madvise(mmap.MADV_REMOVE, _HEADER_BYTES)

    def trust(self, until: float) -> None:
        """Lets readers believe, be it shared or in the index, until then (monotonic seconds)."""
        self._words[_UNTIL] = max(0, int(until * 1e9))

    def mark_index(self, mark: int) -> None:
        """Lets readers believe the heads in the index of this mark (`index_mark`) from now on."""
        self._words[_MARK] = mark

    def close(self) -> None:
        """Lets go of the memory. What it says stays true until another keeper lives."""
        self._words.release()
        self._map.close()

    def _drop(self, key: bytes) -> None:
        start, tag = _filed(key)
        tags = self._words[start // 8 : start // 8 + _WAYS].tolist()
        if tag in tags:
            # A key never has two places: it is dropped before it is shared anew.
            self._void(start, tags.index(tag))

    def _void(self, start: int, way: int) -> None:
        self._words[start // 8 + way] = 0
        # The seal too, so that no place that gets its tag back could show what was there before.
        self._words[_place(start, way) // 8] = 0

    def _free_way(self, start: int) -> int:
        tags = self._words[start // 8 : start // 8 + _WAYS].tolist()
        if 0 in tags:
            return tags.index(0)
        ages = [
            _FRAME.unpack_from(self._map, _place(start, way) + _BODY)[0] for way in range(_WAYS)
        ]
        oldest = ages.index(min(ages))
        self._void(start, oldest)
        return oldest


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """A place that was found good, and what it says."""

    offset: int
    stop: int
    place: bytes
    since: float
    known: KnownObject


class SharedHeadsView:
    """A reader's side. `now` is the monotonic clock, which the writer's times are of.

    `limit` bounds the places remembered as good: one that has not changed since is not taken apart
    again, which is most of what a look costs.
    """

    def __init__(
        self, descriptor: int, *, now: Callable[[], float] = time.monotonic, limit: int = 8192
    ) -> None:
        self._map = mmap.mmap(descriptor, _SIZE_BYTES, prot=mmap.PROT_READ)
        self._words = memoryview(self._map).cast("Q")
        self._now = now
        self._limit = limit
        # Two halves: when the younger is full, the older is let go of.
        self._young: dict[ObjectRef, _Seen] = {}
        self._old: dict[ObjectRef, _Seen] = {}
        self._epoch = b""

    def trusted(self, ref: ObjectRef, freshness_seconds: float | None) -> ObjectInfo | None:
        """As `believed`, without the version's name."""
        known = self.believed(ref, freshness_seconds)
        return known.info if known is not None else None

    def believed(self, ref: ObjectRef, freshness_seconds: float | None) -> KnownObject | None:
        """The version to believe without asking, as `VersionTable.believed`; None where only the
        keeper can tell."""
        if self._map[:8] != self._epoch:
            # Another keeper: what the same bytes say is not good any more.
            self._young, self._old = {}, {}
            self._epoch = self._map[:8]
        seen = self._young.get(ref) or self._old.get(ref)
        if seen is None or self._map[seen.offset : seen.stop] != seen.place:
            seen = self._look(ref)
            if seen is None:
                return None
        if not self._trusts():
            return None
        if freshness_seconds is not None and self._now() - seen.since >= freshness_seconds:
            return None
        return seen.known

    def _trusts(self) -> bool:
        return bool(self._now() * 1e9 < self._words[_UNTIL])

    def _look(self, ref: ObjectRef) -> _Seen | None:
        if ref.version_id is not None:
            return None
        key = object_key(ref)
        start, tag = _filed(key)
        tags = self._words[start // 8 : start // 8 + _WAYS].tolist()
        if tag not in tags:
            return None
        offset = _place(start, tags.index(tag))
        place = self._map[offset : offset + _PLACE_BYTES]
        seal, since, length = _PLACE.unpack_from(place)
        place = place[: _CONTENT + length]
        if seal != _seal(self._epoch, key, place[_BODY:]):
            return None
        known = known_object(ref, _unpack(memoryview(place)[_CONTENT:]))
        seen = _Seen(offset, offset + len(place), place, since, known)
        if len(self._young) * 2 >= self._limit:
            self._old, self._young = self._young, {}
        self._young[ref] = seen
        return seen

    def believes_index(self, mark: int) -> bool:
        """Whether a head read *before* this call, from the index of this mark, may be believed."""
        return mark != 0 and self._words[_MARK] == mark and self._trusts()

    def close(self) -> None:
        self._words.release()
        self._map.close()


def _filed(key: bytes) -> tuple[int, int]:
    """The start of a key's set, and its tag there."""
    tag, number = _KEY.unpack(key)
    return _HEADER_BYTES + number % _SETS * _SET_BYTES, tag or 1


def _place(start: int, way: int) -> int:
    return start + _TAGS_BYTES + way * _PLACE_BYTES


def _seal(epoch: bytes, key: bytes, body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(epoch + key + body)


def _pack(info: ObjectInfo) -> bytes:
    """An info's bytes. Too many where it holds a text that is not valid Unicode."""
    packed = _Packed(
        info.etag,
        info.size_bytes,
        info.last_modified_ms,
        info.version_id,
        dict(info.headers),
        dict(info.checksums),
        info.checksum_type,
        info.checksums_known,
    )
    try:
        return _encode(packed)
    except UnicodeEncodeError:
        return bytes(_SET_BYTES)


def _unpack(content: memoryview) -> ObjectInfo:
    packed = _decode(content)
    return ObjectInfo(
        etag=packed.etag,
        size_bytes=packed.size_bytes,
        last_modified_ms=packed.last_modified_ms,
        version_id=packed.version_id,
        headers=packed.headers,
        checksums=packed.checksums,
        checksum_type=packed.checksum_type,
        checksums_known=packed.checksums_known,
    )
