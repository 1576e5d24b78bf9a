"""Peers that are cut off, slow, refusing, lying or somebody else: right bytes, in bounded time."""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.cluster.proof import Prover
from gateway.config import Secret
from gateway.errors import AccessDenied, NoSuchKey
from gateway.tiers.wire import Watch
from tests.cluster.between import Between, between
from tests.cluster.running import CHUNK_BYTES, Cluster, Running, cluster
from tests.cluster.test_reading_near import put


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, {"a1": "a", "a2": "a"}) as made:
        for each in made.nodes:
            each.parts.client._answer_watch = Watch(0.4)
            each.parts.client._body_watch = Watch(0.4)
        yield made


@pytest.fixture
async def proxy(two: Cluster) -> AsyncIterator[Between]:
    """Stands before a1, as a2 sees it."""
    async with between(two["a1"].parts.address) as made:
        others = [
            msgspec.structs.replace(each, peers=made.address) if each.id == "a1" else each
            for each in two["a2"].members.all()
        ]
        two["a2"].members.set(others)
        yield made


async def read_in_time(node: Running, key: str) -> bytes:
    async with asyncio.timeout(5):
        return await node.read(key)


@pytest.mark.parametrize("then", ["cut", "stall"])
@pytest.mark.parametrize("after_bytes", [0, 10, 200, 5000, CHUNK_BYTES // 2, CHUNK_BYTES + 100])
@pytest.mark.parametrize("size_bytes", [3000, 3 * CHUNK_BYTES])
async def test_a_peer_that_breaks_off_anywhere_costs_time_and_no_bytes(
    two: Cluster, proxy: Between, tmp_path: Path, then: str, after_bytes: int, size_bytes: int
) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, size_bytes)
    proxy.then, proxy.after_bytes = then, after_bytes
    assert await read_in_time(two["a2"], key) == body
    proxy.after_bytes = None
    assert await read_in_time(two["a2"], key) == body


async def test_a_peer_that_cannot_be_reached_is_passed_over(two: Cluster, tmp_path: Path) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, 2 * CHUNK_BYTES)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"
    here = two["a2"].members
    here.set([msgspec.structs.replace(each, peers=gone) for each in here.all()])
    assert await read_in_time(two["a2"], key) == body
    assert "a1" in two["a2"].parts.near.suspects


@pytest.mark.parametrize("length", [b"1", b"99999999", b"-1", b"x"])
async def test_a_peer_that_lies_about_its_length_is_not_believed(
    two: Cluster, proxy: Between, tmp_path: Path, length: bytes
) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, 3000)
    proxy.change = lambda data: re.sub(rb"content-length: \d+", b"content-length: " + length, data)
    assert await read_in_time(two["a2"], key) == body
    asked = two["a2"].counted("feedrack_peer_requests_total", outcome="200")
    assert not asked


async def test_a_peer_that_says_anything_else_than_was_signed_is_not_believed(
    two: Cluster, proxy: Between, tmp_path: Path
) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, 3000)
    proxy.change = lambda data: data.replace(b"x-feedrack-age: 0", b"x-feedrack-age: 1")
    assert await read_in_time(two["a2"], key) == body
    assert two["a2"].counted("feedrack_peer_requests_total", outcome="unproven") == 1


async def test_nodes_with_different_secrets_read_alone(two: Cluster, tmp_path: Path) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, 3000)
    two["a2"].parts.client._prover = Prover(Secret("another"))
    assert await read_in_time(two["a2"], key) == body
    assert two["a2"].counted("feedrack_peer_requests_total", outcome="refused") == 1
    assert two["a1"].counted("feedrack_peer_answers_total", code="403") == 1
    assert two["a1"].counted("feedrack_origin_requests_total") == 0


async def test_what_the_origin_says_of_a_key_comes_through(two: Cluster, tmp_path: Path) -> None:
    key = two.key_at("a1")
    with pytest.raises(NoSuchKey):
        await two["a2"].read(key)
    assert two["a2"].counted("feedrack_origin_requests_total", operation="GetObject") == 0


async def test_an_object_replaced_past_us_is_answered_in_one_version(
    two: Cluster, tmp_path: Path
) -> None:
    """a2 believes the old version, of which nobody has the second chunk."""
    key = next(
        key
        for key in (f"k{n}" for n in range(999))
        if {two.homes(key, n)[0].id for n in (0, 1)} == {"a1"}
    )
    old = put(tmp_path, key, 2 * CHUNK_BYTES)
    await two["a2"].node.service.head("train", key)
    path = tmp_path / "origin" / "train" / key
    new = os.urandom(3 * CHUNK_BYTES)
    path.write_bytes(new)
    os.utime(path, (1_700_000_001, 1_700_000_001))
    assert old != new
    assert await read_in_time(two["a2"], key) == new


async def test_a_small_object_takes_one_request_a_hop(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}) as four:
        key = four.key_at("a1")
        body = put(tmp_path, key, 3000)
        home, other = [each for each in four.homes(key) if each.config.node.rack == "b"]
        assert await other.read(key) == body
        asked = {
            each.id: each.counted("feedrack_peer_requests_total", outcome="200")
            for each in four.nodes
        }
        assert asked == {"a1": 0, "a2": 0, home.id: 1, other.id: 1}
        await four.settled()
        assert await other.read(key) == body
        assert other.counted("feedrack_peer_requests_total", outcome="200") == 2
        assert home.counted("feedrack_peer_requests_total", outcome="200") == 1


async def test_what_the_origin_refuses_is_no_fault_of_the_peers(
    two: Cluster, tmp_path: Path
) -> None:
    key = two.key_at("a1")

    async def refuse(*_: object, **how: object) -> None:
        raise AccessDenied("not for you")

    two["a1"].gated().open = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(AccessDenied, match="not for you"):
        await two["a2"].read(key)
    assert "a1" not in two["a2"].parts.near.suspects


async def test_a_member_that_says_nowhere_is_passed_over(two: Cluster, tmp_path: Path) -> None:
    key = two.key_at("a1")
    body = put(tmp_path, key, 3000)
    here = two["a2"].members
    here.set([msgspec.structs.replace(each, peers="") for each in here.all()])
    assert await read_in_time(two["a2"], key) == body
