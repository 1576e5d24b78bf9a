"""Chunk files while they grow: written in order, readable meanwhile, named only at the end."""

import asyncio
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import xxhash

from gateway.errors import TierFull, TierUnavailable
from gateway.index.records import BLOCK_BYTES
from gateway.model.objects import Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.chunks import ChunkStore
from gateway.tiers.health import is_full, reason_of
from gateway.tiers.open_files import DiskThreads, OpenFile, OpenFiles
from gateway.tiers.room import Room, on_disk


class Staging:
    """Begins chunk files. What grows at one time takes at most half the cache, so that a giant
    upload cannot push out everything else only to be too large in the end."""

    def __init__(
        self,
        folder: Path,
        *,
        room: Room,
        store: ChunkStore,
        files: OpenFiles,
        threads: DiskThreads,
        failed: Callable[[OSError], None],
        metrics: Metrics,
    ) -> None:
        self._folder = folder / "tmp"
        self._metrics = metrics
        self._numbers = count()
        self._limit_bytes = room.capacity_bytes // 2
        self.growing_bytes = 0
        self.closed = False
        self.room = room
        self.store = store
        self.files = files
        self.threads = threads
        self.failed = failed

    async def begin(self, size_bytes: int) -> "SpanWriter":
        """A new file with room for `size_bytes`. TierFull, TierUnavailable."""
        reserved = on_disk(size_bytes)
        if self.growing_bytes + reserved > self._limit_bytes:
            raise TierFull("half the cache is being filled already")
        self.growing_bytes += reserved
        try:
            await self.room.reserve(reserved)
        except BaseException:
            self.growing_bytes -= reserved
            raise
        return SpanWriter(self, self._folder / f"{next(self._numbers)}.chunk", reserved)

    def unkept(self, error: OSError) -> None:
        """Counts a chunk that is lost to a disk error."""
        self._metrics.cache_unkept.labels(reason_of(error)).inc()

    def ended(self, reserved_bytes: int, kept_bytes: int) -> None:
        """A file got its name (and keeps `kept_bytes`), or is gone (0)."""
        self.growing_bytes -= reserved_bytes
        self.room.release(reserved_bytes - kept_bytes)


class SpanWriter:
    """A growing chunk file. After TierFull or TierUnavailable only `discard` is of use."""

    def __init__(self, staging: Staging, path: Path, reserved_bytes: int) -> None:
        self._staging = staging
        self._path = path
        self._reserved_bytes = reserved_bytes
        self._sums: list[int] = []
        self._block = xxhash.xxh3_64()
        self._block_bytes = 0
        self._running: asyncio.Future[int] | asyncio.Task[bool] | None = None
        self._over = False
        self._dead = False
        self.size_bytes = 0

    async def append(self, data: bytes | memoryview) -> None:
        """Adds bytes at the end. TierFull, TierUnavailable where the disk refuses; ValueError
        beyond what was begun for."""
        if self.size_bytes + len(data) > self._reserved_bytes:
            raise ValueError("more bytes than the chunk was begun for")
        file = await self._open()
        writing = self._staging.threads.write(
            self._write, file.descriptor, memoryview(data), self.size_bytes
        )
        writing.add_done_callback(lambda _: self._staging.files.release(file))
        self._running = writing
        try:
            await asyncio.shield(writing)
        except OSError as error:
            raise self._failure(error) from error
        except BaseException:
            # The file is of unknown length now.
            self._dead = True
            raise
        self.size_bytes += len(data)

    async def read(self, offset: int, limit_bytes: int) -> bytes:
        """1 to `limit_bytes` of what was already appended; b"" past it."""
        size_bytes = min(limit_bytes, self.size_bytes - offset)
        if size_bytes <= 0:
            return b""
        file = await self._open()
        try:
            block = await self._staging.files.read(file, offset, size_bytes)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._staging.files.release(file)
        if len(block) != size_bytes:
            raise TierUnavailable("a growing chunk was cut short")
        return bytes(block)

    async def commit(self, span: Span) -> None:
        """Gives the file the span's name. Nothing where the span is held already. ValueError
        where the sizes differ; TierFull, TierUnavailable where the disk refuses."""
        if span.size_bytes != self.size_bytes:
            raise ValueError("the chunk is not the span's size")
        if self._over or self._dead or self._staging.closed:
            raise TierUnavailable("the chunk was given up")
        # Once begun it is done to the end: a file is either staged or published.
        publishing = asyncio.create_task(self._publish(span))
        self._running = publishing
        try:
            published = await asyncio.shield(publishing)
        except OSError as error:
            raise self._failure(error) from error
        if not published:
            await self.discard()

    async def discard(self) -> None:
        """Removes the file. Safe after anything, and twice."""
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._over:
            return
        self._over = True
        removing = asyncio.create_task(self._remove())
        await asyncio.shield(removing)

    async def _publish(self, span: Span) -> bool:
        sums = [*self._sums, self._block.intdigest()] if self._block_bytes else self._sums
        published = await self._staging.store.publish(self._path, span, sums)
        if published:
            self._over = True
            self._staging.ended(self._reserved_bytes, on_disk(self.size_bytes))
        return published

    async def _remove(self) -> None:
        try:
            await self._staging.threads.write(self._path.unlink, True)
        except OSError as error:
            self._staging.failed(error)
            return
        self._staging.files.drop(self._path, lambda: self._staging.ended(self._reserved_bytes, 0))

    async def _open(self) -> OpenFile:
        if self._over or self._dead or self._staging.closed:
            raise TierUnavailable("the chunk was given up")
        try:
            return await self._staging.files.acquire(self._path, self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._failure(error) from error

    def _write(self, descriptor: int, data: memoryview, offset: int) -> int:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
        while data:
            piece = data[: BLOCK_BYTES - self._block_bytes]
            self._block.update(piece)
            self._block_bytes += len(piece)
            data = data[len(piece) :]
            if self._block_bytes == BLOCK_BYTES:
                self._sums.append(self._block.intdigest())
                self._block = xxhash.xxh3_64()
                self._block_bytes = 0
        return written

    def _failure(self, error: OSError) -> TierFull | TierUnavailable:
        self._dead = True
        self._staging.failed(error)
        self._staging.unkept(error)
        if is_full(error):
            return TierFull(f"the cache disk is full: {error}")
        return TierUnavailable(f"the cache disk fails: {error}")
