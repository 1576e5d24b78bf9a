"""Pass-through: one reader, one answer of the origin, nothing kept."""

from collections.abc import AsyncIterator

from gateway.errors import TierUnavailable
from gateway.model.objects import Span
from gateway.model.ranges import ByteRange
from gateway.tiers.protocol import FileRegion, OpenedObject, Origin, TierName


class DirectReader:
    """Reads a span from the origin for one reader: a disk that takes nothing in, or bytes that
    must not be kept. The origin is read no faster than the client takes the bytes, and no further
    than up to byte `stop` of the object."""

    def __init__(self, span: Span, origin: Origin, *, stop: int) -> None:
        self._span = span
        self._stop = stop
        self._origin = origin
        self._opened: OpenedObject | None = None
        self._blocks: AsyncIterator[bytes] | None = None
        self._position = 0
        self._rest = memoryview(b"")

    @property
    def tier(self) -> TierName:
        return "origin"

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        if self._blocks is None or offset != self._position:
            await self._reopen(offset)
        while not self._rest:
            assert self._blocks is not None  # noqa: S101 - `_reopen` has set it
            block = await anext(self._blocks, None)
            if block is None:
                raise TierUnavailable("the origin's answer ended early")
            self._rest = memoryview(block)
        piece, self._rest = self._rest[:limit_bytes], self._rest[limit_bytes:]
        self._position += len(piece)
        return piece

    def read_now(self, offset: int, limit_bytes: int) -> None:  # noqa: ARG002 - a SpanReader's
        return None

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        opened, self._opened, self._blocks = self._opened, None, None
        if opened is not None:
            await opened.close()

    async def _reopen(self, offset: int) -> None:
        await self.close()
        version = self._span.version
        self._opened = await self._origin.open(
            version.ref,
            wanted=ByteRange(self._span.start + offset, self._stop),
            if_match=version.etag,
        )
        self._blocks = self._opened.blocks()
        self._position = offset
        self._rest = memoryview(b"")
