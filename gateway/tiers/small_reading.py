"""Small objects: found through the index, read by file offset, verified whole.

This is the reading half, the same in the process that keeps the cache (`small.py`) and in the
others that only read it (`held_disk.py`).
"""

import os
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from gateway.errors import Corrupt, TierUnavailable
from gateway.index.records import BLOCK_BYTES, SmallRecord, Table, decode_small, is_of
from gateway.model.objects import Span
from gateway.tiers.layout import shard_path
from gateway.tiers.open_files import OpenFile, OpenFiles
from gateway.tiers.protocol import FileRegion, TierName
from gateway.tiers.regions import Regions
from gateway.tiers.verified import Stamp

# Shorter ones are sent from memory: to look whether they may be sent from the file costs more.
_REGION_BYTES = BLOCK_BYTES


class Index(Protocol):
    """Where records are looked up."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...


class SmallOwner(Protocol):
    """Who is told of what reading small objects brings to light."""

    def holds_shard(self, shard: int) -> bool:
        """Whether a shard may be read."""
        ...

    def read(self, digest: bytes, record: SmallRecord) -> None:
        """An object was read."""
        ...

    def stale(self, digest: bytes) -> None:
        """The index has an entry that is no good."""
        ...

    def corrupt(self, digest: bytes, record: SmallRecord, why: str) -> None:
        """An object's bytes are not what was written."""
        ...

    def lost(self, digest: bytes, record: SmallRecord, error: OSError) -> None:
        """An object's shard cannot be opened."""
        ...


