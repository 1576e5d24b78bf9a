"""One read's bytes as another write's body: copies between two origins."""

from collections.abc import AsyncIterator, Mapping

from gateway.model.checksums import encode, hasher
from gateway.store.reading import ReadAnswer


class PassedBody:
    """A `Body` over a `ReadAnswer`, which stays the caller's to close."""

    def __init__(self, answer: ReadAnswer, checksum_algorithm: str | None = None) -> None:
        self._blocks: AsyncIterator[bytes | bytearray | memoryview] = answer.blocks()
        self._algorithm = checksum_algorithm
        self._hasher = hasher(checksum_algorithm) if checksum_algorithm is not None else None
        self._rest = b""
        self.length_bytes = answer.range.size_bytes
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
