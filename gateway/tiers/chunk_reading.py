"""Chunks of large objects: a file each, verified block by block at the read that serves them.

This is the reading half, the same in the process that keeps the cache (`chunks.py`) and in the
others that only read it (`held_disk.py`).
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import xxhash

from gateway.errors import Corrupt, TierUnavailable
from gateway.index.records import (
    BLOCK_BYTES,
    ChunkRecord,
    Table,
    block_sums,
    chunk_key,
    decode_chunk,
    is_of,
)
from gateway.model.objects import Span
from gateway.tiers.layout import chunk_path
from gateway.tiers.open_files import OpenFile, OpenFiles
from gateway.tiers.protocol import FileRegion, TierName
from gateway.tiers.regions import Regions
from gateway.tiers.small_reading import Index
from gateway.tiers.verified import Stamp

_READ_BYTES = 1024**2
# Several reads of one chunk within this time are one use of it: a client that reads a large
# object in small ranges must not look like many clients.
_ONE_USE_SECONDS = 2.0
_MAX_USES = 65_536


class ChunkOwner(Protocol):
    """Who is told of what reading chunks brings to light."""

    def holds_chunk(self, key: bytes) -> bool:
        """Whether a chunk may be read."""
        ...

    def used(self, key: bytes) -> None:
        """A chunk was read, for the first time in a while."""
        ...

    def stale(self, key: bytes) -> None:
        """The index has an entry that is no good."""
        ...

    def corrupt(self, key: bytes, record: ChunkRecord, file: OpenFile, why: str) -> None:
        """A chunk's bytes are not what was written."""
        ...

    def lost(self, key: bytes, error: OSError) -> None:
        """A chunk's file cannot be opened."""
        ...


