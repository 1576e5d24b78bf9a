"""One request's payload on its way between this node's buffers and a client's memory.

Pieces are pipelined: as many are under way as the line and the pool allow, and a piece's buffer is
free again with its completion. A transfer that fails, or makes no progress for `timeout_seconds`,
fails its line, so that nothing of it is under way once its client hears of it.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.rdma.buffers import Buffer, Share
from gateway.rdma.lines import Line, LineFailed, Piece
from gateway.rdma.mapped import MappedFiles
from gateway.rdma.sessions import Session
from gateway.rdma.token import Token

# Ahead of whoever takes what is read. It holds on to memory that others could use.
_READ_AHEAD = 4
# How long what is under way may take once nobody wants it any more.
_CUT_SECONDS = 2.0


class TransferFailed(Exception):  # noqa: N818 - named as the other refusals are
    """It broke off, and its session has ended. The message says why."""


class NoBuffer(Exception):  # noqa: N818 - named as the other refusals are
    """No buffer came free in time; its session goes on."""

    def __init__(self) -> None:
        super().__init__("no buffer came free")


class MemoryTooSmall(Exception):  # noqa: N818 - named as the other refusals are
    """The client's memory has no room for what is to be written."""

    def __init__(self, needed_bytes: int, given_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes do not fit in {given_bytes}")
        self.needed_bytes = needed_bytes


class Transfer:
    """The right to use one token's memory once: to write to it, or to read it. `close` must be
    called."""

    def __init__(
        self,
        session: Session,
        token: Token,
        pool: Share,
        files: MappedFiles,
        *,
        timeout_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        self.token = token
        self._files = files
        self._line: Line = session.line
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._on_end = on_end
        self._closed = False
        # All that may still touch the client's memory, or ours.
        self._under_way: set[Piece] = set()
        # What is being written, in order.
        self._writing: deque[Piece] = deque()
        # What is gathered for the next piece to be written, and where it is to go.
        self._gathered: Buffer | None = None
        self._gathered_bytes = 0
        self.moved_bytes = 0
        # What a processor copied into or out of buffers for it.
        self.copied_bytes = 0

    # Writing to the client's memory

    @property
    def position(self) -> int:
        """Where the next byte goes, from the beginning of the memory."""
        return self.moved_bytes

    @property
    def room_bytes(self) -> int:
        """How much more the memory takes."""
        return self.token.size_bytes - self.moved_bytes

    def check_room(self, size_bytes: int) -> None:
        """Nothing where so many bytes fit. MemoryTooSmall."""
        if size_bytes > self.room_bytes:
            raise MemoryTooSmall(self.moved_bytes + size_bytes, self.token.size_bytes)

    async def write(self, block: bytes | bytearray | memoryview) -> None:
        """Takes a block, which may be changed afterwards. TransferFailed, MemoryTooSmall."""
        self.check_room(len(block))
        rest = memoryview(block)
        while rest:
            buffer = await self._buffer()
            start = self._gathered_bytes
            size = min(len(rest), self._pool.buffer_bytes - start)
            buffer.memory[start : start + size] = rest[:size]
            self.copied_bytes += size
            await self._grow(size)
            rest = rest[size:]

    async def write_file(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Takes bytes of an open file: from where they lie, or straight into a buffer.
        TransferFailed where the file ends early, as for the rest; MemoryTooSmall."""
        self.check_room(size_bytes)
        part = self._files.part(descriptor, offset, size_bytes)
        if part is not None:
            await self.write_region(part.address, size_bytes, part.lkey, part.release)
            return
        while size_bytes:
            buffer = await self._buffer()
            start = self._gathered_bytes
            room = min(size_bytes, self._pool.buffer_bytes - start)
            size = await _read_file(descriptor, buffer.memory[start : start + room], offset)
            if not size:
                raise TransferFailed("a file ended early")
            self.copied_bytes += size
            await self._grow(size)
            offset += size
            size_bytes -= size

    async def write_region(
        self, address: int, size_bytes: int, lkey: int, release: Callable[[], None]
    ) -> None:
        """Writes registered memory as it lies; `release` once it may be changed, whatever becomes
        of it. TransferFailed, MemoryTooSmall."""
        size = self._pool.buffer_bytes
        # One for each piece, and one for the hand that posts them.
        left = 1

        def over() -> None:
            nonlocal left
            left -= 1
            if not left:
                release()

        try:
            self.check_room(size_bytes)
            await self._flush()
            for start in range(0, size_bytes, size):
                left += 1
                await self._post(address + start, min(size, size_bytes - start), lkey, over)
        finally:
            over()

    async def finish(self) -> int:
        """Returns once all that was taken is in the client's memory, and how much that was.
        TransferFailed."""
        await self._flush()
        if self.moved_bytes:
            await self._push_through()
        await self._drain(0)
        return self.moved_bytes

    # Reading the client's memory

    def reader(self) -> "MemoryReader":
        """The whole memory, to be read from its beginning to its end."""
        return MemoryReader(self)

    async def close(self) -> None:
        """Ends it, and returns once nothing touches the client's memory any more. Safe to call
        twice."""
        if self._closed:
            return
        self._closed = True
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            self._pool.give(gathered)
        self._on_end()
        # Whoever hears of the end may use the memory again.
        while self._under_way:
            left = [piece.over for piece in self._under_way]
            await asyncio.wait(left, timeout=min(_CUT_SECONDS, self._timeout_seconds))
            if self._under_way:
                self._line.fail("cut, and still under way")
                await self._line.settled()
        await self._line.settled()

    async def _buffer(self) -> Buffer:
        """The buffer that the next bytes go to."""
        if self._gathered is None:
            self._gathered = await self._take()
            self._gathered_bytes = 0
        return self._gathered

    async def _grow(self, size_bytes: int) -> None:
        self._gathered_bytes += size_bytes
        self.moved_bytes += size_bytes
        if self._gathered_bytes == self._pool.buffer_bytes:
            await self._flush()

    async def _flush(self) -> None:
        buffer, size = self._gathered, self._gathered_bytes
        if buffer is None:
            return
        self._gathered = None
        self.moved_bytes -= size
        await self._post(buffer.address, size, buffer.lkey, lambda: self._pool.give(buffer))

    async def _post(
        self, address: int, size_bytes: int, lkey: int, release: Callable[[], None]
    ) -> None:
        to = self.token.address + self.moved_bytes
        piece = await self._begun(
            self._line.write(
                address, size_bytes, lkey, to=to, rkey=self.token.rkey, release=release
            )
        )
        self.moved_bytes += size_bytes
        self._writing.append(piece)
        # Those that are over tell of failures early.
        while self._writing and self._writing[0].over.done():
            await self._drain(len(self._writing) - 1)

    async def _push_through(self) -> None:
        """A READ of the last byte: it is answered after every WRITE before it has reached memory,
        which a WRITE's own completion does not promise."""
        buffer = await self._take()
        token, pool = self.token, self._pool
        piece = await self._begun(
            self._line.read(
                buffer.address,
                1,
                buffer.lkey,
                source=token.address + self.moved_bytes - 1,
                rkey=token.rkey,
                release=lambda: pool.give(buffer),
            )
        )
        try:
            await self._drain(0)
            await self._end(piece)
        finally:
            piece.abandon()

    async def _drain(self, left: int) -> None:
        while len(self._writing) > left:
            await self._end(self._writing[0])
            self._writing.popleft()

    async def _begun(self, beginning: Coroutine[Any, Any, Piece]) -> Piece:
        """What begins, once it has its turn; kept until it is over."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                piece = await beginning
        except TimeoutError:
            raise self._fail("the client does not keep up") from None
        except LineFailed as error:
            raise TransferFailed(str(error)) from error
        self._under_way.add(piece)
        piece.over.add_done_callback(lambda _: self._under_way.discard(piece))
        return piece

    async def _end(self, piece: Piece) -> None:
        """Returns once a piece is over. TransferFailed; `close` waits for what is late."""
        await asyncio.wait((piece.over,), timeout=self._timeout_seconds)
        if not piece.over.done():
            raise self._fail(f"nothing came in {self._timeout_seconds:g} s")
        trouble = piece.over.result()
        if trouble is not None:
            raise TransferFailed(trouble)

    async def _take(self) -> Buffer:
        buffer = self._pool.take_now()
        if buffer is not None:
            return buffer
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.take()
        except TimeoutError:
            if self._under_way:
                raise self._fail("the client does not keep up") from None
            # Nobody's fault whose client is well: the session stays.
            raise NoBuffer from None

    def _fail(self, reason: str) -> TransferFailed:
        self._line.fail(reason)
        return TransferFailed(reason)


class MemoryReader:
    """A client's memory as a stream of bytes, read ahead by a few pieces."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._asked_bytes = 0
        self._coming: deque[tuple[Piece, Buffer, int]] = deque()

    async def read(self) -> bytes:
        """The next bytes, b"" after the last. TransferFailed, NoBuffer."""
        transfer, coming = self._transfer, self._coming
        pool, size_bytes = transfer._pool, transfer.token.size_bytes
        if not coming:
            if self._asked_bytes == size_bytes:
                return b""
            await self._ask(await transfer._take())
        while len(coming) < _READ_AHEAD and self._asked_bytes < size_bytes:
            buffer = pool.take_now()
            if buffer is None:
                break
            await self._ask(buffer)
        piece, buffer, size = coming[0]
        await transfer._end(piece)
        coming.popleft()
        block = bytes(buffer.memory[:size])
        transfer.copied_bytes += size
        pool.give(buffer)
        return block

    def close(self) -> None:
        """Ends it; the transfer's `close` waits for what is under way. Safe to call twice."""
        while self._coming:
            piece, _, _ = self._coming.popleft()
            piece.abandon()

    async def _ask(self, buffer: Buffer) -> None:
        transfer = self._transfer
        token, pool = transfer.token, transfer._pool
        size = min(pool.buffer_bytes, token.size_bytes - self._asked_bytes)
        piece = await transfer._begun(
            transfer._line.read(
                buffer.address,
                size,
                buffer.lkey,
                source=token.address + self._asked_bytes,
                rkey=token.rkey,
                release=lambda: pool.give(buffer),
            )
        )
        self._asked_bytes += size
        self._coming.append((piece, buffer, size))


async def _read_file(descriptor: int, memory: memoryview, offset: int) -> int:
    """Reads into memory what the page cache has; in a thread what it has not."""
    # Not every file system knows how not to wait: those are read in a thread, too.
    with contextlib.suppress(OSError):
        return os.preadv(descriptor, (memory,), offset, os.RWF_NOWAIT)
    reading = asyncio.ensure_future(asyncio.to_thread(os.preadv, descriptor, (memory,), offset))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        # The thread goes on, and writes into the buffer: until then it must be nobody else's.
        while not reading.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((reading,))
        raise
