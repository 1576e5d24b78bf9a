"""An answer to GetObject whose body is still to come, whoever asked for it."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import aiohttp

from gateway.errors import TierUnavailable
from gateway.model.objects import ObjectInfo
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_s3.errors import UNREACHABLE

_PIECE_BYTES = 1024 * 1024


class Answer(Protocol):
    """What came back: status, headers with lower-case names, and the body as it is sent. Reading
    raises one of UNREACHABLE."""

    @property
    def status(self) -> int: ...

    async def read(self, limit_bytes: int) -> bytes:
        """1 to `limit_bytes` bytes, b"" at the end."""
        ...

    async def read_into(self, memory: memoryview) -> int:
        """As `read`, into `memory`: how many, 0 at the end."""
        ...

    def close(self) -> None:
        """Ends it; what was not read is cut off. Safe twice."""
        ...


class ClientAnswer:
    """An `Answer` that came through aiobotocore."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def read(self, limit_bytes: int) -> bytes:
        return await self._response.content.read(limit_bytes)

    async def read_into(self, memory: memoryview) -> int:
        block = await self._response.content.read(len(memory))
        memory[: len(block)] = block
        return len(block)

    def close(self) -> None:
        # An answer read to its end has given its connection back already; any other is cut off.
        self._response.close()


class S3Opened:
    """The wanted part of an answer. `covered` is what the origin sends: more than `wanted` where it
    ignored the Range. `count` hears of every byte; `fail` makes an error of a failure."""

    def __init__(
        self,
        info: ObjectInfo,
        covered: ByteRange,
        wanted: ByteRange,
        answer: Answer,
        count: Callable[[float], None],
        fail: Callable[[Exception | str], TierUnavailable],
    ) -> None:
        self.info = info
        self.range = wanted
        self._skip_bytes = wanted.start - covered.start
        self._left_bytes = wanted.size_bytes
        self._answer = answer
        self._count = count
        self._fail = fail

    async def blocks(self) -> AsyncIterator[bytes]:
        try:
            while self._left_bytes:
                try:
                    block = await self._answer.read(_PIECE_BYTES)
                except UNREACHABLE as error:
                    raise self._fail(error) from error
                self._came(len(block))
                skipped = min(self._skip_bytes, len(block))
                self._skip_bytes -= skipped
                block = block[skipped : skipped + self._left_bytes]
                self._left_bytes -= len(block)
                if block:
                    yield block
        finally:
            await self.close()

    async def read_into(self, memory: memoryview) -> int:
        while self._left_bytes:
            # What is skipped passes through the same memory.
            room = memory[: self._skip_bytes or self._left_bytes]
            try:
                size_bytes = await self._answer.read_into(room)
            except UNREACHABLE as error:
                raise self._fail(error) from error
            self._came(size_bytes)
            if not self._skip_bytes:
                self._left_bytes -= size_bytes
                return size_bytes
            self._skip_bytes -= size_bytes
        return 0

    async def close(self) -> None:
        self._answer.close()

    def _came(self, size_bytes: int) -> None:
        if not size_bytes:
            raise self._fail(f"the answer ended {self._left_bytes} bytes early")
        self._count(size_bytes)


class EmptyOpened:
    """An empty object, or a read of nothing."""

    def __init__(self, info: ObjectInfo, start: int) -> None:
        self.info = info
        self.range = ByteRange(start, start)

    async def blocks(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for block in nothing:
            yield block

    async def read_into(self, memory: memoryview) -> int:  # noqa: ARG002 - nothing goes there
        return 0

    async def close(self) -> None:
        """Nothing is held."""