class SmallLookup:
    """Opens small objects that are on disk."""

    def __init__(
        self, folder: Path, *, index: Index, files: OpenFiles, regions: Regions, owner: SmallOwner
    ) -> None:
        self._folder = folder
        self._index = index
        self._files = files
        self._regions = regions
        self._owner = owner
        self._readers: dict[int, int] = {}

    def is_read(self, shard: int) -> bool:
        """Whether somebody has a reader open that needs the shard's file."""
        return shard in self._readers

    def decode(self, digest: bytes) -> SmallRecord | None:
        """What the index says is filed there."""
        raw = self._index.get(Table.SMALL, digest)
        if raw is None:
            return None
        try:
            return decode_small(raw)
        except msgspec.MsgspecError:
            self._owner.stale(digest)
            return None

    def find(self, digest: bytes, span: Span) -> SmallRecord | None:
        """The object's record, if it is here."""
        record = self.decode(digest)
        if record is None or not is_of(record, span):
            return None
        if self._owner.holds_shard(record.shard):
            return record
        self._owner.stale(digest)
        return None

    def open_now(self, span: Span) -> "SmallReader | ShardReader | None":
        """As `open`, without waiting: None also where that would be needed."""
        digest = span.version.digest
        record = self.find(digest, span)
        if record is None:
            return None
        shard = record.shard
        try:
            file = self._files.cached(shard) or self._files.open_now(shard, self._path(shard))
        except OSError as error:
            self._owner.lost(digest, record, error)
            return None
        if file is None:
            return None
        if record.size_bytes >= _REGION_BYTES and self._regions.seen(
            shard, record.offset // BLOCK_BYTES
        ):
            # It may well be sent from the file: read only if it may not.
            self._owner.read(digest, record)
            self._readers[shard] = self._readers.get(shard, 0) + 1
            return ShardReader(self, digest, record, file)
        try:
            data = self.read_now(digest, record, file)
        except Corrupt:
            return None
        finally:
            self._files.release(file)
        if data is None:
            return None
        self._owner.read(digest, record)
        return SmallReader(data)

    async def open(self, span: Span) -> "SmallReader | ShardReader | None":
        """A reader of the object, None where it is not here or not what was written."""
        reader = self.open_now(span)
        if reader is not None:
            return reader
        digest = span.version.digest
        record = self.find(digest, span)
        if record is None:
            return None
        shard = record.shard
        try:
            file = self._files.cached(shard) or await self._files.acquire(shard, self._path(shard))
        except OSError as error:
            self._owner.lost(digest, record, error)
            return None
        except TierUnavailable:
            # It is here, but there is no descriptor to read it with just now.
            return None
        try:
            data = await self.read(digest, record, file)
        except Corrupt:
            return None
        finally:
            self._files.release(file)
        self._owner.read(digest, record)
        return SmallReader(data)

    def read_now(self, digest: bytes, record: SmallRecord, file: OpenFile) -> bytearray | None:
        """The whole object, verified; None where that would need waiting. Corrupt."""
        stamp = self._stamp(record, file)
        try:
            data = self._files.read_now(file, record.offset, record.size_bytes)
        except OSError as error:
            raise self._unreadable(digest, record, file, error) from error
        if data is None:
            self._regions.missed(record.shard, record.offset // BLOCK_BYTES)
            return None
        self._check(digest, record, file, data, stamp)
        return data

    async def read(self, digest: bytes, record: SmallRecord, file: OpenFile) -> bytes:
        """The whole object, verified, read by a thread. Corrupt."""
        stamp = self._stamp(record, file)
        try:
            data = await self._files.read_in_thread(file, record.offset, record.size_bytes)
        except OSError as error:
            raise self._unreadable(digest, record, file, error) from error
        self._check(digest, record, file, data, stamp)
        return data

    def region(
        self, record: SmallRecord, file: OpenFile, offset: int, limit_bytes: int
    ) -> FileRegion | None:
        """As `SpanReader.region`."""
        size_bytes = min(limit_bytes, record.size_bytes - offset)
        if size_bytes <= 0:
            return None
        return self._regions.of_object(file, record.shard, record.offset, offset, size_bytes)

    def close_reader(self, shard: int, file: OpenFile) -> None:
        """Ends a `ShardReader`'s use of its shard."""
        self._files.release(file)
        left = self._readers[shard] - 1
        if left:
            self._readers[shard] = left
        else:
            del self._readers[shard]

    def _stamp(self, record: SmallRecord, file: OpenFile) -> Stamp | None:
        if record.size_bytes < _REGION_BYTES:
            return None
        return self._regions.before(file, record.shard, record.offset // BLOCK_BYTES)

    def _check(
        self,
        digest: bytes,
        record: SmallRecord,
        file: OpenFile,
        data: bytes | bytearray,
        stamp: Stamp | None,
    ) -> None:
        if len(data) != record.size_bytes or xxhash.xxh3_64_intdigest(data) != record.sum:
            self._tell_corrupt(digest, record, file, "checksum")
            raise Corrupt("a kept object does not match its checksum")
        if stamp is not None:
            self._regions.verified(record.shard, stamp, record.offset // BLOCK_BYTES)

    def _unreadable(
        self, digest: bytes, record: SmallRecord, file: OpenFile, error: OSError
    ) -> Corrupt:
        self._tell_corrupt(digest, record, file, str(error))
        return Corrupt(f"a kept object cannot be read: {error}")

    def _tell_corrupt(self, digest: bytes, record: SmallRecord, file: OpenFile, why: str) -> None:
        if os.fstat(file.descriptor).st_nlink:
            self._owner.corrupt(digest, record, why)
        else:
            # Not the file that goes by this number by now.
            self._files.drop(record.shard)

    def _path(self, shard: int) -> Path:
        return shard_path(self._folder, shard)


class SmallReader:
    """A whole small object in memory."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    @property
    def tier(self) -> TierName:
        return "disk"

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """As `SpanReader.read`."""
        return part(self._data, offset, limit_bytes)

    def read_now(self, offset: int, limit_bytes: int) -> bytes | bytearray | memoryview:
        """As `SpanReader.read_now`."""
        if offset == 0 and limit_bytes >= len(self._data):
            return self._data
        return memoryview(self._data)[offset : offset + limit_bytes]

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:  # noqa: ARG002
        """As `SpanReader.region`: it lies in memory."""
        return None

    def release(self) -> None:
        """Nothing is pinned."""

    async def close(self) -> None:
        """Nothing is pinned."""


class ShardReader:
    """A small object in its shard, verified when last looked at; read once it has to be."""

    def __init__(
        self, lookup: SmallLookup, digest: bytes, record: SmallRecord, file: OpenFile
    ) -> None:
        self._lookup = lookup
        self._digest = digest
        self._record = record
        self._file: OpenFile | None = file
        self._data: bytes | bytearray | None = None
        self._gave = False

    @property
    def tier(self) -> TierName:
        return "disk"

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """As `SpanReader.read`."""
        part_of = self.read_now(offset, limit_bytes)
        if part_of is not None:
            return part_of
        data = await self._lookup.read(self._digest, self._record, self._opened())
        return self._have(data, offset, limit_bytes)

    def read_now(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        """As `SpanReader.read_now`."""
        data = self._data
        if data is None:
            data = self._lookup.read_now(self._digest, self._record, self._opened())
        return None if data is None else self._have(data, offset, limit_bytes)

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        """As `SpanReader.region`."""
        if self._data is not None and not self._gave:
            return None
        region = self._lookup.region(self._record, self._opened(), offset, limit_bytes)
        self._gave = self._gave or region is not None
        return region

    async def close(self) -> None:
        """Lets go of the shard's file. Safe to call twice."""
        self.release()

    def release(self) -> None:
        """As `close`."""
        self._data = None
        self._let_go()

    def _have(self, data: bytes | bytearray, offset: int, limit_bytes: int) -> bytes | memoryview:
        self._data = data
        if not self._gave:
            # Nobody sends from the file: a slow client must not keep the whole shard from going.
            self._let_go()
        return part(data, offset, limit_bytes)

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._lookup.close_reader(self._record.shard, file)

    def _opened(self) -> OpenFile:
        if self._file is None:
            raise TierUnavailable("the reader is closed")
        return self._file


def part(data: bytes | bytearray, offset: int, limit_bytes: int) -> bytes | memoryview:
    """Up to `limit_bytes` bytes from `offset`, not copied."""
    if offset == 0 and limit_bytes >= len(data) and isinstance(data, bytes):
        return data
    return memoryview(data)[offset : offset + limit_bytes]
