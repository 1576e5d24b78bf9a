"""A body that reaches its end is the one that was announced; any other ends in AWS's error."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import boto3
import pytest
import trustme
from aiohttp import web
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.identity import UNSIGNED, PayloadSigning
from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.errors import (
    BadDigest,
    EntityTooLarge,
    IncompleteBody,
    InvalidArgument,
    InvalidDigest,
    InvalidRequest,
    MalformedTrailerError,
    MissingContentLength,
    RequestTimeout,
    S3Error,
    SignatureDoesNotMatch,
    XAmzContentSHA256Mismatch,
)
from gateway.model.body import Body
from gateway.model.checksums import ALGORITHMS, HEADER_BY_ALGORITHM, checksum
from gateway.s3.body import MAX_BODY_BYTES, open_body
from tests.auth.signing_client import REGION, SECRET, TENANT
from tests.s3.signed_chunks import aws_example, signed_body, signer, unsigned_body

DATA = bytes(range(256)) * 100
MD5 = checksum("MD5", DATA)
CRC32 = checksum("CRC32", DATA)
UNSIGNED_TRAILER = PayloadSigning("unsigned-chunks-trailer")


class Pieces:
    """A stream of given pieces; then the end, or silence."""

    def __init__(self, pieces: Sequence[bytes], *, silent: bool = False) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self._silent = silent

    async def readany(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        if self._silent:
            await asyncio.Event().wait()
        return b""


def head(*headers: tuple[str, str]) -> RequestHead:
    return RequestHead("PUT", "/train/a", "", headers)


def single(data: bytes) -> PayloadSigning:
    return PayloadSigning("single", hashlib.sha256(data).hexdigest())


def plain(
    data: bytes,
    *headers: tuple[str, str],
    payload: PayloadSigning = UNSIGNED,
    length: int | None = None,
    pieces: int = 1,
    silent: bool = False,
    timeout_seconds: float = 5,
) -> Body:
    size = len(data) if length is None else length
    step = max(1, -(-len(data) // pieces))
    return open_body(
        Pieces([data[at : at + step] for at in range(0, len(data), step)], silent=silent),
        head(("content-length", str(size)), *headers),
        payload,
        timeout_seconds=timeout_seconds,
    )


def chunked(wire: bytes, payload: PayloadSigning, *headers: tuple[str, str], length: int) -> Body:
    announced = head(("x-amz-decoded-content-length", str(length)), *headers)
    return open_body(Pieces([wire]), announced, payload, timeout_seconds=5)


async def drain(body: Body, limit_bytes: int = 262_144) -> bytes:
    blocks = []
    while block := await body.read(limit_bytes):
        assert len(block) <= limit_bytes
        blocks.append(block)
    return b"".join(blocks)


async def taken_before(body: Body, error: type[S3Error], limit_bytes: int = 1_000) -> bytes:
    """What a reader was given before `error` came."""
    blocks: list[bytes] = []

    async def run() -> None:
        while block := await body.read(limit_bytes):
            blocks.append(block)

    with pytest.raises(error):
        await run()
    with pytest.raises(error):
        await body.read(limit_bytes)
    return b"".join(blocks)


@pytest.mark.parametrize("payload", [UNSIGNED, single(DATA)])
@pytest.mark.parametrize("limit_bytes", [1, 1_000, len(DATA), 262_144])
async def test_a_good_body_is_read_whole(payload: PayloadSigning, limit_bytes: int) -> None:
    body = plain(
        DATA, ("content-md5", MD5), ("x-amz-checksum-crc32", CRC32), payload=payload, pieces=7
    )
    assert body.length_bytes == len(DATA)
    assert body.content_md5 == MD5
    assert body.announced_checksums == {"CRC32": CRC32}
    assert body.checksums == {}
    assert await drain(body, limit_bytes) == DATA
    assert body.checksums == {"CRC32": CRC32}
    assert await body.read() == b""


@given(st.binary(max_size=2_000), st.integers(1, 20), st.integers(1, 700))
def test_every_body_comes_out_as_it_went_in(data: bytes, pieces: int, limit_bytes: int) -> None:
    body = plain(data, payload=single(data), pieces=pieces)
    assert asyncio.run(drain(body, limit_bytes)) == data


async def test_an_empty_body_is_verified_too() -> None:
    assert await drain(plain(b"", payload=single(b""))) == b""
    await taken_before(plain(b"", payload=single(b"x")), XAmzContentSHA256Mismatch)
    await taken_before(plain(b"", ("content-md5", MD5)), BadDigest)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_checksum_is_checked_and_its_last_block_held_back(algorithm: str) -> None:
    header = HEADER_BY_ALGORITHM[algorithm]
    good = plain(DATA, (header, checksum(algorithm, DATA)), pieces=3)
    assert await drain(good) == DATA
    bad = plain(DATA, (header, checksum(algorithm, DATA + b"x")), pieces=3)
    assert len(await taken_before(bad, BadDigest)) < len(DATA)


async def test_a_wrong_sha256_or_md5_is_found_before_the_last_block() -> None:
    wrong = plain(DATA, payload=single(DATA + b"x"))
    assert len(await taken_before(wrong, XAmzContentSHA256Mismatch, 100)) < len(DATA)
    wrong = plain(DATA, ("content-md5", checksum("MD5", b"x")))
    assert len(await taken_before(wrong, BadDigest, 100)) < len(DATA)


async def test_a_body_shorter_or_longer_than_announced_is_incomplete() -> None:
    for length in (len(DATA) - 1, len(DATA) + 1):
        body = plain(DATA, length=length)
        assert len(await taken_before(body, IncompleteBody)) < length


async def test_a_silent_wire_times_out() -> None:
    body = plain(DATA, length=len(DATA) + 1, silent=True, timeout_seconds=0.02)
    await taken_before(body, RequestTimeout)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([], MissingContentLength),
        ([("transfer-encoding", "chunked")], MissingContentLength),
        ([("content-length", "-1")], InvalidArgument),
        ([("content-length", "٣")], InvalidArgument),
        ([("content-length", str(MAX_BODY_BYTES + 1))], EntityTooLarge),
        ([("content-length", "1"), ("content-md5", "abc")], InvalidDigest),
        ([("content-length", "1"), ("content-md5", "AAAA")], InvalidDigest),
        ([("content-length", "1"), ("content-md5", "")], InvalidDigest),
        ([("content-length", "1"), ("x-amz-checksum-crc32", "AAAA")], InvalidRequest),
        ([("content-length", "1"), ("x-amz-checksum-crc32", "é")], InvalidRequest),
        ([("content-length", "1"), ("x-amz-checksum-sha512", "AAAA")], InvalidRequest),
        (
            [
                ("content-length", "1"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
                ("x-amz-checksum-crc32c", "AAAAAA=="),
            ],
            InvalidRequest,
        ),
        (
            [
                ("content-length", "1"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
                ("x-amz-checksum-crc32", "AAAAAA=="),
            ],
            InvalidRequest,
        ),
        ([("content-length", "1"), ("x-amz-sdk-checksum-algorithm", "CRC32")], InvalidRequest),
        (
            [
                ("content-length", "1"),
                ("x-amz-sdk-checksum-algorithm", "CRC32C"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
            ],
            InvalidRequest,
        ),
        (
            [
                ("content-length", "1"),
                ("x-amz-sdk-checksum-algorithm", "CRC99"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
            ],
            InvalidRequest,
        ),
        (
            [("content-length", "1"), ("x-amz-trailer", "x-amz-checksum-crc32")],
            MalformedTrailerError,
        ),
    ],
)
def test_what_the_head_gives_away_is_refused_at_once(
    headers: list[tuple[str, str]], error: type[S3Error]
) -> None:
    with pytest.raises(error):
        open_body(Pieces([]), head(*headers), UNSIGNED, timeout_seconds=5)


def test_5_gib_is_the_most_that_one_body_may_have() -> None:
    assert plain(b"", length=MAX_BODY_BYTES).length_bytes == MAX_BODY_BYTES


async def test_other_headers_of_the_family_are_no_values() -> None:
    headers = [
        ("x-amz-checksum-algorithm", "CRC32"),
        ("x-amz-checksum-type", "FULL_OBJECT"),
        ("x-amz-checksum-mode", "ENABLED"),
        ("x-amz-sdk-checksum-algorithm", "crc32"),
        ("x-amz-checksum-crc32", CRC32),
    ]
    assert await drain(plain(DATA, *headers)) == DATA


async def test_the_checksum_of_an_assembled_object_is_not_the_bodys() -> None:
    announced = head(("content-length", "3"), ("x-amz-checksum-crc32", "AAAAAA==-2"))
    body = open_body(
        Pieces([b"xml"]), announced, UNSIGNED, timeout_seconds=5, checksums_describe_body=False
    )
    assert await drain(body) == b"xml"
    assert body.checksums == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_checksum_in_the_trailer_is_checked(algorithm: str) -> None:
    header = HEADER_BY_ALGORITHM[algorithm]
    value = checksum(algorithm, DATA)
    for given_value, good in ((value, True), (checksum(algorithm, b"x"), False)):
        body = chunked(
            unsigned_body([DATA], [(header, given_value)]),
            UNSIGNED_TRAILER,
            ("x-amz-trailer", header),
            ("x-amz-sdk-checksum-algorithm", algorithm),
            length=len(DATA),
        )
        assert body.trailing_algorithms == (algorithm,)
        if good:
            assert await drain(body, 1_000) == DATA
            assert body.checksums == {algorithm: value}
        else:
            assert len(await taken_before(body, BadDigest)) < len(DATA)


async def test_a_trailer_that_was_announced_must_come() -> None:
    wire = unsigned_body([DATA])
    body = chunked(
        wire, UNSIGNED_TRAILER, ("x-amz-trailer", "x-amz-checksum-crc32"), length=len(DATA)
    )
    assert len(await taken_before(body, MalformedTrailerError)) < len(DATA)


async def test_a_trailer_with_a_value_that_is_none_is_refused() -> None:
    body = chunked(
        unsigned_body([DATA], [("x-amz-checksum-crc32", "AAAA")]),
        UNSIGNED_TRAILER,
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        length=len(DATA),
    )
    await taken_before(body, InvalidRequest)


@pytest.mark.parametrize(
    "headers",
    [
        [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-checksum-crc32", CRC32)],
        [("x-amz-trailer", "x-amz-checksum-crc32,x-amz-checksum-sha1")],
        [("x-amz-trailer", "x-amz-meta-late")],
        [("x-amz-trailer", "")],
        [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-sdk-checksum-algorithm", "SHA1")],
    ],
)
def test_a_trailer_is_one_checksum_and_the_only_one(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidRequest):
        chunked(b"", UNSIGNED_TRAILER, *headers, length=0)


def test_a_chunked_body_needs_its_decoded_length() -> None:
    with pytest.raises(MissingContentLength):
        open_body(Pieces([]), head(("content-length", "100")), UNSIGNED_TRAILER, timeout_seconds=5)


async def test_the_length_of_the_wire_counts_the_framing() -> None:
    wire = unsigned_body([DATA])
    for change, good in ((0, True), (1, False)):
        size = ("content-length", str(len(wire) + change))
        body = chunked(wire, UNSIGNED_TRAILER, size, length=len(DATA))
        if good:
            assert await drain(body) == DATA
        else:
            await taken_before(body, IncompleteBody)


@pytest.mark.parametrize("trailer", [False, True])
async def test_the_uploads_of_aws_documentation_verify(trailer: bool) -> None:
    announced, payload, wire = aws_example(trailer=trailer)
    body = open_body(Pieces([wire]), announced, payload, timeout_seconds=5)
    assert await drain(body) == b"a" * 66_560
    assert body.checksums == ({"CRC32C": "sOO8/Q=="} if trailer else {})


async def test_a_signed_chunk_that_was_changed_ends_the_body_before_its_last_byte() -> None:
    first, second = b"a" * 9_000, b"b" * 9_000
    for changed in (b"aaa", b"bbb"):
        wire = signed_body([first, second]).replace(changed, b"x" * 3, 1)
        body = chunked(wire, PayloadSigning("signed-chunks", None, signer()), length=18_000)
        assert len(await taken_before(body, SignatureDoesNotMatch)) < 18_000


# What follows sends real requests through aiohttp's server, whose stream the gateway reads.
Handler = Callable[[web.BaseRequest, RequestHead], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handle: Handler, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        return await handle(request, RequestHead(request.method, path, query, headers))

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("secure", [False, True])
async def test_what_boto3_uploads_unasked_is_accepted_and_verified(
    secure: bool, tmp_path: Path
) -> None:
    subject = Authenticator([TENANT], region=REGION, clock_skew_seconds=900)
    stored: list[tuple[str, bytes, dict[str, str]]] = []

    async def put(request: web.BaseRequest, announced: RequestHead) -> web.StreamResponse:
        identity = subject.authenticate(announced)
        assert announced.header("expect") == "100-continue"
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        body = open_body(request.content, announced, identity.payload, timeout_seconds=5)
        stored.append((identity.payload.kind, await drain(body), dict(body.checksums)))
        return web.Response(headers={"ETag": '"0"'})

    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    source = tmp_path / "source"
    source.write_bytes(DATA * 50)
    async with serving(put, tls if secure else None) as (host, port):

        def upload() -> None:
            client = boto3.client(
                "s3",
                endpoint_url=f"http{'s' if secure else ''}://{host}:{port}",
                aws_access_key_id=TENANT.access_key,
                aws_secret_access_key=SECRET,
                region_name=REGION,
                verify=str(trusted) if secure else None,
                config=Config(retries={"max_attempts": 0}),
            )
            with source.open("rb") as file:
                client.put_object(Bucket="train", Key="häschen/ 1+1=2.bin", Body=file)
            client.close()

        await asyncio.to_thread(upload)
    kind = "unsigned-chunks-trailer" if secure else "single"
    assert stored == [(kind, DATA * 50, {"CRC32": checksum("CRC32", DATA * 50)})]


@pytest.mark.parametrize(
    ("framing", "rest"),
    [
        (b"Content-Length: 10\r\n\r\nabc", b"def"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"3\r\nde"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"zz\r\n"),
    ],
)
async def test_a_client_that_breaks_off_leaves_an_incomplete_body(
    framing: bytes, rest: bytes
) -> None:
    begun = asyncio.Event()
    outcome: asyncio.Future[S3Error | bytes] = asyncio.get_running_loop().create_future()

    async def put(request: web.BaseRequest, _: RequestHead) -> web.StreamResponse:
        announced = head(("content-length", "10"))
        body = open_body(request.content, announced, UNSIGNED, timeout_seconds=5)
        begun.set()
        try:
            outcome.set_result(await drain(body))
        except S3Error as error:
            outcome.set_result(error)
        return web.Response()

    async with serving(put) as (host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"PUT /a HTTP/1.1\r\nHost: h\r\n" + framing)
        await asyncio.wait_for(begun.wait(), 60)
        writer.write(rest)
        await writer.drain()
        writer.close()
        assert isinstance(await asyncio.wait_for(outcome, 60), IncompleteBody)
