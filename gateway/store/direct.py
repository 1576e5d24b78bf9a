"""Pass-through: one reader, one answer, nothing kept."""

import asyncio
from collections.abc import Callable
from time import monotonic

from gateway.errors import FeedrackError, TierUnavailable
from gateway.model.objects import Span
from gateway.tiers.protocol import FileRegion, Incoming, Source, TierName

_BLOCK_BYTES = 512 * 1024

# Readers on their way out.
_closing: set[asyncio.Task[None]] = set()


class DirectReader:
    """Reads a span from its source for one reader: a disk that takes nothing in, bytes that must
    not be kept, or that have their home elsewhere. It is read no faster than the client takes the
    bytes, and no further than up to byte `stop` of the object."""

    def __init__(self, span: Span, source: Source, *, stop: int) -> None:
        self._stop = stop - span.start
        self._source = source
        self._coming: Incoming | None = None
        self._opening: asyncio.Task[Incoming] | None = None
        self._position = 0
        self._rest = memoryview(b"")
        self._tier: TierName = "origin"
        self.received_bytes = 0
        self.failed = False
        # Hears how long each wait for bytes was, in seconds.
        self.on_wait: Callable[[float], None] | None = None
        # Hears once that it is over.
        self.on_close: Callable[[], None] | None = None

    @property
    def tier(self) -> TierName:
        return self._tier

    @property
    def begun(self) -> bool:
        """Whether the answer has begun, or will not."""
        return self._opening is None or self._opening.done()

    def begin(self) -> None:
        """Asks for the first bytes before they are read."""
        self._opening = asyncio.create_task(self._source.open(0, self._stop))

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        if self._rest and offset == self._position:
            return self._give(limit_bytes)
        begun = monotonic()
        memory = memoryview(bytearray(min(_BLOCK_BYTES, self._stop - offset)))
        try:
            got_bytes = await self._receive(offset, memory)
        except FeedrackError:
            self.failed = True
            raise
        if self.on_wait is not None:
            self.on_wait(monotonic() - begun)
        self.received_bytes += got_bytes
        self._rest = memory[:got_bytes]
        return self._give(limit_bytes)

    def read_now(self, offset: int, limit_bytes: int) -> memoryview | None:
        if self._rest and offset == self._position:
            return self._give(limit_bytes)
        return None

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
        self._rest = memoryview(b"")
        await self._leave()

    def release(self) -> None:
        """As `close`, before long."""
        closing = asyncio.get_running_loop().create_task(self.close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    call_off = release

    def _give(self, limit_bytes: int) -> memoryview:
        piece, self._rest = self._rest[:limit_bytes], self._rest[limit_bytes:]
        self._position += len(piece)
        return piece

    async def _receive(self, offset: int, memory: memoryview) -> int:
        """Puts what comes at `offset` into memory, from the next place where one breaks off."""
        while True:
            try:
                coming = await self._at(offset)
                self._tier = coming.tier
                size_bytes = await coming.read_into(memory)
            except TierUnavailable:
                await self._leave()
                if not self._source.goes_on():
                    raise
                continue
            if size_bytes:
                return size_bytes
            await self._leave()
            if not self._source.goes_on():
                raise TierUnavailable("the answer ended early")

    async def _at(self, offset: int) -> Incoming:
        """The answer, of which the byte at `offset` comes next."""
        if self._opening is not None and not offset:
            self._coming = await self._opening
            self._opening = None
        elif self._coming is None or offset != self._position:
            await self._leave()
            self._coming = await self._source.open(offset, self._stop)
        self._position = offset
        return self._coming

    async def _leave(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            ended = (await asyncio.gather(opening, return_exceptions=True))[0]
            if not isinstance(ended, BaseException):
                await ended.close()
        coming, self._coming = self._coming, None
        if coming is not None:
            await coming.close()
