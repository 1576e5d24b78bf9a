"""What a process that only reads the cache tells the one that keeps it: what was read, so that it
is not evicted as unread, and what was not what was written, so that it is dropped.

Notes are gathered in tables with a limit in bytes, since they are told in one message. What does
not fit is lost, which costs the policy a little of its sight; of what is corrupt the next read
tells again.
"""

import os
from typing import Generic, TypeVar

import structlog
from msgspec import Struct

from gateway.index.records import ChunkRecord, SmallRecord, encode
from gateway.tiers.open_files import OpenFile

# Of each table, as it is told: all four fit a frame of `s3/frames.py`.
_LIMIT_BYTES = 512 * 1024
# At most what MessagePack makes of an entry besides its key and value; of a number, all of it.
_ENTRY_BYTES = 16

_Value = TypeVar("_Value", int, bytes)

log = structlog.get_logger()


class Notes(Struct, frozen=True):
    """`small_reads` counts reads by digest, `chunk_uses` uses by key in the index. What is corrupt
    comes with what tells it from its successor: `corrupt_small` the record read, `corrupt_chunks`
    the inode."""

    small_reads: dict[bytes, int]
    chunk_uses: dict[bytes, int]
    corrupt_small: dict[bytes, bytes]
    corrupt_chunks: dict[bytes, int]

    def __bool__(self) -> bool:
        return bool(
            self.small_reads or self.chunk_uses or self.corrupt_small or self.corrupt_chunks
        )


class _Table(Generic[_Value]):
    """Values by key, as many as `limit_bytes` are enough to tell of."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self.entries: dict[bytes, _Value] = {}

    def add(self, key: bytes, value: _Value) -> bool:
        """Whether it is new and there was room."""
        size_bytes = len(key) + _ENTRY_BYTES + (len(value) if isinstance(value, bytes) else 0)
        if key in self.entries or self._size_bytes + size_bytes > self._limit_bytes:
            return False
        self._size_bytes += size_bytes
        self.entries[key] = value
        return True

    def take(self) -> dict[bytes, _Value]:
        taken, self.entries = self.entries, {}
        self._size_bytes = 0
        return taken


class SmallNotes:
    """Takes down what reading small objects brings to light (`SmallOwner`)."""

    def __init__(self, limit_bytes: int) -> None:
        self.reads = _Table[int](limit_bytes)
        self.corrupted = _Table[bytes](limit_bytes)

    def holds_shard(self, shard: int) -> bool:  # noqa: ARG002 - the file itself will tell
        """The index names what there is."""
        return True

    def read(self, digest: bytes, record: SmallRecord) -> None:  # noqa: ARG002 - found by digest
        """Takes down a read."""
        _count(self.reads, digest)

    def stale(self, digest: bytes) -> None:
        """The keeper finds that by itself."""

    def corrupt(self, digest: bytes, record: SmallRecord, why: str) -> None:
        """Takes down an object that is not what was written."""
        if self.corrupted.add(digest, encode(record)):
            log.error("corrupt small object", shard=record.shard, reason=why)

    def lost(self, digest: bytes, record: SmallRecord, error: OSError) -> None:
        """Most likely its shard was just evicted; the keeper tells that from a fault."""


class ChunkNotes:
    """Takes down what reading chunks brings to light (`ChunkOwner`)."""

    def __init__(self, limit_bytes: int) -> None:
        self.uses = _Table[int](limit_bytes)
        self.corrupted = _Table[int](limit_bytes)

    def holds_chunk(self, key: bytes) -> bool:  # noqa: ARG002 - the file itself will tell
        """The index names what there is."""
        return True

    def used(self, key: bytes) -> None:
        """Takes down a use."""
        _count(self.uses, key)

    def stale(self, key: bytes) -> None:
        """The keeper finds that by itself."""

    def corrupt(self, key: bytes, record: ChunkRecord, file: OpenFile, why: str) -> None:  # noqa: ARG002 - the same record may come again
        """Takes down a chunk that is not what was written."""
        if self.corrupted.add(key, os.fstat(file.descriptor).st_ino):
            log.error("corrupt chunk", chunk=key.hex(), reason=why)

    def lost(self, key: bytes, error: OSError) -> None:
        """Most likely it was just evicted; the keeper tells that from a fault."""


class Notebook:
    """Both, and the notes taken of them."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.small = SmallNotes(limit_bytes)
        self.chunks = ChunkNotes(limit_bytes)

    def take(self) -> Notes:
        """What was noted since the last time."""
        small, chunks = self.small, self.chunks
        return Notes(
            small.reads.take(), chunks.uses.take(), small.corrupted.take(), chunks.corrupted.take()
        )


def _count(table: _Table[int], key: bytes) -> None:
    times = table.entries.get(key)
    if times is not None:
        table.entries[key] = times + 1
    else:
        table.add(key, 1)
