"""Chunks of large objects: taken in, evicted, dropped where they are not what was written.

A chunk is written to a file without a name of its own (`staging.py`), gets its name by a rename
and counts from its entry in the index on. What breaks between the two is cleared at the next
start. Nothing is synced: a chunk that a power cut leaves half written does not match its
checksums and is fetched again (`chunk_reading.py`).
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from gateway.errors import TierUnavailable
from gateway.index.held import HeldIndex
from gateway.index.records import ChunkRecord, Table, chunk_key, encode, name_of, pack_sums
from gateway.model.objects import ObjectVersion, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.chunk_reading import ChunkLookup, ChunkReader
from gateway.tiers.eviction import Policy, Victim
from gateway.tiers.layout import chunk_path
from gateway.tiers.notes import Notes
from gateway.tiers.open_files import DiskThreads, OpenFile, OpenFiles
from gateway.tiers.regions import Regions
from gateway.tiers.room import Item, Room, on_disk

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
        regions: Regions,
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
        self._regions = regions
        self._lookup = ChunkLookup(
            folder, index=index, files=files, regions=regions, owner=self, now=now
        )
        self._going: dict[bytes, asyncio.Task[bool]] = {}
        self.room: Room | None = None

    def path(self, key: bytes) -> Path:
        """Where the chunk with that key in the index lies."""
        return chunk_path(self._folder, key)

    def is_read(self, key: bytes) -> bool:
        """Whether somebody has a reader of the chunk open."""
        return self._lookup.is_read(key)

    def holds(self, span: Span) -> bool:
        """Whether the chunk is here."""
        return self._lookup.find(chunk_key(span.version.digest, span.number), span) is not None

    def open_now(self, span: Span) -> ChunkReader | None:
        """As `open`, without waiting: None also where that would be needed."""
        return self._lookup.open_now(span)

    async def open(self, span: Span) -> ChunkReader | None:
        """A reader of the chunk, or None where it is not here."""
        return await self._lookup.open(span)

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
        self._lookup.forget(key)
        file = self._files.cached(key)
        if file is not None:
            self._regions.written(file, key, span.size_bytes)
            self._files.release(file)
        record = ChunkRecord(name_of(span.version), span.size_bytes, pack_sums(sums))
        self._index.put(Table.CHUNKS, key, encode(record))
        self._policy.add(key, on_disk(span.size_bytes))
        # The reads that waited for it are one use with its coming.
        self._lookup.is_new_use(key)
        return True

    async def evict(self, victims: Sequence[Victim[Item]]) -> None:
        """Removes chunks that the policy no longer counts. TierUnavailable where that fails."""
        going = [
            self._let_go(victim.item, victim.size_bytes)
            for victim in victims
            if isinstance(victim.item, bytes)
        ]
        gone = await asyncio.gather(*going)
        if self.room is not None:
            self.room.evicted(
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

    def note(self, notes: Notes) -> None:
        """Takes in what another process read here."""
        for key, times in notes.chunk_uses.items():
            if self._lookup.is_new_use(key):
                self._policy.read(key, times)
        for key, inode in notes.corrupt_chunks.items():
            try:
                current = self.path(key).stat().st_ino == inode
            except OSError:
                continue
            if current and key in self._policy:
                self._drop_corrupt(key, "checksum, as another process found it")

    # What reading brings to light (`ChunkOwner`)
    def holds_chunk(self, key: bytes) -> bool:
        """Whether the chunk counts among what is kept."""
        return key in self._policy

    def used(self, key: bytes) -> None:
        """Counts a use of a chunk."""
        self._policy.read(key)

    def stale(self, key: bytes) -> None:
        """Drops a chunk whose entry cannot be read."""
        self.drop(key)

    def corrupt(self, key: bytes, record: ChunkRecord, file: OpenFile, why: str) -> None:  # noqa: ARG002 - other owners ask which file
        """Counts and drops a chunk that is not what was written."""
        if self._index.get(Table.CHUNKS, key) == encode(record):
            self._drop_corrupt(key, why)

    def lost(self, key: bytes, error: OSError) -> None:
        """A chunk's file cannot be opened: it was deleted, or the whole disk is gone."""
        if key not in self._policy:
            # It was let go of while it was being opened.
            return
        self._metrics.cache_corrupt.inc()
        log.error("chunk cannot be opened", path=str(self.path(key)), reason=str(error))
        self.drop(key)
        if error.errno != errno.ENOENT or not self._folder.exists():
            self._failed(error)

    async def settle(self) -> None:
        """Waits until what was let go of is off the disk."""
        while self._going:
            await asyncio.gather(*self._going.values())

    def _drop_corrupt(self, key: bytes, why: str) -> None:
        self._metrics.cache_corrupt.inc()
        log.error("corrupt chunk dropped", path=str(self.path(key)), reason=why)
        self.drop(key)

    def _let_go(self, key: bytes, size_bytes: int) -> "asyncio.Task[bool]":
        self._index.delete(Table.CHUNKS, key)
        self._lookup.forget(key)
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
