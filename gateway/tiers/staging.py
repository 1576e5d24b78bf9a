"""Chunk files while they grow: written in order, readable meanwhile, named only at the end.

What an upload brings is appended through the page cache (`SpanWriter`); what a fill brings lands in
memory first (`landing.py`).
"""

import asyncio
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

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
        # Whether the file system takes writes past the page cache, until it says that it does not.
        self.direct = True
        self.room = room
        self.store = store
        self.files = files
        self.threads = threads
        self.failed = failed

    async def begin(self, size_bytes: int) -> "SpanWriter":
        """A new file with room for `size_bytes`. TierFull, TierUnavailable."""
        return SpanWriter(self, *await self.reserve(size_bytes))

    async def reserve(self, size_bytes: int) -> tuple[Path, int]:
        """Takes room for a file of `size_bytes`: where it is to grow, and what was reserved for
        it. `ended` gives the room back. TierFull, TierUnavailable."""
        reserved = on_disk(size_bytes)
        if self.growing_bytes + reserved > self._limit_bytes:
            raise TierFull("half the cache is being filled already")
        self.growing_bytes += reserved
        try:
            await self.room.reserve(reserved)
        except BaseException:
            self.growing_bytes -= reserved
            raise
        return self._folder / f"{next(self._numbers)}.chunk", reserved

    def unkept(self, error: OSError) -> None:
        """Counts a chunk that is lost to a disk error."""
        self._metrics.cache_unkept.labels(reason_of(error)).inc()

    def ended(self, reserved_bytes: int, kept_bytes: int) -> None:
        """A file got its name (and keeps `kept_bytes`), or is gone (0)."""
        self.growing_bytes -= reserved_bytes
        self.room.release(reserved_bytes - kept_bytes)


class GrowingFile:
    """A file on its way to becoming a chunk. After TierFull or TierUnavailable only `discard` is of
    use."""

    def __init__(self, staging: Staging, path: Path, reserved_bytes: int) -> None:
        self._staging = staging
        self._path = path
        self._reserved_bytes = reserved_bytes
        # What a thread or a task does to the file just now.
        self._running: asyncio.Future[Any] | None = None
        self._naming = False
        self._over = False
        self._dead = False

    async def discard(self) -> None:
        """Removes the file. Safe after anything, and twice."""
        self._dead = True
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
        if self._over:
            return
        self._over = True
        removing = asyncio.create_task(self._remove())
        await asyncio.shield(removing)

    def _check(self) -> None:
        """TierUnavailable where the file is of no use any more."""
        if self._naming or self._over or self._dead or self._staging.closed:
            raise TierUnavailable("the chunk was given up")

    async def _read_file(self, offset: int, size_bytes: int) -> bytes:
        """Exactly these bytes, which are in the file. TierUnavailable also at the moment when the
        file gets its name."""
        file = await self._open(os.O_RDWR)
        try:
            block = await self._staging.files.read(file, offset, size_bytes)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._staging.files.release(file)
            if self._over:
                # It was opened under a name that it has no more.
                self._staging.files.drop(self._path)
        if len(block) != size_bytes:
            raise TierUnavailable("a growing chunk was cut short")
        return bytes(block)

    async def _publish(self, span: Span, sums: list[int]) -> None:
        """Gives the file the span's name; drops it where the span is held already. TierFull,
        TierUnavailable where the disk refuses."""
        self._check()
        self._naming = True
        # Once begun it is done to the end: a file is either staged or published.
        naming = asyncio.create_task(self._name(span, sums))
        self._running = naming
        try:
            published = await asyncio.shield(naming)
        except OSError as error:
            raise self._failure(error) from error
        if not published:
            await self.discard()

    async def _name(self, span: Span, sums: list[int]) -> bool:
        published = await self._staging.store.publish(self._path, span, sums)
        if published:
            self._over = True
            self._staging.ended(self._reserved_bytes, on_disk(span.size_bytes))
        return published

    async def _remove(self) -> None:
        try:
            await self._staging.threads.write(self._unlink)
        except OSError as error:
            self._staging.failed(error)
            return
        self._staging.files.drop(self._path, lambda: self._staging.ended(self._reserved_bytes, 0))

    def _unlink(self) -> None:
        """In a thread."""
        self._path.unlink(missing_ok=True)

    async def _open(self, flags: int) -> OpenFile:
        self._check()
        try:
            return await self._staging.files.acquire(self._path, self._path, flags)
        except OSError as error:
            if self._naming:
                raise TierUnavailable("the chunk is getting its name") from error
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> TierFull | TierUnavailable:
        self._dead = True
        self._staging.failed(error)
        self._staging.unkept(error)
        if is_full(error):
            return TierFull(f"the cache disk is full: {error}")
        return TierUnavailable(f"the cache disk fails: {error}")


class SpanWriter(GrowingFile):
    """A chunk file that is appended to, block by block."""

    def __init__(self, staging: Staging, path: Path, reserved_bytes: int) -> None:
        super().__init__(staging, path, reserved_bytes)
        self._sums: list[int] = []
        self._block = xxhash.xxh3_64()
        self._block_bytes = 0
        self.size_bytes = 0

    async def append(self, data: bytes | memoryview) -> None:
        """Adds bytes at the end. TierFull, TierUnavailable where the disk refuses; ValueError
        beyond what was begun for."""
        if self.size_bytes + len(data) > self._reserved_bytes:
            raise ValueError("more bytes than the chunk was begun for")
        file = await self._open(os.O_RDWR | os.O_CREAT)
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
        return await self._read_file(offset, size_bytes) if size_bytes > 0 else b""

    async def commit(self, span: Span) -> None:
        """Gives the file the span's name. Nothing where the span is held already. ValueError
        where the sizes differ; TierFull, TierUnavailable where the disk refuses."""
        if span.size_bytes != self.size_bytes:
            raise ValueError("the chunk is not the span's size")
        sums = [*self._sums, self._block.intdigest()] if self._block_bytes else self._sums
        await self._publish(span, sums)

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
