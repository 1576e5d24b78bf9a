"""Where a fill's chunk lands: pieces of memory in front, the file behind.

The origin's bytes are received into pieces, readers are served out of them, and a thread sums and
writes each full piece while the next one fills. The write goes past the page cache (O_DIRECT): it
costs an eighth of the CPU where the pages would be fresh ones (docs/fill.md), and pushes nothing
out that is read more often than once. Where the file system does not know O_DIRECT, the same pieces
go through the page cache.
"""

import asyncio
import errno
import os
from pathlib import Path

import xxhash

from gateway.errors import TierFull, TierUnavailable
from gateway.index.records import BLOCK_BYTES
from gateway.model.objects import Span
from gateway.tiers.pieces import Piece, Pieces
from gateway.tiers.staging import GrowingFile, Staging

# Offsets and lengths of direct writes; the address is a page's already.
_ALIGN_BYTES = 4096


async def land(staging: Staging, pieces: Pieces, size_bytes: int) -> "Landing":
    """A chunk of `size_bytes` that is to come in, with room on the disk. TierFull,
    TierUnavailable."""
    path, reserved_bytes = await staging.reserve(size_bytes)
    return Landing(staging, path, reserved_bytes, pieces, size_bytes)


class Landing(GrowingFile):
    """A chunk that comes in. `received_bytes` only grows.

    After TierFull or TierUnavailable nothing more is taken in; what was received stays readable.
    """

    def __init__(
        self, staging: Staging, path: Path, reserved_bytes: int, pieces: Pieces, size_bytes: int
    ) -> None:
        super().__init__(staging, path, reserved_bytes)
        self.size_bytes = size_bytes
        self.received_bytes = 0
        self._pieces = pieces
        self._held: list[Piece] = []
        self._written_bytes = 0
        self._sums: list[int] = []
        self._descriptor: int | None = None
        self._direct = False
        self._error: TierFull | TierUnavailable | None = None

    async def space(self) -> memoryview:
        """Where the next bytes go: at least one, never past the chunk's end. Waits for memory;
        raises TierFull, TierUnavailable where the disk has refused what came before."""
        if self._error is not None:
            raise self._error
        self._check()
        piece_bytes = self._pieces.piece_bytes
        number, used_bytes = divmod(self.received_bytes, piece_bytes)
        if number == len(self._held):
            self._held.append(Piece(await self._pieces.take()))
        memory = self._held[number].memory
        assert memory is not None  # noqa: S101 - only what is written is ever taken back
        return memory[used_bytes : self.size_bytes - number * piece_bytes]

    def received(self, size_bytes: int) -> None:
        """Tells that the next `size_bytes` are in the space given; full pieces go to the disk."""
        self.received_bytes += size_bytes
        if self._running is None:
            self._write_on()

    def read_now(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        """1 to `limit_bytes` of what was received, out of memory; None where there are none."""
        number, start = divmod(offset, self._pieces.piece_bytes)
        size_bytes = min(limit_bytes, self.received_bytes - offset)
        memory = self._held[number].memory if size_bytes > 0 else None
        if memory is None:
            return None
        view = memory[start : start + size_bytes]
        # A client may be slow to take it, and would keep a whole piece from the next fill.
        return view if self._pieces.ample else bytes(view)

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """1 to `limit_bytes` of what was received; b"" past it. TierUnavailable."""
        view = self.read_now(offset, limit_bytes)
        if view is not None:
            return view
        size_bytes = min(limit_bytes, self._written_bytes - offset)
        return await self._read_file(offset, size_bytes) if size_bytes > 0 else b""

    async def commit(self, span: Span) -> None:
        """Gives the chunk the span's name once it is on the disk. Nothing where the span is held
        already. ValueError where the sizes differ; TierFull, TierUnavailable where the disk
        refuses."""
        if not span.size_bytes == self.size_bytes == self.received_bytes:
            raise ValueError("the chunk is not the span's size")
        while self._running is not None:
            await asyncio.wait([self._running])
        if self._error is not None:
            raise self._error
        await self._publish(span, self._sums)

    def _write_on(self) -> None:
        """Begins to write what is full, or the rest where that is all."""
        stop = self.received_bytes
        if stop < self.size_bytes:
            stop -= stop % self._pieces.piece_bytes
        if stop == self._written_bytes or self._dead:
            return
        if self._staging.closed:
            self._dead, self._error = True, TierUnavailable("the chunk was given up")
            return
        full = self._between(self._written_bytes, stop)
        views = [piece.memory for piece in full if piece.memory is not None]
        writing = self._staging.threads.write(self._write, views, self._written_bytes, stop)
        self._running = writing
        writing.add_done_callback(lambda _: self._wrote(writing, full, stop))

    def _wrote(self, writing: "asyncio.Future[list[int]]", full: list[Piece], stop: int) -> None:
        self._running = None
        try:
            self._sums += writing.result()
        except OSError as error:
            self._error = self._refused(error)
            return
        self._written_bytes = stop
        for piece in full:
            self._pieces.spare(piece)
        self._write_on()

    def _between(self, start: int, stop: int) -> list[Piece]:
        """The pieces of these bytes; `start` is the beginning of one."""
        piece_bytes = self._pieces.piece_bytes
        return self._held[start // piece_bytes : -(-stop // piece_bytes)]

    def _refused(self, error: OSError) -> TierFull | TierUnavailable:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._dead = True
            return TierUnavailable("no file descriptor is left")
        return self._failure(error)

    # In a thread, one at a time
    def _write(self, views: list[memoryview], start: int, stop: int) -> list[int]:
        """Sums and writes pieces, the first of which begins at `start`."""
        sums: list[int] = []
        for memory in views:
            used_bytes = min(len(memory), stop - start)
            sums += [
                xxhash.xxh3_64_intdigest(memory[block : min(block + BLOCK_BYTES, used_bytes)])
                for block in range(0, used_bytes, BLOCK_BYTES)
            ]
            self._put(memory, used_bytes, start)
            start += used_bytes
        if stop == self.size_bytes:
            self._end()
        return sums

    def _put(self, memory: memoryview, used_bytes: int, offset: int) -> None:
        try:
            if self._descriptor is None:
                self._open_to_write()
            self._put_as_opened(memory, used_bytes, offset)
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
            # The file system does not know direct writes, or none of this alignment.
            self._staging.direct = False
            self._close()
            self._open_to_write()
            self._put_as_opened(memory, used_bytes, offset)

    def _put_as_opened(self, memory: memoryview, used_bytes: int, offset: int) -> None:
        assert self._descriptor is not None  # noqa: S101 - `_put` has opened it
        # What a direct write must have beyond the last byte is cut off at the end.
        size_bytes = used_bytes + -used_bytes % _ALIGN_BYTES if self._direct else used_bytes
        written = 0
        while written < size_bytes:
            written += os.pwrite(self._descriptor, memory[written:size_bytes], offset + written)

    def _end(self) -> None:
        if self._descriptor is not None and self.size_bytes % _ALIGN_BYTES and self._direct:
            os.ftruncate(self._descriptor, self.size_bytes)
        self._close()

    def _open_to_write(self) -> None:
        self._direct = self._staging.direct
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_DIRECT if self._direct else 0)
        self._descriptor = os.open(self._path, flags, 0o600)

    def _unlink(self) -> None:
        self._close()
        super()._unlink()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