class ChunkLookup:
    """Opens chunks that are on disk."""

    def __init__(
        self,
        folder: Path,
        *,
        index: Index,
        files: OpenFiles,
        regions: Regions,
        owner: ChunkOwner,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._index = index
        self._files = files
        self._regions = regions
        self._owner = owner
        self._now = now
        self._readers: dict[bytes, int] = {}
        self._used_at: dict[bytes, float] = {}

    def is_read(self, key: bytes) -> bool:
        """Whether somebody has a reader of the chunk open."""
        return key in self._readers

    def find(self, key: bytes, span: Span) -> ChunkRecord | None:
        """The chunk's record, if it is here."""
        raw = self._index.get(Table.CHUNKS, key)
        if raw is None or not self._owner.holds_chunk(key):
            return None
        try:
            record = decode_chunk(raw)
        except msgspec.MsgspecError:
            self._owner.stale(key)
            return None
        return record if is_of(record, span) else None

    def open_now(self, span: Span) -> "ChunkReader | None":
        """As `open`, without waiting: None also where that would be needed."""
        key = chunk_key(span.version.digest, span.number)
        record = self.find(key, span)
        if record is None:
            return None
        try:
            file = self._files.cached(key) or self._files.open_now(key, self._path(key))
        except OSError as error:
            self._owner.lost(key, error)
            return None
        if file is None:
            return None
        self._pin(key)
        self._use(key)
        return ChunkReader(self, key, record, file)

    async def open(self, span: Span) -> "ChunkReader | None":
        """A reader of the chunk, or None where it is not here."""
        reader = self.open_now(span)
        if reader is not None:
            return reader
        key = chunk_key(span.version.digest, span.number)
        record = self.find(key, span)
        if record is None:
            return None
        self._pin(key)
        try:
            file = self._files.cached(key) or await self._files.acquire(key, self._path(key))
        except OSError as error:
            self._unpin(key)
            self._owner.lost(key, error)
            return None
        except TierUnavailable:
            # It is here, but there is no descriptor to read it with just now.
            self._unpin(key)
            return None
        except BaseException:
            self._unpin(key)
            raise
        self._use(key)
        return ChunkReader(self, key, record, file)

    def read_now(
        self, key: bytes, record: ChunkRecord, file: OpenFile, first: int, last: int
    ) -> memoryview | None:
        """The bytes `first` to `last`, which are whole blocks, verified; None where that would
        need waiting. Corrupt."""
        stamp = self._stamp(key, file, first, last)
        try:
            data = self._files.read_now(file, first, last - first)
        except OSError as error:
            raise self._unreadable(key, record, file, error) from error
        if data is None:
            self._regions.missed(key, first // BLOCK_BYTES)
            return None
        return self._checked(key, record, file, data, first, last, stamp)

    async def read(
        self, key: bytes, record: ChunkRecord, file: OpenFile, first: int, last: int
    ) -> memoryview:
        """As `read_now`, by a thread."""
        stamp = self._stamp(key, file, first, last)
        try:
            data = await self._files.read_in_thread(file, first, last - first)
        except OSError as error:
            raise self._unreadable(key, record, file, error) from error
        return self._checked(key, record, file, data, first, last, stamp)

    def as_it_lies(self, file: OpenFile, offset: int, size_bytes: int) -> bytearray | None:
        """Bytes that are not verified; None where they cannot be had without waiting, or at all."""
        try:
            return self._files.read_now(file, offset, size_bytes)
        except OSError:
            # Whoever reads and verifies meets it too, and knows what to do.
            return None

    def region(self, key: bytes, file: OpenFile, offset: int, size_bytes: int) -> FileRegion | None:
        """As `SpanReader.region`."""
        return self._regions.of_blocks(file, key, offset, size_bytes)

    def close_reader(self, key: bytes, file: OpenFile) -> None:
        """Ends what `open` began."""
        self._files.release(file)
        self._unpin(key)

    def is_new_use(self, key: bytes) -> bool:
        """Whether a read of the chunk that begins now is a use of its own; it counts as one."""
        now = self._now()
        if now - self._used_at.get(key, -_ONE_USE_SECONDS) < _ONE_USE_SECONDS:
            return False
        if len(self._used_at) >= _MAX_USES:
            self._used_at.clear()
        self._used_at[key] = now
        return True

    def forget(self, key: bytes) -> None:
        """The chunk is gone, or another file."""
        self._used_at.pop(key, None)
        self._regions.forget(key)

    def _use(self, key: bytes) -> None:
        if self.is_new_use(key):
            self._owner.used(key)

    def _stamp(self, key: bytes, file: OpenFile, first: int, last: int) -> Stamp | None:
        return self._regions.before(
            file, key, first // BLOCK_BYTES, -(-(last - first) // BLOCK_BYTES)
        )

    def _checked(
        self,
        key: bytes,
        record: ChunkRecord,
        file: OpenFile,
        data: bytes | bytearray,
        first: int,
        last: int,
        stamp: Stamp | None,
    ) -> memoryview:
        view = memoryview(data)
        block = first // BLOCK_BYTES
        if len(view) != last - first or not sound(view, record.sums, block):
            self._tell_corrupt(key, record, file, "checksum")
            raise Corrupt("a kept chunk does not match its checksums")
        if stamp is not None:
            self._regions.verified(key, stamp, block, -(-(last - first) // BLOCK_BYTES))
        return view

    def _unreadable(
        self, key: bytes, record: ChunkRecord, file: OpenFile, error: OSError
    ) -> Corrupt:
        self._tell_corrupt(key, record, file, str(error))
        return Corrupt(f"a kept chunk cannot be read: {error}")

    def _tell_corrupt(self, key: bytes, record: ChunkRecord, file: OpenFile, why: str) -> None:
        if os.fstat(file.descriptor).st_nlink:
            self._owner.corrupt(key, record, file, why)
        else:
            # Not the file that goes by this name by now.
            self._files.drop(key)

    def _path(self, key: bytes) -> Path:
        return chunk_path(self._folder, key)

    def _pin(self, key: bytes) -> None:
        self._readers[key] = self._readers.get(key, 0) + 1

    def _unpin(self, key: bytes) -> None:
        left = self._readers[key] - 1
        if left:
            self._readers[key] = left
        else:
            del self._readers[key]


class ChunkReader:
    """Verified bytes of one chunk."""

    def __init__(
        self, lookup: ChunkLookup, key: bytes, record: ChunkRecord, file: OpenFile
    ) -> None:
        self._lookup = lookup
        self._key = key
        self._record = record
        self._file: OpenFile | None = file

    @property
    def tier(self) -> TierName:
        return "disk"

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """As `SpanReader.read`. Only the blocks touched are read; every one is verified."""
        data = self.read_now(offset, limit_bytes)
        if data is not None:
            return data
        stop, first, last = self._touched(offset, limit_bytes)
        view = await self._lookup.read(self._key, self._record, self._opened(), first, last)
        return view[offset - first : stop - first]

    def read_now(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        """As `SpanReader.read_now`."""
        file = self._opened()
        stop, first, last = self._touched(offset, limit_bytes)
        if offset >= stop:
            return b""
        view = self._lookup.read_now(self._key, self._record, file, first, last)
        return None if view is None else view[offset - first : stop - first]

    def as_it_lies(self, offset: int, size_bytes: int) -> bytearray | None:
        """Bytes that nothing vouches for, where they can be had without waiting: for those who have
        a checksum of their own, and would pay for whole blocks. None where they cannot."""
        return self._lookup.as_it_lies(self._opened(), offset, size_bytes)

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        """As `SpanReader.region`."""
        file = self._opened()
        size_bytes = min(limit_bytes, self._record.size_bytes - offset)
        return self._lookup.region(self._key, file, offset, size_bytes) if size_bytes > 0 else None

    def duplicate(self) -> int:
        """A descriptor of the chunk's file, to be closed by the caller: its blocks are not verified
        by reading through it. OSError."""
        return os.dup(self._opened().descriptor)

    async def close(self) -> None:
        """Lets go of what was pinned. Safe to call twice."""
        self.release()

    def release(self) -> None:
        """As `close`."""
        file, self._file = self._file, None
        if file is not None:
            self._lookup.close_reader(self._key, file)

    def _touched(self, offset: int, limit_bytes: int) -> tuple[int, int, int]:
        """Where the read ends, and the whole blocks around it."""
        size = self._record.size_bytes
        stop = min(offset + min(limit_bytes, _READ_BYTES), size)
        return stop, offset - offset % BLOCK_BYTES, min(stop + -stop % BLOCK_BYTES, size)

    def _opened(self) -> OpenFile:
        if self._file is None:
            raise TierUnavailable("the reader is closed")
        return self._file


def sound(view: memoryview, sums: bytes, first_block: int) -> bool:
    """Whether the blocks in `view`, the first being number `first_block`, match their sums."""
    try:
        expected = block_sums(sums, first_block, -(-len(view) // BLOCK_BYTES))
    except IndexError:
        return False
    start = 0
    for one in expected:
        if xxhash.xxh3_64_intdigest(view[start : start + BLOCK_BYTES]) != one:
            return False
        start += BLOCK_BYTES
    return True
