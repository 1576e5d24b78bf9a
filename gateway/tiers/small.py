"""Small objects: taken in, and moved or dropped as their shard has to go.

A shard that has to go is emptied as a log is: what was read since it was written moves on to the
shard of what is worth keeping, the rest is dropped with the file.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import structlog
import xxhash

from gateway.errors import TierUnavailable
from gateway.index.held import HeldIndex, IndexLost
from gateway.index.records import (
    SmallRecord,
    Table,
    encode,
    extent_key,
    name_of,
    unpack_entries,
)
from gateway.model.objects import ObjectVersion, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.eviction import MAX_READS, Policy
from gateway.tiers.layout import shard_path
from gateway.tiers.notes import Notes
from gateway.tiers.open_files import DiskThreads, OpenFiles
from gateway.tiers.packed.growing import ShardLog
from gateway.tiers.regions import Regions
from gateway.tiers.room import Item, Room
from gateway.tiers.small_reading import ShardReader, SmallLookup, SmallReader

_MAX_COUNT = int(MAX_READS)
_SPENT = bytes(max(0, reads - 1) for reads in range(256))

log = structlog.get_logger()


class SmallStore:
    """The small objects of this node. `failed` hears of disk errors; `shards` are those found at
    the start."""

    def __init__(
        self,
        folder: Path,
        *,
        shard_bytes: int,
        index: HeldIndex,
        policy: Policy[Item],
        files: OpenFiles,
        regions: Regions,
        threads: DiskThreads,
        metrics: Metrics,
        failed: Callable[[OSError | IndexLost], None],
        shards: dict[int, int],
    ) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._index = index
        self._policy = policy
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._failed = failed
        self._sealed = set(shards)
        self._reads: dict[int, dict[int, bytearray]] = {}
        self._room: Room | None = None
        self._regions = regions
        self._lookup = SmallLookup(folder, index=index, files=files, regions=regions, owner=self)
        self.log = ShardLog(
            folder,
            shard_bytes=shard_bytes,
            last_shard=max(shards, default=0),
            index=index,
            threads=threads,
            metrics=metrics,
            sealed=self._seal,
            failed=failed,
        )

    def use(self, room: Room) -> None:
        """Tells where room is to be had; before anything else."""
        self._room = self.log.room = room

    @property
    def shards(self) -> int:
        """Shards on disk, those that still grow included."""
        return len(self._sealed) + len(self.log.growing)

    @property
    def sealed(self) -> int:
        """Shards that no longer grow."""
        return len(self._sealed)

    def is_read(self, shard: int) -> bool:
        """Whether somebody reads from the shard's file."""
        return self._lookup.is_read(shard)

    def open_now(self, span: Span) -> SmallReader | ShardReader | None:
        """As `open`, without waiting: None also where that would be needed."""
        member = self.log.buffered(span.version.digest)
        if member is None:
            return self._lookup.open_now(span)
        return SmallReader(member.data) if member.name == name_of(span.version) else None

    async def open(self, span: Span) -> SmallReader | ShardReader | None:
        """A reader of the object; None where it is not here."""
        if self.log.buffered(span.version.digest) is None:
            return await self._lookup.open(span)
        return self.open_now(span)

    def holds(self, span: Span) -> bool:
        """Whether the object is here."""
        digest = span.version.digest
        return self.log.buffered(digest) is not None or self._lookup.find(digest, span) is not None

    async def keep(self, span: Span, data: bytes) -> None:
        """Takes an object in. TierFull, TierUnavailable."""
        if self.holds(span):
            return
        digest = span.version.digest
        main = self._policy.wins(digest, len(data))
        await self.log.add(digest, name_of(span.version), data, main=main)

    def forget(self, version: ObjectVersion) -> None:
        """Drops an object; its bytes go with its shard."""
        digest = version.digest
        self.log.discard(digest)
        self._index.delete(Table.SMALL, digest)

    async def evict(self, shard: int, size_bytes: int, *, main: bool) -> None:
        """Moves on what was read of a shard that the policy no longer counts, and removes it.
        TierUnavailable where that fails."""
        if not await self._empty(shard, size_bytes // 2, main):
            log.warning("shard given up", shard=shard)
        self._sealed.discard(shard)
        self._reads.pop(shard, None)
        try:
            await self._threads.write(self._path(shard).unlink, True)
        except OSError as error:
            self._failed(error)
            raise TierUnavailable(f"an evicted shard cannot be removed: {error}") from error
        self._files.drop(shard, lambda: self._release(size_bytes))
        self._regions.forget(shard)
        if self._room is not None:
            self._room.evicted(size_bytes)

    def spend(self, shard: int) -> None:
        """The shard paid with a read for staying: so do its objects."""
        for extent, reads in self._reads.get(shard, {}).items():
            self._reads[shard][extent] = reads.translate(_SPENT)

    def note(self, notes: Notes) -> None:
        """Takes in what another process read here."""
        for digest, times in notes.small_reads.items():
            record = self._lookup.decode(digest)
            if record is not None and self.holds_shard(record.shard):
                self.read(digest, record, times)
        for digest, raw in notes.corrupt_small.items():
            record = self._lookup.decode(digest)
            if record is not None and encode(record) == raw:
                self.corrupt(digest, record, "as another process found it")

    # What reading brings to light (`SmallOwner`)
    def holds_shard(self, shard: int) -> bool:
        """Whether the shard counts among what is kept."""
        return shard in self._sealed or shard in self.log.growing

    def read(self, digest: bytes, record: SmallRecord, times: int = 1) -> None:
        """Counts a read of an object: for its name, and for its part of the shard."""
        self._policy.read(digest)
        counts = self._reads.setdefault(record.shard, {}).setdefault(record.extent, bytearray())
        if len(counts) <= record.ordinal:
            counts.extend(bytes(record.ordinal + 1 - len(counts)))
        times = min(times, _MAX_COUNT - counts[record.ordinal])
        if times > 0:
            counts[record.ordinal] += times
            self._policy.read(record.shard, times * record.size_bytes / self._shard_bytes)

    def stale(self, digest: bytes) -> None:
        """Drops an entry that is no good."""
        self._index.delete(Table.SMALL, digest)

    def corrupt(self, digest: bytes, record: SmallRecord, why: str) -> None:
        """Counts and drops an object that is not what was written."""
        if self._current(digest, record.shard, record.extent) != record:
            return
        self._metrics.cache_corrupt.inc()
        log.error("corrupt small object dropped", shard=record.shard, reason=why)
        self._index.delete(Table.SMALL, digest)

    def lost(self, digest: bytes, record: SmallRecord, error: OSError) -> None:
        """The object's shard cannot be opened: it was deleted, or the whole disk is gone."""
        self.corrupt(digest, record, str(error))
        if error.errno != errno.ENOENT or not self._folder.exists():
            self._failed(error)

    def _seal(self, shard: int, size_bytes: int, main: bool) -> None:
        self._sealed.add(shard)
        self._policy.add(shard, size_bytes, main=main)

    async def _empty(self, shard: int, budget_bytes: int, main: bool) -> bool:
        """Drops a shard's objects from the index, moving on those that were read, the most read
        first, as far as they fit. False where its list could not be followed to the end."""
        reads = self._reads.get(shard, {})
        number = 0
        while (raw := self._index.get(Table.EXTENTS, extent_key(shard, number))) is not None:
            counts = reads.get(number, bytearray())
            entries = list(enumerate(unpack_entries(raw)))
            entries.sort(key=lambda entry: -_count_of(counts, entry[0]))
            for ordinal, entry in entries:
                record = self._current(entry.digest, shard, number)
                if record is None:
                    continue
                data: bytes | bytearray | None = None
                if _count_of(counts, ordinal) and entry.size_bytes <= budget_bytes:
                    data = await self._rescue(record)
                # It may have been forgotten, or come in anew, while its bytes were read.
                if self._current(entry.digest, shard, number) is None:
                    continue
                if data is not None and self.log.move(entry.digest, record.name, bytes(data)):
                    budget_bytes -= entry.size_bytes
                else:
                    self._policy.evicted(entry.digest, entry.size_bytes, main=main)
                self._index.delete(Table.SMALL, entry.digest)
            self._index.delete(Table.EXTENTS, extent_key(shard, number))
            number += 1
            await asyncio.sleep(0)
            await self.log.ease()
        return number > 0

    async def _rescue(self, record: SmallRecord) -> bytes | bytearray | None:
        try:
            file = self._files.cached(record.shard) or await self._files.acquire(
                record.shard, self._path(record.shard)
            )
            try:
                data = await self._files.read(file, record.offset, record.size_bytes)
            finally:
                self._files.release(file)
        except (OSError, TierUnavailable):
            return None
        return data if xxhash.xxh3_64_intdigest(data) == record.sum else None

    def _current(self, digest: bytes, shard: int, number: int) -> SmallRecord | None:
        if self.log.buffered(digest) is not None:
            return None
        record = self._lookup.decode(digest)
        if record is None or (record.shard, record.extent) != (shard, number):
            return None
        return record

    def _path(self, shard: int) -> Path:
        return shard_path(self._folder, shard)

    def _release(self, size_bytes: int) -> None:
        if self._room is not None:
            self._room.release(size_bytes)


def _count_of(counts: bytearray, ordinal: int) -> int:
    return counts[ordinal] if ordinal < len(counts) else 0
