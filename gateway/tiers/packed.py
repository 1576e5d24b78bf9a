"""Small objects: bundled in extents, extents in shards, read by file offset.

An object waits in memory until its extent is full or half a second old, is served from there
meanwhile, and counts from its entry in the index on. Two shards grow at a time: one takes what is
new, the other what has proved its worth. A shard that has to go is emptied as a log is: what was
read since it was written moves on to the second kind, the rest is dropped with the file.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import msgspec
import structlog
import xxhash

from gateway.errors import TierUnavailable
from gateway.index.held import HeldIndex, IndexLost, translated
from gateway.index.records import (
    ExtentEntry,
    Name,
    SmallRecord,
    Table,
    decode_small,
    encode,
    extent_key,
    is_of,
    name_of,
    pack_entries,
    unpack_entries,
)
from gateway.model.objects import ObjectVersion, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.eviction import MAX_READS, Policy
from gateway.tiers.open_files import DiskThreads, OpenFiles
from gateway.tiers.protocol import TierName
from gateway.tiers.room import Item, Room, on_disk
from packer.format import EXTENT_BYTES, ExtentBuilder, Located, ShardError, ShardWriter, file_bytes

_FLUSH_SECONDS = 0.5
# Extents that may wait for the disk before whoever brings more has to wait too.
_MAX_WAITING = 16
_SPENT = bytes(max(0, reads - 1) for reads in range(256))

log = structlog.get_logger()


class _Member:
    """A small object that is not on disk yet."""

    __slots__ = ("data", "digest", "name", "offset", "sum")

    def __init__(self, digest: bytes, name: Name, data: bytes, sum_: int, offset: int) -> None:
        self.digest = digest
        self.name = name
        self.data = data
        self.sum = sum_
        self.offset = offset


class _Extent:
    """An extent on its way to disk, and the room that is reserved for it."""

    def __init__(self, target_bytes: int, reserved_bytes: int) -> None:
        self.builder = ExtentBuilder(target_bytes)
        self.members: list[_Member] = []
        self.reserved_bytes = reserved_bytes


class _Stream:
    """A shard that grows: of what is new, or (`main`) of what is worth keeping."""

    def __init__(self, main: bool) -> None:
        self.main = main
        self.lock = asyncio.Lock()
        self.extent: _Extent | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.shard = 0
        self.writer: ShardWriter | None = None
        self.file_bytes = 0


class PackedStore:
    """The small objects of this node. `failed` hears of disk errors."""

    def __init__(
        self,
        folder: Path,
        *,
        shard_bytes: int,
        index: HeldIndex,
        policy: Policy[Item],
        files: OpenFiles,
        threads: DiskThreads,
        metrics: Metrics,
        failed: Callable[[OSError | IndexLost], None],
        shards: dict[int, int],
    ) -> None:
        self._folder = folder / "shards"
        self._shard_bytes = shard_bytes
        self._extent_bytes = min(EXTENT_BYTES, shard_bytes // 4)
        self._index = index
        self._policy = policy
        self._files = files
        self._threads = threads
        self._metrics = metrics
        self._failed = failed
        self._sealed = set(shards)
        self._last_shard = max(shards, default=0)
        self._reads: dict[int, dict[int, bytearray]] = {}
        self._buffered: dict[bytes, _Member] = {}
        self._streams = (_Stream(main=False), _Stream(main=True))
        self._queue: list[tuple[_Stream, _Extent]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._flushed = asyncio.Event()
        # Held while a shard that grows is written or ended.
        self._writing = asyncio.Lock()
        self.room: Room | None = None

    @property
    def shards(self) -> int:
        """Shards on disk, those that still grow included."""
        return len(self._sealed) + sum(stream.writer is not None for stream in self._streams)

    @property
    def sealed(self) -> int:
        """Shards that no longer grow."""
        return len(self._sealed)

    async def open(self, span: Span) -> "SmallReader | None":
        """A reader of the object, already read and verified; None where it is not here."""
        digest = span.version.digest
        member = self._buffered.get(digest)
        if member is not None:
            return SmallReader(member.data) if member.name == name_of(span.version) else None
        record = self._record(digest, span)
        if record is None:
            return None
        try:
            file = self._files.cached(record.shard) or await self._files.acquire(
                record.shard, self._path(record.shard)
            )
        except OSError as error:
            self._lost(digest, record, error)
            return None
        try:
            data = await self._files.read(file, record.offset, record.size_bytes)
        except OSError as error:
            self._corrupt(digest, record, str(error))
            return None
        finally:
            self._files.release(file)
        if len(data) != record.size_bytes or xxhash.xxh3_64_intdigest(data) != record.sum:
            self._corrupt(digest, record, "checksum")
            return None
        self._count(record)
        return SmallReader(data)

    def holds(self, span: Span) -> bool:
        """Whether the object is here."""
        digest = span.version.digest
        return digest in self._buffered or self._record(digest, span) is not None

    async def keep(self, span: Span, data: bytes) -> None:
        """Takes an object in. TierFull, TierUnavailable."""
        if self.holds(span):
            return
        digest = span.version.digest
        stream = self._streams[self._policy.wins(digest, len(data))]
        while stream.extent is None or not stream.extent.builder.fits(len(data)):
            if stream.extent is not None:
                self._close_extent(stream)
            async with stream.lock:
                if stream.extent is None:
                    await self._begin_extent(stream, len(data))
            if digest in self._buffered:
                return
        self._add(stream, digest, name_of(span.version), data)

    def forget(self, version: ObjectVersion) -> None:
        """Drops an object; its bytes go with its shard."""
        digest = version.digest
        self._buffered.pop(digest, None)
        self._index.delete(Table.SMALL, digest)

    async def flush(self) -> None:
        """Brings everything that waits in memory to disk, or gives it up."""
        for stream in self._streams:
            self._close_extent(stream)
        while self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def seal(self) -> bool:
        """Ends the shards that grow, so that they can be evicted; whether there were any."""
        await self.flush()
        sealed = False
        for stream in self._streams:
            async with self._writing:
                if stream.writer is not None:
                    await self._seal(stream)
                    sealed = True
        return sealed

    async def evict(self, shard: int, size_bytes: int) -> None:
        """Moves on what was read of a shard that the policy no longer counts, and removes it.
        TierUnavailable where that fails."""
        if not await self._empty(shard, size_bytes // 2):
            log.warning("shard given up", shard=shard)
        self._sealed.discard(shard)
        self._reads.pop(shard, None)
        try:
            await self._threads.write(self._path(shard).unlink, True)
        except OSError as error:
            self._failed(error)
            raise TierUnavailable(f"an evicted shard cannot be removed: {error}") from error
        self._files.drop(shard, lambda: self._release(size_bytes))
        self._metrics.evicted_bytes.inc(size_bytes)

    def spend(self, shard: int) -> None:
        """The shard paid with a read for staying: so do its objects."""
        for extent, reads in self._reads.get(shard, {}).items():
            self._reads[shard][extent] = reads.translate(_SPENT)

    # Taking in
    async def _begin_extent(self, stream: _Stream, size_bytes: int) -> None:
        while len(self._queue) >= _MAX_WAITING:
            self._flushed.clear()
            await self._flushed.wait()
        reserved = file_bytes(max(self._extent_bytes, size_bytes))
        if self.room is None:
            raise TierUnavailable("the cache is not open")
        await self.room.reserve(reserved)
        if stream.extent is not None:
            # An eviction for this very room has begun one meanwhile.
            self.room.release(reserved)
            return
        self._new_extent(stream, reserved)

    def _new_extent(self, stream: _Stream, reserved_bytes: int) -> None:
        stream.extent = _Extent(self._extent_bytes, reserved_bytes)
        stream.timer = asyncio.get_running_loop().call_later(
            _FLUSH_SECONDS, self._close_extent, stream
        )

    def _add(self, stream: _Stream, digest: bytes, name: Name, data: bytes) -> None:
        extent = stream.extent
        assert extent is not None  # noqa: S101 - both callers made sure in the same step
        offset = extent.builder.add(data)
        member = _Member(digest, name, data, xxhash.xxh3_64_intdigest(data), offset)
        extent.members.append(member)
        self._buffered[digest] = member
        if extent.builder.size_bytes >= self._extent_bytes:
            self._close_extent(stream)

    def _close_extent(self, stream: _Stream) -> None:
        extent, stream.extent = stream.extent, None
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if extent is None:
            return
        self._queue.append((stream, extent))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_all())

    async def _flush_all(self) -> None:
        try:
            while self._queue:
                stream, extent = self._queue[0]
                async with self._writing:
                    await self._flush_one(stream, extent)
                del self._queue[0]
                self._flushed.set()
        finally:
            self._flushing = None

    async def _flush_one(self, stream: _Stream, extent: _Extent) -> None:
        wanted = [
            member for member in extent.members if self._buffered.get(member.digest) is member
        ]
        located: Located | None = None
        if wanted:
            try:
                number, located = await self._threads.write(self._write, stream, extent)
            except (OSError, lmdb.Error, ShardError) as error:
                self._metrics.cache_unkept.labels("error").inc(len(wanted))
                self._failed(_as_failure(error, self._folder))
        grown = 0
        if stream.writer is not None:
            size_bytes = on_disk(self._size(stream.shard))
            grown = size_bytes - stream.file_bytes
            stream.file_bytes = size_bytes
        self._release(extent.reserved_bytes - grown)
        if located is not None:
            self._enter(stream.shard, number, located.offset, wanted)
        for member in wanted:
            if self._buffered.get(member.digest) is member:
                del self._buffered[member.digest]
        if stream.writer is not None and (
            stream.file_bytes >= self._shard_bytes or (wanted and located is None)
        ):
            await self._seal(stream)

    def _write(self, stream: _Stream, extent: _Extent) -> tuple[int, Located]:
        if stream.writer is None:
            # Numbers are never used twice, so that an old entry cannot mean a new shard.
            self._last_shard = max(self._last_shard + 1, int(time.time()))
            stream.shard = self._last_shard
            stream.file_bytes = 0
            stream.writer = ShardWriter(
                self._path(stream.shard), self._shard_bytes + extent.reserved_bytes
            )
        number = stream.writer.append(extent.builder.value())
        return number, stream.writer.commit()[0]

    def _enter(self, shard: int, number: int, offset: int, members: list[_Member]) -> None:
        entries = []
        for ordinal, member in enumerate(members):
            entry = ExtentEntry(member.digest, offset + member.offset, len(member.data))
            entries.append(entry)
            if self._buffered.get(member.digest) is not member:
                continue
            record = SmallRecord(
                member.name, shard, number, ordinal, entry.offset, entry.size_bytes, member.sum
            )
            self._index.put(Table.SMALL, member.digest, encode(record))
        self._index.put(Table.EXTENTS, extent_key(shard, number), pack_entries(entries))

    async def _seal(self, stream: _Stream) -> None:
        writer, stream.writer = stream.writer, None
        if writer is None:
            return
        shard, size_bytes, stream.file_bytes = stream.shard, stream.file_bytes, 0
        self._sealed.add(shard)
        await self._threads.write(writer.close)
        self._policy.add(shard, size_bytes, main=stream.main)

    # Letting go
    async def _empty(self, shard: int, budget_bytes: int) -> bool:
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
                if data is not None and self._move(entry.digest, record, bytes(data)):
                    budget_bytes -= entry.size_bytes
                else:
                    self._policy.ghosts.add(entry.digest, entry.size_bytes)
                self._index.delete(Table.SMALL, entry.digest)
            self._index.delete(Table.EXTENTS, extent_key(shard, number))
            number += 1
            await asyncio.sleep(0)
        return number > 0

    def _move(self, digest: bytes, record: SmallRecord, data: bytes) -> bool:
        stream = self._streams[True]
        if stream.extent is not None and not stream.extent.builder.fits(len(data)):
            self._close_extent(stream)
        if stream.extent is None:
            reserved = file_bytes(max(self._extent_bytes, len(data)))
            if self.room is None or not self.room.try_headroom(reserved):
                return False
            self._new_extent(stream, reserved)
        self._add(stream, digest, record.name, data)
        return True

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
        if digest in self._buffered:
            return None
        record = self._decode(digest)
        if record is None or (record.shard, record.extent) != (shard, number):
            return None
        return record

    def _record(self, digest: bytes, span: Span) -> SmallRecord | None:
        record = self._decode(digest)
        if record is None or not is_of(record, span):
            return None
        if record.shard in self._sealed or any(
            stream.writer is not None and stream.shard == record.shard for stream in self._streams
        ):
            return record
        self._index.delete(Table.SMALL, digest)
        return None

    def _decode(self, digest: bytes) -> SmallRecord | None:
        raw = self._index.get(Table.SMALL, digest)
        if raw is None:
            return None
        try:
            return decode_small(raw)
        except msgspec.MsgspecError:
            self._index.delete(Table.SMALL, digest)
            return None

    def _count(self, record: SmallRecord) -> None:
        counts = self._reads.setdefault(record.shard, {}).setdefault(record.extent, bytearray())
        if len(counts) <= record.ordinal:
            counts.extend(bytes(record.ordinal + 1 - len(counts)))
        if counts[record.ordinal] < MAX_READS:
            counts[record.ordinal] += 1
            self._policy.read(record.shard, record.size_bytes / self._shard_bytes)

    def _corrupt(self, digest: bytes, record: SmallRecord, why: str) -> None:
        if self._current(digest, record.shard, record.extent) != record:
            return
        self._metrics.cache_corrupt.inc()
        log.error("corrupt small object dropped", shard=record.shard, reason=why)
        self._index.delete(Table.SMALL, digest)

    def _lost(self, digest: bytes, record: SmallRecord, error: OSError) -> None:
        self._corrupt(digest, record, str(error))
        if error.errno != errno.ENOENT or not self._folder.exists():
            self._failed(error)

    def _path(self, shard: int) -> Path:
        return shard_path(self._folder.parent, shard)

    def _size(self, shard: int) -> int:
        try:
            return self._path(shard).stat().st_size
        except OSError as error:
            self._failed(error)
            return 0

    def _release(self, size_bytes: int) -> None:
        if self.room is not None:
            self.room.release(size_bytes)


class SmallReader:
    """A whole small object in memory."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    @property
    def tier(self) -> TierName:
        return "disk"

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """As `SpanReader.read`."""
        if offset == 0 and limit_bytes >= len(self._data) and isinstance(self._data, bytes):
            return self._data
        return memoryview(self._data)[offset : offset + limit_bytes]

    async def close(self) -> None:
        """Nothing is pinned."""


def shard_path(folder: Path, shard: int) -> Path:
    """Where a shard lies under the cache's folder."""
    return folder / "shards" / f"{shard}.lmdb"


def _count_of(counts: bytearray, ordinal: int) -> int:
    return counts[ordinal] if ordinal < len(counts) else 0


def _as_failure(error: OSError | lmdb.Error | ShardError, path: Path) -> OSError | IndexLost:
    if isinstance(error, lmdb.Error):
        return translated(error, path)
    if isinstance(error, ShardError):
        return OSError(errno.EIO, str(error), str(path))
    return error
