"""Shards that grow: small objects gathered into extents, extents appended to a shard file.

An object waits in memory until its extent is full or half a second old, is served from there
meanwhile, and counts from its entry in the index on. Two shards grow at a time: one takes what is
new, the other what has proved its worth.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import xxhash

from gateway.errors import TierUnavailable
from gateway.index.held import HeldIndex, IndexLost, translated
from gateway.index.records import (
    ExtentEntry,
    Name,
    SmallRecord,
    Table,
    encode,
    extent_key,
    pack_entries,
)
from gateway.telemetry.metrics import Metrics
from gateway.tiers.layout import shard_path
from gateway.tiers.open_files import DiskThreads
from gateway.tiers.room import Room, on_disk
from packer.format import EXTENT_BYTES, ExtentBuilder, Located, ShardError, ShardWriter, file_bytes

_FLUSH_SECONDS = 0.5
# What may wait for the disk before whoever brings more has to wait too.
_MAX_WAITING_BYTES = 16 * 1024**2


class Member:
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
        self.members: list[Member] = []
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


class ShardLog:
    """Appends small objects. `sealed` hears of every shard that grows no more: its number, its
    size, and whether it holds what is worth keeping; `failed` hears of disk errors."""

    def __init__(
        self,
        folder: Path,
        *,
        shard_bytes: int,
        last_shard: int,
        index: HeldIndex,
        threads: DiskThreads,
        metrics: Metrics,
        sealed: Callable[[int, int, bool], None],
        failed: Callable[[OSError | IndexLost], None],
    ) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._extent_bytes = min(EXTENT_BYTES, shard_bytes // 4)
        self._last_shard = last_shard
        self._index = index
        self._threads = threads
        self._metrics = metrics
        self._sealed = sealed
        self._failed = failed
        self._buffered: dict[bytes, Member] = {}
        self._streams = (_Stream(main=False), _Stream(main=True))
        self._queue: list[tuple[_Stream, _Extent]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._flushed = asyncio.Event()
        # Held while a shard that grows is written or ended.
        self._writing = asyncio.Lock()
        self.room: Room | None = None

    @property
    def growing(self) -> list[int]:
        """The shards that grow now."""
        return [stream.shard for stream in self._streams if stream.writer is not None]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of whole extents that are not on disk yet."""
        return sum(extent.builder.size_bytes for _, extent in self._queue)

    def buffered(self, digest: bytes) -> Member | None:
        """The object, while it is not on disk yet."""
        return self._buffered.get(digest)

    def discard(self, digest: bytes) -> None:
        """Forgets an object that is not on disk yet."""
        self._buffered.pop(digest, None)

    async def add(self, digest: bytes, name: Name, data: bytes, *, main: bool) -> None:
        """Takes an object in, making room for it. TierFull, TierUnavailable."""
        stream = self._streams[main]
        while stream.extent is None or not stream.extent.builder.fits(len(data)):
            if stream.extent is not None:
                self._close_extent(stream)
            async with stream.lock:
                if stream.extent is None:
                    await self._begin_extent(stream, len(data))
        if digest not in self._buffered:
            self._add(stream, digest, name, data)

    def move(self, digest: bytes, name: Name, data: bytes) -> bool:
        """Takes in an object whose shard is about to go; False where there is no room."""
        stream = self._streams[True]
        if stream.extent is not None and not stream.extent.builder.fits(len(data)):
            self._close_extent(stream)
        if stream.extent is None:
            reserved = file_bytes(max(self._extent_bytes, len(data)))
            if self.room is None or not self.room.try_headroom(reserved):
                return False
            self._new_extent(stream, reserved)
        self._add(stream, digest, name, data)
        return True

    async def ease(self) -> None:
        """Returns once not too much waits in memory."""
        while self.waiting_bytes >= _MAX_WAITING_BYTES:
            self._flushed.clear()
            await self._flushed.wait()

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

    async def _begin_extent(self, stream: _Stream, size_bytes: int) -> None:
        await self.ease()
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
        member = Member(digest, name, data, xxhash.xxh3_64_intdigest(data), offset)
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
                try:
                    async with self._writing:
                        await self._flush_one(stream, extent)
                finally:
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
            path = self._path(stream.shard)
            try:
                stream.writer = ShardWriter(path, self._shard_bytes + extent.reserved_bytes)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        number = stream.writer.append(extent.builder.value())
        return number, stream.writer.commit()[0]

    def _enter(self, shard: int, number: int, offset: int, members: list[Member]) -> None:
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
        if stream.writer is None:
            return
        await self._threads.write(stream.writer.close)
        # In one step, so that the shard is never neither growing nor sealed.
        stream.writer = None
        self._sealed(stream.shard, stream.file_bytes, stream.main)

    def _path(self, shard: int) -> Path:
        return shard_path(self._folder, shard)

    def _size(self, shard: int) -> int:
        try:
            return self._path(shard).stat().st_size
        except OSError as error:
            self._failed(error)
            return 0

    def _release(self, size_bytes: int) -> None:
        if self.room is not None:
            self.room.release(size_bytes)


def _as_failure(error: OSError | lmdb.Error | ShardError, path: Path) -> OSError | IndexLost:
    if isinstance(error, lmdb.Error):
        return translated(error, path)
    if isinstance(error, ShardError):
        return OSError(errno.EIO, str(error), str(path))
    return error
