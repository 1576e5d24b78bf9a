"""Bodies of uploads: read off the wire, freed of aws-chunked framing, verified before they end.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from aiohttp import ClientError
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

from gateway.auth.identity import UNSIGNED, PayloadSigning
from gateway.auth.request import RequestHead
from gateway.errors import (
    BadDigest,
    EntityTooLarge,
    IncompleteBody,
    InvalidArgument,
    InvalidRequest,
    MalformedTrailerError,
    MissingContentLength,
    RequestTimeout,
    S3Error,
    XAmzContentSHA256Mismatch,
)
from gateway.model.body import Body
from gateway.model.checksums import (
    ALGORITHM_BY_HEADER,
    ALGORITHMS,
    HEADER_BY_ALGORITHM,
    Hasher,
    decode,
    encode,
    hasher,
)
from gateway.s3.aws_chunked import ChunkedDecoder, wrong_length

MAX_BODY_BYTES = 5 * 1024**3
_LENGTH = re.compile(r"[0-9]{1,18}")
_PREFIX = "x-amz-checksum-"
_NOT_VALUES = frozenset({f"{_PREFIX}algorithm", f"{_PREFIX}mode", f"{_PREFIX}type"})
_SINGLE = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."


class ByteStream(Protocol):
    """Where a body's bytes come from; aiohttp's StreamReader is one."""

    async def readany(self) -> bytes:
        """The next bytes, b"" at the end."""
        ...


class _Announced(Struct, frozen=True):
    """What the headers say of the body's integrity."""

    content_md5: str | None
    checksums: Mapping[str, str]
    trailing: tuple[str, ...]


def open_body(
    stream: ByteStream,
    head: RequestHead,
    payload: PayloadSigning,
    *,
    timeout_seconds: float,
    checksums_describe_body: bool = True,
    memory_bytes: int | None = None,
) -> Body:
    """The body of the request in `head`, whose bytes come from `stream`.

    `memory_bytes`: they come from a client's memory and are so many; nothing of the framing in
    `head` is about them.

    `timeout_seconds`: how long the wire may stay silent. `checksums_describe_body` is False for
    CompleteMultipartUpload alone, whose x-amz-checksum-* headers speak of the assembled object.

    Raises at once what the head gives away: MissingContentLength, EntityTooLarge, InvalidDigest,
    InvalidRequest, MalformedTrailerError.
    """
    if memory_bytes is not None:
        payload = UNSIGNED
    trailer = payload.kind.endswith("-trailer")
    chunked = trailer or payload.kind == "signed-chunks"
    wire_length_bytes = memory_bytes
    if memory_bytes is None:
        wire_length_bytes = _length(head, "content-length")
    length_bytes = _length(head, "x-amz-decoded-content-length") if chunked else wire_length_bytes
    if length_bytes is None:
        raise MissingContentLength
    if length_bytes > MAX_BODY_BYTES:
        raise EntityTooLarge(
            fields={"ProposedSize": str(length_bytes), "MaxSizeAllowed": str(MAX_BODY_BYTES)}
        )
    announced = _announced(head, trailer=trailer, checksums=checksums_describe_body)
    decoder = None
    if chunked:
        names = frozenset(HEADER_BY_ALGORITHM[name] for name in announced.trailing)
        decoder = ChunkedDecoder(
            length_bytes, signer=payload.chunks, announced=names if trailer else None
        )
    return UploadBody(
        stream,
        length_bytes,
        wire_length_bytes,
        announced,
        decoder=decoder,
        sha256_hex=payload.sha256_hex,
        timeout_seconds=timeout_seconds,
    )


