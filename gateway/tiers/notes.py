"""What a process that only reads the cache tells the one that keeps it: what was read, so that it
is not evicted as unread, and what was not what was written, so that it is dropped.

Notes are gathered in bounded tables. What does not fit is lost, which costs the policy a little of
its sight; of what is corrupt the next read tells again.
"""

import os

import structlog
from msgspec import Struct

from gateway.index.records import ChunkRecord, SmallRecord, encode
from gateway.tiers.open_files import OpenFile

_LIMIT = 16_384

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


class SmallNotes:
    """Takes down what reading small objects brings to light (`SmallOwner`)."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self.reads: dict[bytes, int] = {}
        self.corrupted: dict[bytes, bytes] = {}

    def holds_shard(self, shard: int) -> bool:  # noqa: ARG002 - the file itself will tell
        """The index names what there is."""
        return True

    def read(self, digest: bytes, record: SmallRecord) -> None:  # noqa: ARG002 - found by digest
        """Takes down a read."""
        _count(self.reads, digest, self._limit)

    def stale(self, digest: bytes) -> None:
        """The keeper finds that by itself."""

    def corrupt(self, digest: bytes, record: SmallRecord, why: str) -> None:
        """Takes down an object that is not what was written."""
        if digest not in self.corrupted and len(self.corrupted) < self._limit:
            self.corrupted[digest] = encode(record)
            log.error("corrupt small object", shard=record.shard, reason=why)

    def lost(self, digest: bytes, record: SmallRecord, error: OSError) -> None:
        """Most likely its shard was just evicted; the keeper tells that from a fault."""


class ChunkNotes:
    """Takes down what reading chunks brings to light (`ChunkOwner`)."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self.uses: dict[bytes, int] = {}
        self.corrupted: dict[bytes, int] = {}

    def holds_chunk(self, key: bytes) -> bool:  # noqa: ARG002 - the file itself will tell
        """The index names what there is."""
        return True

    def used(self, key: bytes) -> None:
        """Takes down a use."""
        _count(self.uses, key, self._limit)

    def stale(self, key: bytes) -> None:
        """The keeper finds that by itself."""

    def corrupt(self, key: bytes, record: ChunkRecord, file: OpenFile, why: str) -> None:  # noqa: ARG002 - the same record may come again
        """Takes down a chunk that is not what was written."""
        if key not in self.corrupted and len(self.corrupted) < self._limit:
            self.corrupted[key] = os.fstat(file.descriptor).st_ino
            log.error("corrupt chunk", chunk=key.hex(), reason=why)

    def lost(self, key: bytes, error: OSError) -> None:
        """Most likely it was just evicted; the keeper tells that from a fault."""


class Notebook:
    """Both, and the notes taken of them."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self.small = SmallNotes(limit)
        self.chunks = ChunkNotes(limit)

    def take(self) -> Notes:
        """What was noted since the last time."""
        small, chunks = self.small, self.chunks
        notes = Notes(small.reads, chunks.uses, small.corrupted, chunks.corrupted)
        small.reads, small.corrupted = {}, {}
        chunks.uses, chunks.corrupted = {}, {}
        return notes


def _count(table: dict[bytes, int], key: bytes, limit: int) -> None:
    times = table.get(key)
    if times is not None:
        table[key] = times + 1
    elif len(table) < limit:
        table[key] = 1
