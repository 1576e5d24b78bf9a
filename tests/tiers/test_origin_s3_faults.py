"""What the S3 origin makes of a service that fails, and of one that is not there."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from gateway.errors import NoSuchKey, TierUnavailable, VersionChanged
from gateway.model.body import BytesBody
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import ObjectRef
from gateway.model.ranges import ByteRange
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.protocol import OpenedObject, RelayRequest
from tests.faulty import Fault, FlakyOrigin, flaky_origin
from tests.origins import SECRET_KEY, MotoServer, moto_server, s3_config, s3_origin

ANY = WriteConditions()
REF = ObjectRef("main", "faults", "key")
MIB = 1024**2
DATA = bytes(range(256)) * 16_384
READ_TIMEOUT_SECONDS = 0.5


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def flaky(moto: MotoServer) -> Iterator[FlakyOrigin]:
    moto.reset()
    with flaky_origin(moto.url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full jitter waits random() of the longest pause: here none of it."""
    backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
    monkeypatch.setattr(backoff, lambda *_: 0.0)
    monkeypatch.setattr("random.random", lambda: 0.0)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(params=["by hand", "through aiobotocore"])
def by_hand(request: pytest.FixtureRequest) -> bool:
    """Both ways of reading meet the same faults."""
    return bool(request.param == "by hand")


@pytest.fixture
async def origin(
    moto: MotoServer, flaky: FlakyOrigin, metrics: Metrics, by_hand: bool
) -> AsyncIterator[S3Origin]:
    async with s3_origin(s3_config(moto.url)) as sound:
        await sound.create_bucket(REF.bucket)
        await sound.put(REF, BytesBody(DATA), {}, ANY)
    config = s3_config(flaky.url, attempts=3, connections=16)
    async with s3_origin(config, metrics, by_hand=by_hand) as origin:
        yield origin


@pytest.fixture
async def hasty(origin: S3Origin, flaky: FlakyOrigin, by_hand: bool) -> AsyncIterator[S3Origin]:
    """The same origin, of less patience."""
    config = s3_config(flaky.url, attempts=3, read_timeout_seconds=READ_TIMEOUT_SECONDS)
    async with s3_origin(config, by_hand=by_hand) as hasty:
        yield hasty


async def read(opened: OpenedObject) -> bytes:
    try:
        return b"".join([block async for block in opened.blocks()])
    finally:
        await opened.close()


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"feedrack_{name}_total", labels) or 0.0


async def test_a_503_is_asked_again(origin: S3Origin, flaky: FlakyOrigin, metrics: Metrics) -> None:
    flaky.fail(Fault("status", "GetObject", status=503), times=2)
    assert await read(await origin.open(REF)) == DATA
    assert flaky.seen.requests["GetObject"] == 3
    assert counted(metrics, "origin_requests", operation="GetObject") == 3
    assert counted(metrics, "origin_read_bytes") == len(DATA)
    assert counted(metrics, "origin_errors", operation="GetObject") == 0


async def test_a_503_that_stays_is_unavailable_and_never_a_missing_key(
    origin: S3Origin, flaky: FlakyOrigin, metrics: Metrics
) -> None:
    flaky.fail(Fault("status", status=503), times=6)
    with pytest.raises(TierUnavailable) as caught:
        await origin.head(REF)
    assert caught.value.retry_after_seconds >= 1
    with pytest.raises(TierUnavailable):
        await origin.open(REF)
    assert counted(metrics, "origin_errors", operation="HeadObject") == 1


@pytest.mark.parametrize("kind", ["reset", "truncate"])
async def test_a_body_that_breaks_off_hands_out_what_came_and_says_so(
    origin: S3Origin, flaky: FlakyOrigin, kind: str, metrics: Metrics
) -> None:
    fault = Fault("reset" if kind == "reset" else "truncate", "GetObject", after_bytes=2 * MIB)
    flaky.fail(fault)
    opened = await origin.open(REF)
    got = bytearray()

    async def read_on() -> None:
        async for block in opened.blocks():
            got.extend(block)

    with pytest.raises(TierUnavailable):
        await read_on()
    assert DATA.startswith(bytes(got))
    assert len(got) < len(DATA)
    assert counted(metrics, "origin_errors", operation="GetObject") == 1
    rest = await origin.open(REF, wanted=ByteRange(len(got), len(DATA)))
    assert bytes(got) + await read(rest) == DATA