class UploadBody:
    """A `Body` off the wire. Holds back at least one byte until everything has verified."""

    def __init__(
        self,
        stream: ByteStream,
        length_bytes: int,
        wire_length_bytes: int | None,
        announced: _Announced,
        *,
        decoder: ChunkedDecoder | None,
        sha256_hex: str | None,
        timeout_seconds: float,
    ) -> None:
        self.length_bytes = length_bytes
        self.announced_checksums: Mapping[str, str] = announced.checksums
        self.trailing_algorithms = announced.trailing
        self.content_md5 = announced.content_md5
        self.checksums: Mapping[str, str] = {}
        self._stream = stream
        self._wire_length_bytes = wire_length_bytes
        self._decoder = decoder
        self._sha256_hex = sha256_hex
        self._timeout_seconds = timeout_seconds
        self._wire_bytes = 0
        self._plain_bytes = 0
        self._pending = bytearray()
        self._verified = False
        self._failure: S3Error | None = None
        wanted = [*announced.checksums, *announced.trailing]
        if announced.content_md5 is not None:
            wanted.append("MD5")
        if sha256_hex is not None:
            wanted.append("SHA256")
        self._hashers: dict[str, Hasher] = {name: hasher(name) for name in wanted}

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        """The next 1 to `limit_bytes` bytes, b"" at the verified end. Raises as `Body` says, and
        the same again once it has raised."""
        if self._failure is not None:
            raise self._failure
        try:
            while not self._verified and len(self._pending) <= limit_bytes:
                await self._receive()
        except S3Error as error:
            self._failure = error
            self._pending.clear()
            raise
        block = bytes(memoryview(self._pending)[:limit_bytes])
        del self._pending[:limit_bytes]
        return block

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                data = await self._stream.readany()
        except TimeoutError as error:
            raise RequestTimeout from error
        except (ConnectionError, ClientError, HttpProcessingError) as error:
            raise IncompleteBody from error
        if not data:
            self._finish()
            return
        self._wire_bytes += len(data)
        if self._decoder is None:
            self._accept((data,))
        else:
            self._accept(self._decoder.feed(data))

    def _accept(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._plain_bytes += len(piece)
            if self._plain_bytes > self.length_bytes:
                raise wrong_length(self.length_bytes, self._plain_bytes)
            for running in self._hashers.values():
                running.update(piece)
            self._pending += piece

    def _finish(self) -> None:
        if self._decoder is not None:
            self._decoder.finish()
        if self._plain_bytes != self.length_bytes:
            raise wrong_length(self.length_bytes, self._plain_bytes)
        if self._wire_length_bytes not in (None, self._wire_bytes):
            raise wrong_length(self._wire_length_bytes, self._wire_bytes)
        digests = {name: running.digest() for name, running in self._hashers.items()}
        if self._sha256_hex is not None and digests["SHA256"].hex() != self._sha256_hex:
            raise XAmzContentSHA256Mismatch(
                fields={
                    "ClientComputedContentSHA256": self._sha256_hex,
                    "S3ComputedContentSHA256": digests["SHA256"].hex(),
                }
            )
        if self.content_md5 is not None and digests["MD5"] != decode("MD5", self.content_md5):
            raise BadDigest(
                "The Content-MD5 you specified did not match what we received.",
                fields={
                    "ExpectedDigest": self.content_md5,
                    "CalculatedDigest": encode(digests["MD5"]),
                },
            )
        given = dict(self.announced_checksums)
        if self._decoder is not None:
            for header, value in self._decoder.trailers.items():
                given[ALGORITHM_BY_HEADER[header]] = value
        for name, value in given.items():
            if decode(name, value) != digests[name]:
                raise BadDigest(f"The {name} you specified did not match the calculated checksum.")
        self.checksums = given
        self._verified = True


def _length(head: RequestHead, header: str) -> int | None:
    value = head.header(header)
    if value is None:
        return None
    if not _LENGTH.fullmatch(value):
        raise InvalidArgument(
            f"Value for {header} header is invalid.", fields={"ArgumentName": header}
        )
    return int(value)


def _announced(head: RequestHead, *, trailer: bool, checksums: bool) -> _Announced:
    content_md5 = head.header("content-md5")
    if content_md5 is not None:
        decode("MD5", content_md5)
    if not checksums:
        return _Announced(content_md5, {}, ())
    values = _checksum_values(head)
    trailing = _trailing(head, trailer=trailer)
    if len(values) + len(trailing) > 1:
        raise InvalidRequest(_SINGLE)
    algorithm = head.header("x-amz-sdk-checksum-algorithm")
    if algorithm is not None:
        if algorithm.upper() not in ALGORITHMS:
            raise _invalid_algorithm()
        if not values and not trailing:
            raise InvalidRequest(
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or "
                "x-amz-trailer headers were found."
            )
        if algorithm.upper() not in (*values, *trailing):
            raise _invalid_algorithm()
    return _Announced(content_md5, values, trailing)


def _checksum_values(head: RequestHead) -> dict[str, str]:
    values: dict[str, str] = {}
    for header, value in head.headers:
        if not header.startswith(_PREFIX) or header in _NOT_VALUES:
            continue
        algorithm = ALGORITHM_BY_HEADER.get(header)
        if algorithm is None:
            raise InvalidRequest(
                "The algorithm type you specified in x-amz-checksum- header is invalid."
            )
        if values:
            raise InvalidRequest(_SINGLE)
        decode(algorithm, value)
        values[algorithm] = value
    return values


def _trailing(head: RequestHead, *, trailer: bool) -> tuple[str, ...]:
    announced = head.header("x-amz-trailer")
    if announced is None:
        return ()
    if not trailer:
        # A trailer is promised, but this kind of body cannot have one.
        raise MalformedTrailerError
    algorithms = []
    for part in announced.split(","):
        algorithm = ALGORITHM_BY_HEADER.get(part.strip().lower())
        if algorithm is None:
            raise InvalidRequest("The value specified in the x-amz-trailer header is not supported")
        algorithms.append(algorithm)
    return tuple(algorithms)


def _invalid_algorithm() -> InvalidRequest:
    return InvalidRequest("Value for x-amz-sdk-checksum-algorithm header is invalid.")
