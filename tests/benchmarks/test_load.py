"""The load generator against a real server that answers rightly, and against ones that do not."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
from aiohttp import web

from benchmarks import load, objects
from benchmarks.jobs import Job, Outcome, latency

SIZE_BYTES = 3 * objects.BLOCK_BYTES + 17

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[Job]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> Job:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return Job(
            mix={"GET": 1},
            host="127.0.0.1",
            port=runner.addresses[0][1],
            bucket="read",
            prefix="some",
            count=20,
            size_bytes=SIZE_BYTES,
            requests=20,
            connections=4,
            access_key="a",
            secret_key="b",
            sample_every=1,
            timeout_seconds=5.0,
        )

    yield start
    for runner in runners:
        await runner.cleanup()


async def run(job: Job, **changes: object) -> Outcome:
    return await asyncio.to_thread(load.run, msgspec.structs.replace(job, **changes))


def number_of(request: web.Request) -> int:
    return int(request.path.rpartition("/")[2])


async def answer_rightly(request: web.Request) -> web.Response:
    body = b"".join(objects.parts(number_of(request), SIZE_BYTES))
    return web.Response(body=body, headers={"x-feedrack-tier": "disk"})


async def test_asks_for_each_key_once_and_counts_what_came(serve: Serve) -> None:
    asked: list[int] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(number_of(request))
        return await answer_rightly(request)

    outcome = await run(await serve(handler))
    assert sorted(asked) == list(range(20))
    assert (outcome.requests, outcome.failures) == (20, 0)
    assert outcome.body_bytes == 20 * SIZE_BYTES
    assert outcome.hashed == 20
    assert outcome.tiers == {"disk": 20}
    assert 0 < outcome.latency.p50_ms <= outcome.latency.p99_ms <= outcome.seconds * 1000


async def test_goes_round_until_the_time_is_up(serve: Serve) -> None:
    job = await serve(answer_rightly)
    outcome = await run(job, count=2, requests=1000, seconds=0.3)
    assert 2 < outcome.requests < 1000
    assert outcome.failures == 0
    assert outcome.seconds >= 0.3


async def test_ends_before_its_time_rather_than_send_a_request_twice(serve: Serve) -> None:
    asked: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers["Authorization"]))
        return await answer_rightly(request)

    outcome = await run(await serve(handler), count=2, requests=9, seconds=60.0)
    assert outcome.requests == len(set(asked)) == 9
    assert outcome.seconds < 30


async def test_sends_at_the_rate_asked_for(serve: Serve) -> None:
    outcome = await run(
        await serve(answer_rightly), count=10, requests=1000, seconds=0.5, rate=40.0
    )
    assert outcome.requests == 20
    assert outcome.seconds > 0.45


async def test_finds_one_flipped_byte(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        body = bytearray(b"".join(objects.parts(number_of(request), SIZE_BYTES)))
        if number_of(request) == 7:
            body[2_000_000] ^= 1
        return web.Response(body=bytes(body))

    outcome = await run(await serve(handler))
    assert (outcome.requests, outcome.failures) == (19, 1)
    assert outcome.first_failure == "object 7: the body's SHA-256 is wrong"


async def test_takes_another_objects_bytes_for_wrong(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=b"".join(objects.parts(3, SIZE_BYTES)))

    outcome = await run(await serve(handler))
    assert (outcome.requests, outcome.failures) == (1, 19)


async def test_counts_a_short_answer_as_a_failure(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=bytes(SIZE_BYTES - 1))

    outcome = await run(await serve(handler))
    assert (outcome.requests, outcome.failures) == (0, 20)
    assert outcome.first_failure == f"a length of {SIZE_BYTES - 1} bytes instead of {SIZE_BYTES}"


async def test_counts_a_connection_that_breaks_as_a_failure(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(SIZE_BYTES)})
        await response.prepare(request)
        await response.write(bytes(1000))
        assert request.transport is not None
        request.transport.close()
        return response

    outcome = await run(await serve(handler), count=4, requests=4)
    assert (outcome.requests, outcome.failures) == (0, 4)
    assert outcome.first_failure == "closed in the middle of an answer"


async def test_tells_the_status_and_the_text_of_an_error(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=404, text="NoSuchKey")

    outcome = await run(await serve(handler))
    assert outcome.failures == 20
    assert outcome.first_failure == "HTTP/1.1 404 Not Found NoSuchKey"


async def test_uploads_the_whole_body(serve: Serve) -> None:
    whole: list[bool] = []

    async def handler(request: web.Request) -> web.Response:
        expected = objects.piece(number_of(request), 0, SIZE_BYTES)
        whole.append(await request.read() == expected)
        return web.Response()

    outcome = await run(await serve(handler), mix={"PUT": 1})
    assert whole == [True] * 20
    assert (outcome.requests, outcome.failures) == (20, 0)
    assert outcome.body_bytes == 20 * SIZE_BYTES


async def test_uploads_more_parts_than_one_call_takes(serve: Serve) -> None:
    size_bytes = 600 * objects.BLOCK_BYTES
    arrived: list[int] = []

    async def handler(request: web.Request) -> web.Response:
        came = 0
        async for block in request.content.iter_any():
            came += len(block)
        arrived.append(came)
        return web.Response()

    job = await serve(handler)
    outcome = await run(
        job, mix={"PUT": 1}, count=1, requests=1, connections=1, size_bytes=size_bytes
    )
    assert (outcome.requests, outcome.failures) == (1, 0)
    assert arrived == [size_bytes]


async def test_asks_for_ranges_and_checks_them(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        found = request.http_range
        assert found.start is not None
        assert found.stop is not None
        size_bytes = found.stop - found.start
        body = objects.piece(number_of(request), found.start, size_bytes)
        return web.Response(status=206, body=body)

    outcome = await run(await serve(handler), piece_bytes=4096)
    assert (outcome.requests, outcome.failures, outcome.hashed) == (20, 0, 20)
    assert outcome.body_bytes == 20 * 4096


async def test_a_mix_is_told_method_by_method(serve: Serve) -> None:
    asked: Counter[str] = Counter()

    async def handler(request: web.Request) -> web.StreamResponse:
        asked[request.method] += 1
        if request.method == "PUT":
            await request.read()
            return web.Response()
        return await answer_rightly(request)

    mix = {"GET": 2, "HEAD": 1, "PUT": 1}
    outcome = await run(await serve(handler), mix=mix, requests=60)
    assert (outcome.requests, outcome.failures) == (60, 0)
    assert asked.keys() == outcome.by_method.keys() == mix.keys()
    assert outcome.body_bytes == (asked["GET"] + asked["PUT"]) * SIZE_BYTES
    assert asked == {method: part.requests for method, part in outcome.by_method.items()}
    assert all(part.latency.p50_ms > 0 for part in outcome.by_method.values())


async def test_tells_the_first_byte_from_the_last(serve: Serve) -> None:
    asked = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        body = objects.piece(number_of(request), 0, SIZE_BYTES)
        response = web.StreamResponse(headers={"Content-Length": str(SIZE_BYTES)})
        await response.prepare(request)
        await response.write(body[:1000])
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), 0.1)
        await response.write(body[1000:])
        return response

    outcome = await run(await serve(handler), count=1, requests=1, connections=1)
    assert outcome.failures == 0
    assert 0 < outcome.first_byte.p50_ms < outcome.latency.p50_ms - 50


async def test_bodies_that_nobody_hashes_still_have_to_be_whole(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(SIZE_BYTES)})
        await response.prepare(request)
        await response.write(bytes(SIZE_BYTES - 1))
        assert request.transport is not None
        request.transport.close()
        return response

    job = await serve(handler)
    outcome = await run(job, count=4, requests=4, sample_every=0)
    assert (outcome.requests, outcome.failures, outcome.hashed) == (0, 4, 0)
    assert outcome.first_failure == "closed in the middle of an answer"


def test_percentiles_go_by_nearest_rank() -> None:
    measured = [number * 1_000_000 for number in range(1, 1001)]
    random.Random(1).shuffle(measured)
    found = latency(measured)
    assert (found.p50_ms, found.p99_ms, found.p999_ms) == (501.0, 991.0, 1000.0)
    assert latency([]).p999_ms == 0.0
