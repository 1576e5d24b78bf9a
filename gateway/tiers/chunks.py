"""Chunks of large objects: a file each, verified block by block at the read that serves them.

A chunk is written to a file without a name of its own (`staging.py`), gets its name by a rename
and counts from its entry in the index on. What breaks between the two is cleared at the next
start. Nothing is synced: a chunk that a power cut leaves half written does not match its
checksums and is fetched again.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import xxhash

from gateway.errors import Corrupt, TierUnavailable
from gateway.index.held import HeldIndex
from gateway.index.records import (
    BLOCK_BYTES,
    ChunkRecord,
    Table,
    block_sum,
    chunk_key,
    decode_chunk,
    encode,
    is_of,
    name_of,
    pack_sums,
)
from gateway.model.objects import ObjectVersion, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.eviction import Policy, Victim
from gateway.tiers.open_files import DiskThreads, OpenFile, OpenFiles
from gateway.tiers.protocol import FileRegion, TierName
from gateway.tiers.room import Item, Room, on_disk

_READ_BYTES = 1024**2
# Several reads of one chunk within this time are one use of it: a client that reads a large
# object in small ranges must not look like many clients.
_ONE_USE_SECONDS = 2.0
# Chunks of one version that are looked for when it is forgotten; the rest goes by eviction.
_MAX_FORGOTTEN = 4096

log = structlog.get_logger()


class ChunkStore:
    """The chunks of this node. `failed` hears of disk errors that are not one chunk's alone."""

    def __init__(
        self,
        folder: Path,
        *,
        chunk_bytes: int,
        index: HeldIndex,
        policy: Policy[Item],
        files: OpenFiles,
        threads: DiskThreads,
        metrics: Metrics,
        failed: Callable[[OSError], None],
        now: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._index = index
        self._policy = policy
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._failed = failed
        self._now = now
        self._readers: dict[bytes, int] = {}
        self._used_at: dict[bytes, float] = {}
        self._going: dict[bytes, asyncio.Task[bool]] = {}
        self.room: Room | None = None

    def path(self, key: bytes) -> Path:
        """Where the chunk with that key in the index lies."""
        return chunk_path(self._folder, key)

    def is_read(self, key: bytes) -> bool:
        """Whether somebody has a reader of the chunk open."""
        return key in self._readers

    def holds(self, span: Span) -> bool:
        """Whether the chunk is here."""
        return self._record(chunk_key(span.version.digest, span.number), span) is not None

    def open_now(self, span: Span) -> "ChunkReader | None":
        """As `open`, without waiting: None also where that would be needed."""
        key = chunk_key(span.version.digest, span.number)
        record = self._record(key, span)
        if record is None:
            return None
        file = self._files.cached(key)
        if file is None:
            return None
        self._pin(key)
        return self._reader(key, record, file)

    async def open(self, span: Span) -> "ChunkReader | None":
        """A reader of the chunk, or None where it is not here."""
        reader = self.open_now(span)
        if reader is not None:
            return reader
        key = chunk_key(span.version.digest, span.number)
        record = self._record(key, span)
        if record is None:
            return None
        self._pin(key)
        try:
            file = self._files.cached(key) or await self._files.acquire(key, self.path(key))
        except OSError as error:
            self._unpin(key)
            self._lost(key, error)
            return None
        except TierUnavailable:
            # It is here, but there is no descriptor to read it with just now.
            self._unpin(key)
            return None
        except BaseException:
            self._unpin(key)
            raise
        return self._reader(key, record, file)

    async def publish(self, staged: Path, span: Span, sums: list[int]) -> bool:
        """Gives a staged file the span's name; False where the span is here already (then the
        file is left to the caller). OSError where the disk refuses."""
        key = chunk_key(span.version.digest, span.number)
        going = self._going.get(key)
        if going is not None:
            await asyncio.shield(going)
        if self.holds(span):
            return False
        await self._threads.write(staged.replace, self.path(key))
        if key in self._policy:
            # Someone else published the same bytes meanwhile; ours took their place.
            old_bytes = self._policy.remove(key)
            self._files.drop(key, lambda: self._give_back(old_bytes))
        self._files.rename(staged, key)
        record = ChunkRecord(name_of(span.version), span.size_bytes, pack_sums(sums))
        self._index.put(Table.CHUNKS, key, encode(record))
        self._policy.add(key, on_disk(span.size_bytes))
        # The reads that waited for it are one use with its coming.
        self._used_at[key] = self._now()
        return True

    async def evict(self, victims: Sequence[Victim[Item]]) -> None:
        """Removes chunks that the policy no longer counts. TierUnavailable where that fails."""
        going = [
            self._let_go(victim.item, victim.size_bytes)
            for victim in victims
            if isinstance(victim.item, bytes)
        ]
        gone = await asyncio.gather(*going)
        self._metrics.evicted_bytes.inc(
            sum(victim.size_bytes for victim, done in zip(victims, gone, strict=True) if done)
        )
        if not all(gone):
            raise TierUnavailable("what was evicted could not be removed from the disk")

    def forget(self, version: ObjectVersion) -> None:
        """Lets go of the chunks of a version that nobody will ask for again."""
        digest = version.digest
        count = -(-version.size_bytes // self._chunk_bytes)
        for number in range(min(count, _MAX_FORGOTTEN)):
            self.drop(chunk_key(digest, number))

    def drop(self, key: bytes) -> None:
        """Lets go of one chunk, if it is here."""
        if key in self._policy:
            self._let_go(key, self._policy.remove(key))

    def corrupt(self, key: bytes, record: ChunkRecord, why: str) -> None:
        """Counts and drops a chunk that is not what was written."""
        if self._index.get(Table.CHUNKS, key) != encode(record):
            return
        self._metrics.cache_corrupt.inc()
        log.error("corrupt chunk dropped", path=str(self.path(key)), reason=why)
        self.drop(key)

    def close_reader(self, key: bytes, file: OpenFile) -> None:
        """Ends what `open` began."""
        self._files.release(file)
        self._unpin(key)

    def read_now(self, file: OpenFile, offset: int, size_bytes: int) -> bytearray | None:
        """As `read`, without waiting: None where that would be needed."""
        return self._files.read_now(file, offset, size_bytes)

    async def read(self, file: OpenFile, offset: int, size_bytes: int) -> bytes:
        """Bytes of a chunk's file as they are, unverified, read by a thread. OSError."""
        return await self._files.read_in_thread(file, offset, size_bytes)

    async def settle(self) -> None:
        """Waits until what was let go of is off the disk."""
        while self._going:
            await asyncio.gather(*self._going.values())

    def _record(self, key: bytes, span: Span) -> ChunkRecord | None:
        raw = self._index.get(Table.CHUNKS, key)
        if raw is None or key not in self._policy:
            return None
        try:
            record = decode_chunk(raw)
        except msgspec.MsgspecError:
            self.drop(key)
            return None
        return record if is_of(record, span) else None

    def _lost(self, key: bytes, error: OSError) -> None:
        """A chunk's file cannot be opened: it was deleted, or the whole disk is gone."""
        self._metrics.cache_corrupt.inc()
        log.error("chunk cannot be opened", path=str(self.path(key)), reason=str(error))
        self.drop(key)
        if error.errno != errno.ENOENT or not self._folder.exists():
            self._failed(error)

    def _let_go(self, key: bytes, size_bytes: int) -> "asyncio.Task[bool]":
        self._index.delete(Table.CHUNKS, key)
        self._used_at.pop(key, None)
        task = asyncio.create_task(self._remove(key, size_bytes))
        self._going[key] = task
        task.add_done_callback(lambda _: self._going.pop(key))
        return task

    async def _remove(self, key: bytes, size_bytes: int) -> bool:
        try:
            await self._threads.write(self.path(key).unlink, True)
        except OSError as error:
            # Its bytes still are on the disk and stay counted; the next start clears them.
            self._failed(error)
            return False
        self._files.drop(key, lambda: self._give_back(size_bytes))
        return True

    def _give_back(self, size_bytes: int) -> None:
        if self.room is not None:
            self.room.release(size_bytes)

    def _reader(self, key: bytes, record: ChunkRecord, file: OpenFile) -> "ChunkReader":
        now = self._now()
        if now - self._used_at.get(key, -_ONE_USE_SECONDS) >= _ONE_USE_SECONDS:
            self._used_at[key] = now
            self._policy.read(key)
        return ChunkReader(self, key, record, file)

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

    def __init__(self, store: ChunkStore, key: bytes, record: ChunkRecord, file: OpenFile) -> None:
        self._store = store
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
        assert self._file is not None  # noqa: S101 - `read_now` has seen to it
        stop, first, last = self._touched(offset, limit_bytes)
        try:
            block = await self._store.read(self._file, first, last - first)
        except OSError as error:
            raise self._unreadable(error) from error
        return self._verified(block, first, last)[offset - first : stop - first]

    def read_now(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        """As `SpanReader.read_now`."""
        if self._file is None:
            raise TierUnavailable("the reader is closed")
        stop, first, last = self._touched(offset, limit_bytes)
        if offset >= stop:
            return b""
        try:
            block = self._store.read_now(self._file, first, last - first)
        except OSError as error:
            raise self._unreadable(error) from error
        if block is None:
            return None
        return self._verified(block, first, last)[offset - first : stop - first]

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:  # noqa: ARG002
        """As `SpanReader.region`."""
        return None

    async def close(self) -> None:
        """Lets go of what was pinned. Safe to call twice."""
        self.release()

    def release(self) -> None:
        """As `close`."""
        file, self._file = self._file, None
        if file is not None:
            self._store.close_reader(self._key, file)

    def _touched(self, offset: int, limit_bytes: int) -> tuple[int, int, int]:
        """Where the read ends, and the whole blocks around it."""
        size = self._record.size_bytes
        stop = min(offset + min(limit_bytes, _READ_BYTES), size)
        return stop, offset - offset % BLOCK_BYTES, min(stop + -stop % BLOCK_BYTES, size)

    def _verified(self, block: bytes | bytearray, first: int, last: int) -> memoryview:
        view = memoryview(block)
        if len(view) != last - first or not sound(view, self._record.sums, first // BLOCK_BYTES):
            self._store.corrupt(self._key, self._record, "checksum")
            raise Corrupt("a kept chunk does not match its checksums")
        return view

    def _unreadable(self, error: OSError) -> Corrupt:
        self._store.corrupt(self._key, self._record, str(error))
        return Corrupt(f"a kept chunk cannot be read: {error}")


def chunk_path(folder: Path, key: bytes) -> Path:
    """Where the chunk with that key in the index lies under the cache's folder."""
    name = key[:16].hex()
    return folder / "chunks" / name[:2] / f"{name}.{int.from_bytes(key[16:], 'big')}"


def sound(view: memoryview, sums: bytes, first_block: int) -> bool:
    """Whether the blocks in `view`, the first being number `first_block`, match their sums."""
    try:
        return all(
            xxhash.xxh3_64_intdigest(view[start : start + BLOCK_BYTES])
            == block_sum(sums, first_block + start // BLOCK_BYTES)
            for start in range(0, len(view), BLOCK_BYTES)
        )
    except IndexError:
        return False