async def test_an_answer_shorter_than_announced_is_unavailable(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.fail(Fault("wrong_length", "GetObject", after_bytes=10))
    opened = await origin.open(REF)
    with pytest.raises(TierUnavailable):
        await read(opened)


async def test_a_stall_in_the_body_is_unavailable_in_time(
    hasty: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.fail(Fault("stall", "GetObject", after_bytes=MIB))
    opened = await hasty.open(REF)
    started = time.monotonic()
    with pytest.raises(TierUnavailable):
        await read(opened)
    assert time.monotonic() - started < 5 * READ_TIMEOUT_SECONDS


async def test_a_stall_before_the_answer_is_asked_again(
    hasty: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.fail(Fault("stall", "GetObject"))
    assert await read(await hasty.open(REF)) == DATA
    flaky.fail(Fault("stall", "HeadObject"), times=3)
    with pytest.raises(TierUnavailable):
        await hasty.head(REF)


@pytest.mark.parametrize("kind", ["before", "within"])
async def test_an_upload_that_the_origin_does_not_take_ends_in_time(
    hasty: S3Origin, flaky: FlakyOrigin, kind: str
) -> None:
    target = ObjectRef("main", REF.bucket, "stalled")
    if kind == "before":
        flaky.fail(Fault("stall", "PutObject"))
    else:
        flaky.fail(Fault("stall_upload", "PutObject", after_bytes=MIB))
    started = time.monotonic()
    with pytest.raises(TierUnavailable):
        await hasty.put(target, BytesBody(DATA * 8), {}, ANY)
    assert time.monotonic() - started < 20 * READ_TIMEOUT_SECONDS
    flaky.heal()
    with pytest.raises(NoSuchKey):
        await hasty.head(target)


async def test_a_small_upload_that_is_refused_is_sent_again_and_a_streamed_one_is_not(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.seen.requests.clear()
    flaky.fail(Fault("status", "PutObject", status=503))
    small = ObjectRef("main", REF.bucket, "small")
    await origin.put(small, BytesBody(b"small"), {}, ANY)
    assert flaky.seen.requests["PutObject"] == 2
    flaky.fail(Fault("reset_upload", "PutObject", after_bytes=MIB))
    with pytest.raises(TierUnavailable):
        await origin.put(REF, BytesBody(DATA), {}, ANY)
    assert flaky.seen.requests["PutObject"] == 3
    assert (await origin.head(REF)).size_bytes == len(DATA)


@pytest.mark.parametrize("lost", ["the answer", "the request"])
@pytest.mark.parametrize("operation", ["PutObject", "CopyObject", "DeleteObject"])
async def test_a_change_of_which_nobody_knows_what_became_is_not_asked_for_again(
    origin: S3Origin, flaky: FlakyOrigin, operation: str, lost: str
) -> None:
    """Done twice it would undo what others wrote in between; a copy would miss its source."""
    key = ObjectRef("main", REF.bucket, "changed once")
    act: Callable[[], Awaitable[object]] = {
        "PutObject": lambda: origin.put(key, BytesBody(b"small"), {}, ANY),
        "CopyObject": lambda: origin.copy(
            REF, key, headers=None, tagging=None, source_conditions=Conditions(), conditions=ANY,
            checksum_algorithm=None,
        ),
        "DeleteObject": lambda: origin.delete(key, ANY),
    }[operation]  # fmt: skip
    flaky.seen.requests.clear()
    flaky.fail(Fault("lose" if lost == "the answer" else "reset", operation))
    with pytest.raises(TierUnavailable):
        await act()
    assert flaky.seen.requests[operation] == 1


async def test_a_small_upload_ends_in_time_where_the_origin_says_nothing_at_all(
    hasty: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.fail(Fault("stall", "PutObject"))
    started = time.monotonic()
    with pytest.raises(TierUnavailable):
        await hasty.put(ObjectRef("main", REF.bucket, "silent"), BytesBody(b"small"), {}, ANY)
    assert time.monotonic() - started < 10 * READ_TIMEOUT_SECONDS


async def test_a_streamed_upload_refused_before_its_first_byte_is_sent_again(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    target = ObjectRef("main", REF.bucket, "large")
    flaky.fail(Fault("status", "PutObject", status=503), times=2)
    await origin.put(target, BytesBody(DATA), {}, ANY)
    assert await read(await origin.open(target)) == DATA


async def test_another_etag_between_two_reads_is_a_change(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    etag = (await origin.head(REF)).etag
    first = await origin.open(REF, wanted=ByteRange(0, MIB), if_match=etag)
    assert await read(first) == DATA[:MIB]
    flaky.fail(Fault("etag", "GetObject"))
    with pytest.raises(VersionChanged):
        await origin.open(REF, wanted=ByteRange(MIB, 2 * MIB), if_match=etag)


async def test_two_hundred_reads_at_once_leave_no_connection_behind(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    async def read_some(number: int) -> None:
        opened = await origin.open(REF, wanted=ByteRange(number, number + 1000))
        if number % 3:
            assert await read(opened) == DATA[number : number + 1000]
        else:
            await opened.close()

    await asyncio.gather(*(read_some(number) for number in range(200)))
    # All 16 connections must be free again, or this would wait for one for ever.
    opened = [await origin.open(REF) for _ in range(16)]
    for reader in opened:
        await reader.close()
        await reader.close()


async def test_random_faults_end_in_the_right_bytes_or_unavailable(
    origin: S3Origin, flaky: FlakyOrigin
) -> None:
    flaky.fail_at_random(
        0.4,
        [
            Fault("status", status=500),
            Fault("reset", after_bytes=100_000),
            Fault("truncate", after_bytes=70_000),
        ],
    )
    ends = {"whole": 0, "broken": 0}
    for number in range(40):
        wanted = ByteRange(number * 1000, number * 1000 + 200_000)
        try:
            assert (
                await read(await origin.open(REF, wanted=wanted))
                == DATA[wanted.start : wanted.stop]
            )
            ends["whole"] += 1
        except TierUnavailable:
            ends["broken"] += 1
    assert all(ends.values()), ends


Act = Callable[[S3Origin], Awaitable[object]]


@pytest.mark.parametrize(
    "act",
    [
        lambda origin: origin.head(REF),
        lambda origin: origin.open(REF),
        lambda origin: origin.put(REF, BytesBody(DATA), {}, ANY),
        lambda origin: origin.list_buckets(),
        lambda origin: origin.relay(RelayRequest(method="GET", bucket="b"), None),
    ],
    ids=["head", "open", "put", "list_buckets", "relay"],
)
async def test_nobody_there_is_unavailable(act: Act) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with s3_origin(s3_config(url, attempts=2)) as origin:
            started = time.monotonic()
            with pytest.raises(TierUnavailable):
                await act(origin)
            assert time.monotonic() - started < 5


async def test_an_origin_that_is_not_started_is_unavailable() -> None:
    origin = S3Origin("main", s3_config("http://127.0.0.1:1"), SECRET_KEY, Metrics())
    with pytest.raises(TierUnavailable):
        await origin.head(REF)
