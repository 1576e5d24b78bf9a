"""Objects read by hand: every byte where it should be, whatever the origin does with the wire."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import trustme
from aiobotocore.credentials import AioRefreshableCredentials

from gateway.config import S3OriginConfig
from gateway.errors import (
    AccessDenied,
    NoSuchBucket,
    NoSuchKey,
    PreconditionFailed,
    TierUnavailable,
    VersionChanged,
)
from gateway.model.objects import ObjectRef
from gateway.model.ranges import ByteRange
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.protocol import OpenedObject
from tests.faulty import header
from tests.origins import s3_config, s3_origin
from tests.tiers.raw_origin import Act, Exchange, RawOrigin, answer, raw_origin, refusal
from tests.waiting import until

REF = ObjectRef("main", "bucket", "key")
DATA = random.Random(9).randbytes(3_000_000)
SMALL = DATA[:200]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
    monkeypatch.setattr(backoff, lambda *_: 0.0)


@asynccontextmanager
async def origin_of(
    act: Act, metrics: Metrics | None = None, **settings: object
) -> AsyncIterator[tuple[S3Origin, RawOrigin]]:
    async with raw_origin(act) as raw:
        config = msgspec.structs.replace(s3_config(raw.url), **settings)
        async with s3_origin(config, metrics) as origin:
            yield origin, raw


async def read_in_place(opened: OpenedObject, stride_bytes: int = 100_000) -> bytes:
    """The rest of an answer, put into memory piece by piece."""
    data = bytearray()
    memory = memoryview(bytearray(stride_bytes))
    try:
        while size_bytes := await opened.read_into(memory):
            data += memory[:size_bytes]
        assert await opened.read_into(memory) == 0
    finally:
        await opened.close()
    return bytes(data)


async def read_on(opened: OpenedObject, got: bytearray) -> None:
    """Reads until it breaks."""
    memory = memoryview(bytearray(1000))
    while size_bytes := await opened.read_into(memory):
        got += memory[:size_bytes]


async def read_blocks(opened: OpenedObject) -> bytes:
    try:
        return b"".join([block async for block in opened.blocks()])
    finally:
        await opened.close()


def wanted_of(exchange: Exchange) -> tuple[int, int]:
    """The range asked for."""
    value = header(exchange.head, "range")
    assert value is not None
    first, _, last = value.removeprefix("bytes=").partition("-")
    return int(first), int(last) + 1


async def serve(exchange: Exchange) -> None:
    """A well-behaved service that holds DATA."""
    if header(exchange.head, "range") is None:
        body = answer(DATA)
    else:
        start, stop = wanted_of(exchange)
        body = answer(DATA[start:stop], part=(start, len(DATA)))
    await exchange.send(body if exchange.method == "GET" else body.partition(b"\r\n\r\n")[0])
    if exchange.method == "HEAD":
        await exchange.send(b"\r\n\r\n")


@pytest.mark.parametrize("read", [read_in_place, read_blocks])
async def test_many_reads_go_over_one_connection_and_none_through_aiobotocore(
    read: object,
) -> None:
    assert callable(read)
    metrics = Metrics()
    async with origin_of(serve, metrics) as (origin, raw):
        for start, stop in ((0, 3_000_000), (5, 6), (1_000_000, 2_999_999), (0, 9_000_000)):
            opened = await origin.open(REF, wanted=ByteRange(start, stop), if_match="v1")
            assert opened.range == ByteRange(start, min(stop, len(DATA)))
            assert await read(opened) == DATA[start:stop]
        assert await read(await origin.open(REF)) == DATA
        assert (await origin.head(REF)).size_bytes == len(DATA)
    assert all(raw.by_hand)
    assert raw.connections == 1
    count = metrics.registry.get_sample_value
    assert count("feedrack_origin_requests_total", {"operation": "GetObject"}) == 5
    assert count("feedrack_origin_read_bytes_total") == 9_000_000 + 1_999_999 + 1


async def test_reads_at_once_share_the_connections_that_may_be_made() -> None:
    async with origin_of(serve, connections=4) as (origin, raw):

        async def read(number: int) -> None:
            wanted = ByteRange(number * 1000, number * 1000 + 50_000)
            opened = await origin.open(REF, wanted=wanted)
            if number % 5:
                assert await read_in_place(opened) == DATA[wanted.start : wanted.stop]
            else:
                await opened.close()
                await opened.close()

        await asyncio.gather(*(read(number) for number in range(60)))
        assert await read_in_place(await origin.open(REF)) == DATA
    assert max(each.connection for each in raw.requests) >= 3


@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_cut_at_any_byte_gives_what_came_and_then_says_so(reset: bool) -> None:
    whole = answer(SMALL, part=(0, len(SMALL)))
    body_at = len(whole) - len(SMALL)

    async def act(exchange: Exchange) -> None:
        if exchange.number % 2:
            await exchange.send(whole)
            return
        await exchange.send(whole[: exchange.number // 2])
        exchange.reset() if reset else await exchange.close()

    async with origin_of(act, attempts=2) as (origin, raw):
        for cut in range(len(whole)):
            opened = await origin.open(REF, wanted=ByteRange(0, len(SMALL)))
            if cut < body_at:
                # Asked again: no answer had begun.
                assert await read_in_place(opened) == SMALL
                continue
            got = bytearray()
            with pytest.raises(TierUnavailable):
                await read_on(opened, got)
            assert SMALL.startswith(got)
            if not reset:
                assert len(got) == cut - body_at
            await opened.close()
            rest = ByteRange(len(got), len(SMALL))
            if rest.size_bytes:
                again = await origin.open(REF, wanted=ByteRange(0, len(SMALL)))
                assert await read_in_place(again) == SMALL
        assert all(raw.by_hand)


async def test_an_answer_may_come_byte_by_byte() -> None:
    async def act(exchange: Exchange) -> None:
        for byte in answer(SMALL, part=(0, len(SMALL))):
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0)

    async with origin_of(act) as (origin, raw):
        for _ in range(2):
            opened = await origin.open(REF, wanted=ByteRange(0, len(SMALL)))
            assert await read_in_place(opened) == SMALL
    assert raw.connections == 1


async def test_a_slow_answer_is_handed_on_as_it_comes() -> None:
    """The kernel must not gather bytes while somebody waits for the first of them."""
    proceed = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        whole = answer(DATA, part=(0, len(DATA)))
        await exchange.send(whole[:-1_000_000])
        for start in range(len(whole) - 1_000_000, len(whole) - 900_000, 10_000):
            await proceed.wait()
            proceed.clear()
            await exchange.send(whole[start : start + 10_000])
        await exchange.send(whole[-900_000:])

    async with origin_of(act) as (origin, _):
        opened = await origin.open(REF, wanted=ByteRange(0, len(DATA)))
        memory = memoryview(bytearray(len(DATA)))
        got = 0
        while got < len(DATA) - 1_000_000:
            got += await opened.read_into(memory[got:])
        for _ in range(10):
            proceed.set()
            stop = got + 10_000
            async with asyncio.timeout(60):
                while got < stop:
                    got += await opened.read_into(memory[got:])
        while got < len(DATA):
            got += await opened.read_into(memory[got:])
        assert bytes(memory) == DATA


@pytest.mark.parametrize("how", ["after the answer", "at the next request"])
async def test_a_connection_that_the_origin_closed_meanwhile_costs_no_attempt(how: str) -> None:
    async def act(exchange: Exchange) -> None:
        first = exchange.number == 0 or exchange.connection > 0
        if how == "at the next request" and not first:
            exchange.reset()
            return
        await exchange.send(answer(SMALL, part=(0, len(SMALL))))
        if how == "after the answer":
            await exchange.close()

    async with origin_of(act, attempts=1) as (origin, raw):
        for _ in range(3):
            opened = await origin.open(REF, wanted=ByteRange(0, len(SMALL)))
            assert await read_in_place(opened) == SMALL
            if how == "after the answer":
                await until(lambda: not raw.open_connections)


async def test_what_comes_unasked_ends_a_connection() -> None:
    async def act(exchange: Exchange) -> None:
        await exchange.send(answer(SMALL, part=(0, len(SMALL))) + b"HTTP/1.1 200 OK\r\n")

    async with origin_of(act) as (origin, raw):
        for expected in (1, 2):
            opened = await origin.open(REF, wanted=ByteRange(0, len(SMALL)))
            assert await read_in_place(opened) == SMALL
            assert raw.connections == expected
            await asyncio.sleep(0.01)


async def test_a_connection_with_an_unread_rest_is_not_used_again() -> None:
    async with origin_of(serve) as (origin, raw):
        first = await origin.open(REF)
        memory = memoryview(bytearray(1000))
        assert await first.read_into(memory)
        await first.close()
        assert await read_in_place(await origin.open(REF)) == DATA
        assert raw.connections == 2


async def test_announcements_before_an_answer_are_passed_over() -> None:
    async def act(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(SMALL))

    async with origin_of(act) as (origin, raw):
        assert await read_in_place(await origin.open(REF)) == SMALL
    assert raw.by_hand == [True]


# Refusals and retries


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("404 Not Found", "NoSuchKey", NoSuchKey),
        ("404 Not Found", "NoSuchBucket", NoSuchBucket),
        ("412 Precondition Failed", "PreconditionFailed", PreconditionFailed),
        ("403 Forbidden", "AccessDenied", AccessDenied),
    ],
)
async def test_a_refusal_is_the_origins_own_and_leaves_the_connection(
    status: str, code: str, error: type[Exception], chunked: bool
) -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.number == 2:
            await serve(exchange)
        else:
            await exchange.send(refusal(status, code, chunked=chunked))

    async with origin_of(act) as (origin, raw):
        for _ in range(2):
            with pytest.raises(error):
                await origin.open(REF)
        assert await read_in_place(await origin.open(REF)) == DATA
    assert (raw.connections, raw.by_hand) == (1, [True] * 3)


async def test_a_gone_version_is_a_change_where_one_was_asked_for() -> None:
    async def act(exchange: Exchange) -> None:
        assert header(exchange.head, "if-match") == '"v1"'
        await exchange.send(refusal("412 Precondition Failed", "PreconditionFailed"))

    async with origin_of(act) as (origin, _):
        with pytest.raises(VersionChanged):
            await origin.open(REF, if_match="v1")


@pytest.mark.parametrize("status", ["500 Internal", "503 Slow Down", "429 Too Many"])
async def test_a_busy_origin_is_asked_again_and_in_the_end_unavailable(status: str) -> None:
    metrics = Metrics()

    async def act(exchange: Exchange) -> None:
        if exchange.number in (2, 5, 6, 7):
            await serve(exchange) if exchange.number == 2 else await exchange.send(
                refusal(status, "SlowDown", chunked=True)
            )
        else:
            await exchange.send(refusal(status, "InternalError"))

    async with origin_of(act, metrics, attempts=3) as (origin, raw):
        assert await read_in_place(await origin.open(REF)) == DATA
        with pytest.raises(TierUnavailable):
            await origin.open(REF)
    assert raw.by_hand == [True] * 6
    count = metrics.registry.get_sample_value
    assert count("feedrack_origin_errors_total", {"operation": "GetObject"}) == 1


async def test_silence_is_given_up_in_time_before_and_within_an_answer() -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.number == 1:
            await exchange.send(answer(SMALL)[:-100])
        await asyncio.Event().wait()

    async with origin_of(act, attempts=1, read_timeout_seconds=0.3) as (origin, _):
        begun = time.monotonic()
        with pytest.raises(TierUnavailable):
            await origin.open(REF)
        opened = await origin.open(REF)
        with pytest.raises(TierUnavailable):
            await read_in_place(opened)
        assert 0.5 < time.monotonic() - begun < 5


async def test_a_reader_that_leaves_gives_its_connection_up() -> None:
    async def act(exchange: Exchange) -> None:
        await exchange.send(answer(SMALL)[:-100])
        await asyncio.Event().wait()

    async with origin_of(act, connections=1) as (origin, raw):
        for _ in range(3):
            opened = await origin.open(REF)
            reading = asyncio.create_task(read_in_place(opened))
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        asking = [asyncio.create_task(origin.open(REF)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        opens = await asyncio.gather(*asking, return_exceptions=True)
        for opened_or_not in opens:
            if not isinstance(opened_or_not, BaseException):
                await opened_or_not.close()
        async with asyncio.timeout(60):
            await (await origin.open(REF)).close()
    assert all(raw.by_hand)


# Answers that are not what was asked for


async def test_other_bytes_than_asked_for_are_no_answer() -> None:
    answers = [
        answer(DATA[100:200], part=(100, len(DATA))),
        answer(DATA[:50], part=(0, len(DATA))),
        answer(SMALL, status="206 Partial Content"),
        answer(SMALL, etag=""),
        answer(SMALL, part=(0, len(DATA)), length=len(SMALL) + 1) + b"x",
    ]

    async def act(exchange: Exchange) -> None:
        await exchange.send(answers[exchange.number])

    async with origin_of(act, attempts=1) as (origin, raw):
        for _ in answers:
            with pytest.raises(TierUnavailable):
                await read_in_place(await origin.open(REF, wanted=ByteRange(0, 100)))
    assert raw.open_connections <= 1


async def test_more_than_asked_for_is_cut_away_at_both_ends() -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.number % 2:
            await exchange.send(answer(DATA))
        else:
            await exchange.send(answer(DATA[500:2_000_000], part=(500, len(DATA))))

    async with origin_of(act) as (origin, _):
        for wanted in (ByteRange(1_000, 1_500_000), ByteRange(1_000_000, 1_000_001)):
            for read in (read_in_place, read_blocks):
                opened = await origin.open(REF, wanted=wanted)
                assert await read(opened) == DATA[wanted.start : wanted.stop]


# What is left to aiobotocore


async def test_a_body_of_unknown_length_is_left_to_aiobotocore_and_so_is_the_next() -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.by_hand:
            head = b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nTransfer-Encoding: chunked\r\n\r\n'
            await exchange.send(head + b"5\r\nwrong\r\n0\r\n\r\n")
        else:
            await serve(exchange)

    async with origin_of(act) as (origin, raw):
        for _ in range(2):
            assert await read_in_place(await origin.open(REF)) == DATA
    assert raw.by_hand == [True, False, False]


@pytest.mark.parametrize("garbage", [b"HTTP/3 200\r\n\r\n", b"x" * 70_000, b"\0\r\n\r\n"])
async def test_what_is_not_quite_http_is_left_to_aiobotocore(garbage: bytes) -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.by_hand:
            await exchange.send(garbage)
        else:
            await serve(exchange)

    async with origin_of(act) as (origin, raw):
        assert await read_in_place(await origin.open(REF)) == DATA
    assert raw.by_hand == [True, False]


async def test_a_redirect_is_left_to_aiobotocore_which_follows_it() -> None:
    async with raw_origin(serve) as other:

        async def act(exchange: Exchange) -> None:
            moved = refusal("307 Temporary Redirect", "TemporaryRedirect")
            location = f"Location: {other.url}/bucket/key\r\n".encode()
            await exchange.send(moved.replace(b"\r\n", b"\r\n" + location, 1))

        async with origin_of(act, attempts=1) as (origin, raw):
            assert await read_in_place(await origin.open(REF)) == DATA
    assert (raw.by_hand, other.by_hand) == ([True, False], [False])


async def test_a_bucket_of_another_region_is_found_by_aiobotocore_and_then_read_by_hand() -> None:
    async def act(exchange: Exchange) -> None:
        if exchange.method == "HEAD":
            where = {"x-amz-bucket-region": "eu-west-1"}
            await exchange.send(answer(b"", etag="", headers=where))
        elif b"/eu-west-1/s3/" in exchange.head:
            await serve(exchange)
        else:
            await exchange.send(refusal("301 Moved Permanently", "PermanentRedirect"))

    async with origin_of(act, attempts=1) as (origin, raw):
        for _ in range(2):
            assert await read_in_place(await origin.open(REF)) == DATA
    assert raw.by_hand == [True, False, False, False, True]


async def test_a_bucket_that_is_nowhere_is_the_operators_affair() -> None:
    async def act(exchange: Exchange) -> None:
        moved = refusal("301 Moved Permanently", "PermanentRedirect")
        where = {"x-amz-bucket-region": "eu-west-1"}
        head = answer(b"", etag="", headers=where)
        await exchange.send(head if exchange.method == "HEAD" else moved)

    async with origin_of(act, attempts=1) as (origin, _):
        with pytest.raises(TierUnavailable, match="another region"):
            await origin.open(REF)


async def test_refused_credentials_are_the_operators_affair() -> None:
    async def act(exchange: Exchange) -> None:
        await exchange.send(refusal("403 Forbidden", "SignatureDoesNotMatch"))

    async with origin_of(act, attempts=1) as (origin, _):
        with pytest.raises(TierUnavailable, match="credentials"):
            await origin.open(REF)


async def test_a_proxy_is_left_to_aiobotocore(monkeypatch: pytest.MonkeyPatch) -> None:
    async with origin_of(serve, attempts=1) as (origin, raw):
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", raw.url)
        opened = await origin.open(REF)
        assert await read_in_place(opened) == DATA
    assert raw.by_hand == [False]


async def test_a_name_that_http_cannot_carry_is_left_to_aiobotocore() -> None:
    async with origin_of(serve, attempts=1) as (origin, raw):
        odd = ObjectRef("main", "bucket", "lone \ud800 surrogate")
        with pytest.raises(Exception, match=r"surrogates|codec|refuses"):
            await origin.open(odd)
    assert raw.by_hand == []


# Credentials


async def test_a_roles_credentials_are_renewed_on_the_way() -> None:
    renewals = 0

    async def renew() -> dict[str, str]:
        nonlocal renewals
        renewals += 1
        return {
            "access_key": f"key-{renewals}",
            "secret_key": "secret",
            "token": f"token-{renewals}",
            # Within the time in which botocore insists on new ones.
            "expiry_time": (datetime.now(UTC) + timedelta(seconds=60)).isoformat(),
        }

    async with origin_of(serve) as (origin, raw):
        credentials = AioRefreshableCredentials.create_from_metadata(
            metadata=await renew(), refresh_using=renew, method="test"
        )
        setattr(origin._session, "_credentials", credentials)  # noqa: B010 - not in the stubs
        for _ in range(2):
            await read_in_place(await origin.open(REF))
    tokens = [header(each.head, "x-amz-security-token") for each in raw.requests]
    assert tokens == ["token-2", "token-3"]
    assert "Credential=key-3/" in (header(raw.requests[1].head, "authorization") or "")


# TLS


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def tls_origin(
    authority: trustme.CA, act: Act, folder: Path, trusted: bool = True
) -> AsyncIterator[tuple[S3Origin, RawOrigin]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    ca_file = folder / "ca.pem"
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(str(ca_file))
    async with raw_origin(act, context) as raw:
        config: S3OriginConfig = msgspec.structs.replace(
            s3_config(raw.url, attempts=1), tls_ca_file=ca_file
        )
        async with s3_origin(config) as origin:
            yield origin, raw


async def test_tls_brings_the_same_bytes_over_one_connection(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with tls_origin(authority, serve, tmp_path) as (origin, raw):
        for start, stop in ((0, 3_000_000), (1, 2), (16_000, 2_000_000)):
            for stride_bytes in (50, 16_384, 1_000_000) if stop < 3_000_000 else (300_000,):
                if stop - start > 100_000 and stride_bytes < 100:
                    continue
                opened = await origin.open(REF, wanted=ByteRange(start, stop))
                assert await read_in_place(opened, stride_bytes) == DATA[start:stop]
            opened = await origin.open(REF, wanted=ByteRange(start, stop))
            assert await read_blocks(opened) == DATA[start:stop]
    assert (raw.connections, all(raw.by_hand)) == (1, True)


async def test_tls_that_breaks_off_is_unavailable(authority: trustme.CA, tmp_path: Path) -> None:
    async def act(exchange: Exchange) -> None:
        await exchange.send(answer(DATA)[:-1_000_000])
        exchange.reset()

    async with tls_origin(authority, act, tmp_path) as (origin, _):
        opened = await origin.open(REF)
        with pytest.raises(TierUnavailable):
            await read_in_place(opened)


async def test_nobody_is_trusted_who_cannot_prove_himself(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with tls_origin(authority, serve, tmp_path, trusted=False) as (origin, raw):
        with pytest.raises(TierUnavailable):
            await origin.open(REF)
    assert raw.requests == []
