"""A verified body on its way to an S3 origin, in bounded memory.

Small bodies are read whole and may be sent again. Larger ones are streamed once: as they are with
Content-Length, or, where a checksum comes in the client's trailer, as aws-chunked so that the
origin gets it in a trailer too. Their payload hash is UNSIGNED-PAYLOAD: it would have to be known
before the first byte.

https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping

from gateway.errors import IncompleteBody
from gateway.model.body import Body
from gateway.model.checksums import HEADER_BY_ALGORITHM
from gateway.tiers.origin_s3.headers import checksum_headers

BUFFERED_BYTES = 1024 * 1024
_BLOCK_BYTES = 256 * 1024
# S3 takes chunks of at least 8 KiB but for the last; equal ones make the length known beforehand.
_CHUNK_BYTES = 256 * 1024


class UploadStream:
    """A body handed block by block to the connection, at most once.

    botocore takes it for a file by its `read`, aiohttp iterates over it. Where the body itself
    fails, `failure` keeps its exception and the request breaks off short of its announced length,
    so that the origin stores nothing.
    """

    def __init__(self, body: Body, stall_seconds: float) -> None:
        self._body = body
        self._stall_seconds = stall_seconds
        self._deadline: asyncio.Timeout | None = None
        self.trailing = next(iter(body.trailing_algorithms), None)
        self.started = False
        self.failure: Exception | None = None

    def headers(self, content_encoding: str | None) -> dict[str, str]:
        """The headers that frame the body. `content_encoding` is the object's own."""
        length_bytes = self._body.length_bytes
        if self.trailing is None:
            return {"content-length": str(length_bytes)}
        encodings = [content_encoding] if content_encoding else []
        return {
            "x-amz-sdk-checksum-algorithm": self.trailing,
            "content-encoding": ",".join([*encodings, "aws-chunked"]),
            "content-length": str(chunked_length_bytes(length_bytes, self.trailing)),
            "x-amz-decoded-content-length": str(length_bytes),
            "x-amz-trailer": HEADER_BY_ALGORITHM[self.trailing],
        }

    def watch(self, deadline: asyncio.Timeout) -> None:
        """`deadline` is moved on with every block that the origin takes."""
        self._deadline = deadline

    def sending(self) -> None:
        """An attempt begins: the origin has to say that it is ready."""
        self._expect(2 * self._stall_seconds)

    def answered(self) -> None:
        """An attempt is over: what follows is a pause or the end."""
        self._expect(None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        # aiohttp sends a request once more where a kept connection turns out to be dead.
        self.seek(0)
        return self._blocks() if self.trailing is None else self._chunks(self.trailing)

    def read(self) -> bytes:
        raise io.UnsupportedOperation("an upload is iterated over")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Back to the start, which only works before the start."""
        if self.started or offset or whence:
            raise io.UnsupportedOperation("an upload is sent once")
        return 0

    async def _blocks(self) -> AsyncIterator[bytes]:
        sent_bytes = 0
        while block := await self._next(_BLOCK_BYTES):
            sent_bytes += len(block)
            yield block
        self._check_length(sent_bytes)

    async def _chunks(self, algorithm: str) -> AsyncIterator[bytes]:
        sent_bytes = 0
        while chunk := await self._whole_chunk():
            sent_bytes += len(chunk)
            yield b"%x\r\n%b\r\n" % (len(chunk), chunk)
        self._check_length(sent_bytes)
        value = self._body.checksums[algorithm]
        yield f"0\r\n{HEADER_BY_ALGORITHM[algorithm]}:{value}\r\n\r\n".encode()

    async def _whole_chunk(self) -> bytes:
        pieces: list[bytes] = []
        missing_bytes = _CHUNK_BYTES
        while missing_bytes and (block := await self._next(missing_bytes)):
            pieces.append(block)
            missing_bytes -= len(block)
        return b"".join(pieces)

    async def _next(self, limit_bytes: int) -> bytes:
        self.started = True
        # While the client is slow the origin is not to blame: the body has its own timeouts.
        self._expect(None)
        try:
            block = await self._body.read(limit_bytes)
        except Exception as error:
            self.failure = error
            raise
        self._expect(self._stall_seconds if block else 2 * self._stall_seconds)
        return block

    def _check_length(self, sent_bytes: int) -> None:
        if sent_bytes != self._body.length_bytes:
            self.failure = IncompleteBody()
            raise self.failure

    def _expect(self, seconds: float | None) -> None:
        if self._deadline is not None and not self._deadline.expired():
            now = asyncio.get_running_loop().time()
            self._deadline.reschedule(None if seconds is None else now + seconds)


class Payload:
    """What goes out: the data and the headers that belong to it."""

    def __init__(self, data: bytes | UploadStream, headers: Mapping[str, str]) -> None:
        self.data = data
        self.headers = headers


async def payload(body: Body, content_encoding: str | None, stall_seconds: float) -> Payload:
    """The body as it is to be sent. Raises what the body raises."""
    headers = {} if body.content_md5 is None else {"content-md5": body.content_md5}
    if body.length_bytes <= BUFFERED_BYTES:
        data = await _whole(body)
        return Payload(data, headers | _checksum_headers(body.checksums))
    stream = UploadStream(body, stall_seconds)
    headers |= _checksum_headers(body.announced_checksums)
    return Payload(stream, headers | stream.headers(content_encoding))


def chunked_length_bytes(length_bytes: int, algorithm: str) -> int:
    """What `length_bytes` of body come to in aws-chunked framing with a trailing checksum."""
    whole, rest = divmod(length_bytes, _CHUNK_BYTES)
    framed = whole * _framed_bytes(_CHUNK_BYTES) + (_framed_bytes(rest) if rest else 0)
    trailer = f"0\r\n{HEADER_BY_ALGORITHM[algorithm]}:\r\n\r\n"
    return framed + len(trailer) + _BASE64_BYTES[algorithm]


async def _whole(body: Body) -> bytes:
    blocks: list[bytes] = []
    while block := await body.read(BUFFERED_BYTES):
        blocks.append(block)
    data = b"".join(blocks)
    if len(data) != body.length_bytes:
        raise IncompleteBody
    return data


def _checksum_headers(values: Mapping[str, str]) -> dict[str, str]:
    """The checksums and, as SDKs do and some origins expect, the name of their algorithm."""
    headers = checksum_headers(values)
    if values:
        headers["x-amz-sdk-checksum-algorithm"] = next(iter(values))
    return headers


def _framed_bytes(size_bytes: int) -> int:
    return len(f"{size_bytes:x}") + size_bytes + 4


_BASE64_BYTES = {"CRC32": 8, "CRC32C": 8, "CRC64NVME": 12, "SHA1": 28, "SHA256": 44}
