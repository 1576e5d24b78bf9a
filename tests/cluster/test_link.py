"""The link to Redis: one error for all that can go wrong, in bounded time."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link, Script
from tests.cluster.conftest import absent
from tests.cluster.loopback import Loopback
from tests.cluster.services import RedisProcess, redis_server

ADD = Script("return redis.call('INCR', KEYS[1])")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    if redis_server() is None:
        absent("redis", "redis-server is not installed")
    network = Loopback()
    server = RedisProcess(tmp_path / "redis", network.services, network.port("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def link(redis: RedisProcess) -> AsyncIterator[Link]:
    link = Link(redis.url, "name", patience_seconds=0.5)
    await link.start()
    yield link
    await link.close()


async def test_keys_of_a_cluster_share_a_hash_tag(link: Link) -> None:
    assert link.key("changes") == "{name}:changes"
    assert link.key("open", "n1", "a") == "{name}:open:n1:a"


async def test_a_script_that_redis_has_forgotten_is_sent_again(
    link: Link, redis: RedisProcess
) -> None:
    assert await link.script(ADD, [link.key("x")], []) == 1
    with redis.client() as client:
        client.script_flush()
    assert await link.script(ADD, [link.key("x")], []) == 2


async def test_what_is_read_waits_for_the_first_entry_and_no_longer(link: Link) -> None:
    stream = link.key("s")
    assert await link.read([(stream, "0")], wait_seconds=0.05) == {}
    reading = asyncio.create_task(link.read([(stream, "0")], wait_seconds=5))
    await link.command("XADD", stream, "*", "k", b"\xff")
    found = await reading
    ((_, fields),) = found[stream.encode()]
    assert fields == {b"k": b"\xff"}
    assert [each[1] for each in await link.entries(stream, "-", "+", limit=5)] == [fields]


async def test_a_redis_that_is_gone_is_unavailable_at_once(link: Link, redis: RedisProcess) -> None:
    redis.stop()
    for ask in (link.command("PING"), link.commands([["PING"]]), link.script(ADD, ["x"], [])):
        with pytest.raises(CoordinatorUnavailable):
            await ask


async def test_a_redis_that_says_nothing_is_unavailable_in_time(
    link: Link, redis: RedisProcess
) -> None:
    await link.command("PING")
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):
            with pytest.raises(CoordinatorUnavailable):
                await link.command("PING")
            with pytest.raises(CoordinatorUnavailable):
                await link.read([(link.key("s"), "0")], wait_seconds=0.1)
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    assert await link.command("PING")


async def test_what_no_replica_has_does_not_count(link: Link) -> None:
    with pytest.raises(CoordinatorUnavailable, match="0 of 1 replicas"):
        await link.script(ADD, [link.key("x")], [], replicas=1)


@pytest.mark.parametrize("url", ["redis+sentinel://", "redis+sentinel://host:1", "nothing"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis"):
        await Link(url, "name").start()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:26379,two/main",
        "redis+sentinel://user:pass%40word@[::1]:26379/main/3",
        "rediss://host:6380/1",
        "redis+cluster://host:7000",
    ],
)
async def test_every_kind_of_address_is_understood(url: str) -> None:
    link = Link(url, "name")
    await link.start()
    await link.close()
