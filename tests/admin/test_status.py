"""`feedrack status` says what a real node's admin port says."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from gateway.admin.status import Status, StatusError, TierReads, fetch, render
from gateway.telemetry.metrics import Metrics
from tests.node.process import ADMIN_TOKEN, GatewayProcess


def test_it_counts_what_a_node_has_served_by_tier(tmp_path: Path) -> None:
    node = GatewayProcess(tmp_path).start()
    try:
        client = node.client()
        client.create_bucket(Bucket="train")
        client.put_object(Bucket="train", Key="k", Body=b"x" * 1000)
        for _ in range(3):
            client.get_object(Bucket="train", Key="k")["Body"].read()
        found = asyncio.run(fetch(node.admin_url, ADMIN_TOKEN))
        with pytest.raises(StatusError, match="401"):
            asyncio.run(fetch(node.admin_url, "wrong"))
    finally:
        node.kill()
    assert [member["id"] for member in found.members] == ["n1"]
    assert TierReads("disk", 3, 3000) in found.tiers
    assert found.fills == []


def test_it_shows_members_shares_and_what_is_filling() -> None:
    status = Status(
        members=[
            {
                "id": "n1",
                "rack": "r1",
                "zone": "z1",
                "state": "serving",
                "s3": "http://127.0.0.1:9000",
                "cache_bytes": 5_000_000,
                "cache_capacity_bytes": 10_000_000,
                "cache_degraded": "full",
            }
        ],
        tiers=[TierReads("disk", 3, 30), TierReads("origin", 1, 10)],
        fills=[{"bucket": "b", "key": "k", "chunk": 2, "bytes": 100, "received_bytes": 40}],
        origin_requests=7,
        origin_read_bytes=10,
    )
    out = io.StringIO()
    render(status, Console(file=out, width=160))
    text = out.getvalue()
    for said in (
        "n1",
        "5.0 MB of 10.0 MB",
        "takes nothing in: full",
        "75.0 %",
        "b/k",
        "7 requests",
    ):
        assert said in text


@asynccontextmanager
async def admin_port(**answers: web.Response) -> AsyncIterator[str]:
    """A server that answers `/v1/members`, `/v1/fills` and `/metrics` as told."""

    def say(response: web.Response) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(_: web.Request) -> web.Response:
            return response

        return handler

    told = {
        "members": web.json_response({"members": [{"id": "n1"}]}),
        "fills": web.json_response({"fills": []}),
        "metrics": web.Response(body=Metrics().render()),
    } | answers
    app = web.Application()
    for name, response in told.items():
        app.router.add_get("/metrics" if name == "metrics" else f"/v1/{name}", say(response))
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def test_it_adds_up_what_the_metrics_count() -> None:
    metrics = Metrics()
    for operation, count in (("GetObject", 3), ("PutObject", 5)):
        for _ in range(count):
            metrics.request_seconds.labels(operation, "disk").observe(0.001)
    metrics.request_seconds.labels("GetObject", "origin").observe(2)
    metrics.read_bytes.labels("disk").inc(3_000_000_000_000)
    metrics.read_bytes.labels("origin").inc(7)
    metrics.origin_requests.labels("GetObject").inc(2)
    metrics.origin_requests.labels("HeadObject").inc(4)
    metrics.origin_read_bytes.inc(7)
    async with admin_port(metrics=web.Response(body=metrics.render())) as url:
        found = await fetch(url, None)
    assert found.tiers == [
        TierReads("disk", 3, 3_000_000_000_000),
        TierReads("rack", 0, 0),
        TierReads("remote", 0, 0),
        TierReads("origin", 1, 7),
    ]
    assert (found.origin_requests, found.origin_read_bytes) == (6, 7)
    assert found.members == [{"id": "n1"}]


async def test_a_url_may_end_in_a_slash() -> None:
    async with admin_port() as url:
        assert (await fetch(f"{url.rstrip('/')}/", None)).fills == []


@pytest.mark.parametrize("name", ["members", "fills", "metrics"])
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, "<html>", "not a feedrack admin port"),
        (200, "[]", "not a feedrack admin port"),
        (200, '{"error": "hm"}', "not a feedrack admin port"),
        (401, '{"error": "a token is needed"}', "401 .*a token is needed"),
        (502, "<html>bad gateway</html>", "502 <html>bad gateway"),
        (503, "", "503"),
    ],
)
async def test_what_stood_in_the_way_is_said(name: str, status: int, body: str, said: str) -> None:
    answer = web.Response(status=status, text=body, content_type="text/html")
    async with admin_port(**{name: answer}) as url:
        with pytest.raises(StatusError, match=said):
            await fetch(url, None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:9001", "ftp://h", "http://", ""])
async def test_a_node_that_cannot_be_asked_is_named(url: str) -> None:
    with pytest.raises(StatusError, match="^" + url.rstrip("/")):
        await fetch(url, None)


def test_it_shows_no_share_where_nothing_was_served() -> None:
    out = io.StringIO()
    nothing = Status(
        members=[],
        tiers=[TierReads("disk", 0, 0)],
        fills=[],
        origin_requests=0,
        origin_read_bytes=0,
    )
    render(nothing, Console(file=out, width=160))
    assert "%" not in out.getvalue()
    assert "Filling" not in out.getvalue()
