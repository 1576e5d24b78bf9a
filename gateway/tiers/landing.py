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
# Written at once while there is memory enough: each trip to a thread costs some 70 µs.
_WRITE_BYTES = 4 * 1024**2


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
        # So many of the first pieces nobody asks for.
        self._let_go = 0
        self._sums: list[int] = []
        self._descriptor: int | None = None
        self._direct = False
        self._error: TierFull | TierUnavailable | None = None

    @property
    def piece_bytes(self) -> int:
        return self._pieces.piece_bytes

    @property
    def in_memory(self) -> bool:
        """Whether all that was received is still in memory."""
        return all(piece.memory is not None for piece in self._held)

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

    def let_go(self, pieces: int) -> None:
        """Tells that nobody reads the first `pieces` of it in the near future."""
        for piece in self._held[self._let_go : min(pieces, self._written_pieces)]:
            self._pieces.spare(piece, wanted=False)
        self._let_go = pieces

    @property
    def _written_pieces(self) -> int:
        return -(-self._written_bytes // self._pieces.piece_bytes)

    def hurry(self) -> None:
        """Memory is short: what is full is written, so that it may be given up."""
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
            if self._pieces.ample and stop - self._written_bytes < _WRITE_BYTES:
                self._pieces.put_off(self)
                return
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
        first = self._written_bytes // self._pieces.piece_bytes
        self._written_bytes = stop
        for number, piece in enumerate(full, first):
            self._pieces.spare(piece, wanted=number >= self._let_go)
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
    def _write(self, pieces: list[memoryview], start: int, stop: int) -> list[int]:
        """Sums and writes pieces, the first of which begins at `start`."""
        sums = [
            xxhash.xxh3_64_intdigest(view[block : block + BLOCK_BYTES])
            for view in _first(pieces, stop - start)
            for block in range(0, len(view), BLOCK_BYTES)
        ]
        try:
            self._put(pieces, start, stop)
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
            # The file system does not know direct writes, or none of this alignment.
            self._staging.direct = False
            self._close()
            self._put(pieces, start, stop)
        if stop == self.size_bytes:
            self._close()
        return sums

    def _put(self, pieces: list[memoryview], start: int, stop: int) -> None:
        if self._descriptor is None:
            self._open_to_write()
        assert self._descriptor is not None  # noqa: S101 - it was opened just now
        # What a direct write must have beyond the chunk's last byte is cut off again.
        beyond_bytes = -stop % _ALIGN_BYTES if self._direct else 0
        views = _first(pieces, stop - start + beyond_bytes)
        while views:
            written = os.pwritev(self._descriptor, views, start)
            start += written
            views = _after(views, written)
        if beyond_bytes:
            os.ftruncate(self._descriptor, stop)

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


def _first(views: list[memoryview], size_bytes: int) -> list[memoryview]:
    """The first `size_bytes` of the views, which end in the last."""
    before = sum(map(len, views[:-1]))
    return [*views[:-1], views[-1][: size_bytes - before]]


def _after(views: list[memoryview], size_bytes: int) -> list[memoryview]:
    """What follows the first `size_bytes` of the views."""
    while views and len(views[0]) <= size_bytes:
        size_bytes -= len(views[0])
        views = views[1:]
    return [views[0][size_bytes:], *views[1:]] if views else []
