"""The client of the admin ports: one that answers is enough, and none is believed too much."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_plugin.dataset import parse_dataset
from scheduler_plugin.gateways import Gateways, GatewaysUnavailable, NobodyServes, Refused, TooBusy

IMAGENET = parse_dataset("s3://train/imagenet")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def admin_port(handler: Handler) -> AsyncIterator[str]:
    """A server that answers everything in one way; its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def answering(body: bytes, status: int = 200) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    return answer


async def test_one_that_answers_is_enough_and_is_asked_first_from_then_on() -> None:
    seen: list[str] = []

    async def broken(request: web.Request) -> web.Response:
        seen.append("broken")
        return web.Response(status=500, text="no")

    async def works(request: web.Request) -> web.Response:
        seen.append("works")
        assert request.headers["Authorization"] == "Bearer secret"
        return web.Response(body=b'{"members": [{"id": "n1", "rack": "r1", "more": [1]}]}')

    async with (
        admin_port(broken) as one,
        admin_port(works) as other,
        Gateways([f"{one}/", "http://127.0.0.1:1", other], "secret") as gateways,
    ):
        assert [each.id for each in await gateways.members()] == ["n1"]
        await gateways.members()
    assert seen == ["broken", "works", "works"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"<html>",
        b'{"datasets": [{"dataset": "s3://train/", "nodes": {"n1": -1}}]}',
        b'{"datasets": [{"dataset": "s3://train/", "nodes": {"n1": 1e300}}]}',
        b'{"datasets": [{"dataset": "s3://train/", "nodes": {"n1": "9"}}]}',
        b'{"datasets": [{"dataset": 1, "nodes": {}}]}',
        b"[" * 100_000,
        b'{"datasets": "\xff"}',
    ],
)
async def test_nonsense_is_no_answer(body: bytes) -> None:
    async with admin_port(answering(body)) as url, Gateways([url], "t") as gateways:
        with pytest.raises(GatewaysUnavailable):
            await gateways.counted()


async def test_an_answer_without_end_is_broken_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**20)

    async with admin_port(endless) as url, Gateways([url], "t") as gateways:
        with pytest.raises(GatewaysUnavailable, match="too long"):
            await gateways.members()


async def test_pages_that_never_end_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def again(request: web.Request) -> web.Response:
        asked.append(request.query.get("after", ""))
        return web.Response(body=b'{"datasets": [], "next": "s3://train/a/"}')

    async with admin_port(again) as url, Gateways([url], "t") as gateways:
        assert await gateways.counted() == []
    assert asked[:3] == ["", "s3://train/a/", "s3://train/a/"]
    assert len(asked) == 100


async def test_one_that_does_not_answer_is_given_up() -> None:
    stop = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await stop.wait()
        return web.Response()

    async with admin_port(silent) as url, Gateways([url], "t", timeout_seconds=0.2) as gateways:
        with pytest.raises(GatewaysUnavailable):
            await gateways.members()
        stop.set()


async def test_nobody_is_sent_elsewhere_with_the_token() -> None:
    async def away(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    async with admin_port(away) as url, Gateways([url], "t") as gateways:
        with pytest.raises(GatewaysUnavailable, match="302"):
            await gateways.members()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, Refused),
        (400, Refused),
        (409, NobodyServes),
        (429, TooBusy),
        (503, GatewaysUnavailable),
    ],
)
async def test_refusals_are_told_apart(status: int, kind: type[Exception]) -> None:
    async with admin_port(answering(b"{}", status)) as url, Gateways([url], "t") as gateways:
        with pytest.raises(kind):
            await gateways.prefetch(IMAGENET, ["r1"], job="1", priority=1)


async def test_what_has_ended_need_not_be_called_off() -> None:
    for status in (404, 409):
        async with admin_port(answering(b"{}", status)) as url, Gateways([url], "t") as gateways:
            await gateways.cancel("p1")
            await gateways.set_priority("p1", 5)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=200), status=st.sampled_from([200, 202, 204, 301, 404, 500]))
async def test_any_answer_is_understood_or_refused(body: bytes, status: int) -> None:
    async with admin_port(answering(body, status)) as url, Gateways([url], "t") as gateways:
        for ask in (gateways.members, gateways.counted):
            try:
                await ask()
            except GatewaysUnavailable:
                continue


async def test_a_name_that_is_not_utf8_is_refused_and_never_taken_for_another() -> None:
    asked: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(body=b'{"id": "p1", "dataset": "s3://train/imagenet/", "nodes": []}')

    odd = parse_dataset("s3://train/imagenet\udcff")
    async with admin_port(listen) as url, Gateways([url], "t") as gateways:
        with pytest.raises(Refused, match="not UTF-8"):
            await gateways.held(odd)
        with pytest.raises(Refused, match="not UTF-8"):
            await gateways.prefetch(odd, ["r1"], job="7", priority=1)
    assert asked == []
