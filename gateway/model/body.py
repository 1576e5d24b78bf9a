"""The bodies of uploads, as a promise every consumer can rely on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from gateway.model.checksums import encode, hasher


class Body(Protocol):
    """An upload's plain bytes, already stripped of aws-chunked framing.

    The last block is handed out only after everything has verified (length, Content-MD5,
    x-amz-content-sha256, chunk signatures, checksums in headers and trailers): a consumer that
    reaches b"" holds a verified body, and one that meets an exception must keep nothing.
    """

    @property
    def length_bytes(self) -> int:
        """Bytes that `read` will hand out in all; always known (S3 demands it)."""
        ...

    @property
    def announced_checksums(self) -> Mapping[str, str]:
        """Checksums whose values came in headers: algorithm → base64."""
        ...

    @property
    def trailing_algorithms(self) -> tuple[str, ...]:
        """Algorithms whose values come in the trailer (so only known at the end)."""
        ...

    @property
    def content_md5(self) -> str | None:
        """Content-MD5 as announced (base64)."""
        ...

    @property
    def checksums(self) -> Mapping[str, str]:
        """All checksums that were given and have verified; complete once `read` returned b""."""
        ...

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        """The next 1 to `limit_bytes` bytes, b"" at the verified end.

        Raises the S3 error that AWS gives: IncompleteBody, BadDigest, SignatureDoesNotMatch,
        XAmzContentSHA256Mismatch, InvalidDigest, RequestTimeout.
        """
        ...


class PassedBody:
    """A body that is read through another one: a base for those that do something on the way."""

    def __init__(self, body: Body) -> None:
        self._body = body

    @property
    def length_bytes(self) -> int:
        return self._body.length_bytes

    @property
    def announced_checksums(self) -> Mapping[str, str]:
        return self._body.announced_checksums

    @property
    def trailing_algorithms(self) -> tuple[str, ...]:
        return self._body.trailing_algorithms

    @property
    def content_md5(self) -> str | None:
        return self._body.content_md5

    @property
    def checksums(self) -> Mapping[str, str]:
        return self._body.checksums

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        return await self._body.read(limit_bytes)


class HeldBackBody(PassedBody):
    """A body whose last block is not handed out before `ready` returns: until then nobody can have
    made a whole object of it. What `ready` raises, reading raises."""

    def __init__(self, body: Body, ready: Callable[[], Awaitable[None]]) -> None:
        super().__init__(body)
        self._ready = ready
        self._read_bytes = 0

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await self._body.read(limit_bytes)
        self._read_bytes += len(block)
        if self._read_bytes >= self._body.length_bytes:
            await self._ready()
        return block


class BytesBody:
    """A `Body` over bytes already in memory (internal writes and tests)."""

    def __init__(
        self,
        data: bytes,
        *,
        checksums: Mapping[str, str] | None = None,
        content_md5: str | None = None,
    ) -> None:
        self._data = data
        self._position = 0
        self.length_bytes = len(data)
        self.announced_checksums: Mapping[str, str] = dict(checksums or {})
        self.trailing_algorithms: tuple[str, ...] = ()
        self.content_md5 = content_md5
        self.checksums: Mapping[str, str] = self.announced_checksums

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = self._data[self._position : self._position + limit_bytes]
        self._position += len(block)
        return block


class StreamedBody:
    """What is being read as the body of a write: copies between origins, or out of a pack. `blocks`
    hands out `length_bytes` in all; what it raises, reading raises."""

    def __init__(
        self,
        blocks: AsyncIterator[bytes | bytearray | memoryview],
        length_bytes: int,
        checksum_algorithm: str | None = None,
    ) -> None:
        self._blocks = blocks
        self._algorithm = checksum_algorithm
        self._hasher = hasher(checksum_algorithm) if checksum_algorithm is not None else None
        self._rest = b""
        self.length_bytes = length_bytes
        self.announced_checksums: Mapping[str, str] = {}
        self.trailing_algorithms = (checksum_algorithm,) if checksum_algorithm is not None else ()
        self.content_md5: str | None = None
        self.checksums: Mapping[str, str] = {}

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        if not self._rest:
            self._rest = bytes(await anext(self._blocks, b""))
        block, self._rest = self._rest[:limit_bytes], self._rest[limit_bytes:]
        if self._hasher is not None and self._algorithm is not None:
            self._hasher.update(block)
            if not block:
                self.checksums = {self._algorithm: encode(self._hasher.digest())}
        return block
