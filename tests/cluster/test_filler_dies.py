"""The node that fills dies in the midst of it: the next takes over from what is missing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.running import CHUNK_BYTES, Cluster, cluster
from tests.cluster.test_reading_near import RACKS, put
from tests.waiting import until

HALF = CHUNK_BYTES // 2


@pytest.fixture
async def six(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, RACKS) as made:
        yield made


def received_bytes(six: Cluster) -> list[int]:
    return [got for each in six.nodes for _, got in each.node.parts.filler.under_way()]


async def _half_way(six: Cluster, key: str, readers: list[str]) -> list["asyncio.Task[bytes]"]:
    """Reads that have come half way, and wait for the first home's origin."""
    first = six.homes(key)[0]
    gate = first.gated()
    gate.free_bytes = HALF
    gate.block_gate.clear()
    reads = [asyncio.create_task(six[id_].read(key)) for id_ in readers]
    await until(lambda: received_bytes(six).count(HALF) == 3)
    return reads


async def test_the_origin_gives_no_byte_twice_when_the_first_home_dies_half_way(
    six: Cluster, tmp_path: Path
) -> None:
    key = six.key_at("a1")
    body = put(tmp_path, key, CHUNK_BYTES)
    reads = await _half_way(six, key, ["b1", "b2", "c1", "c2"])
    await six["a1"].die()
    assert await asyncio.gather(*reads) == [body] * 4
    assert six.origin_gets() == 2
    assert six.origin_bytes() == CHUNK_BYTES


async def test_the_origin_gives_no_byte_twice_when_who_comes_next_has_nothing(
    six: Cluster, tmp_path: Path
) -> None:
    """The next first home follows nobody yet: it takes the first half from who asks it."""
    key = next(
        key
        for key in (f"n{n}" for n in range(1000))
        if [each.config.node.rack for each in six.homes(key)][:2] == ["a", "a"]
    )
    body = put(tmp_path, key, CHUNK_BYTES)
    first, second = six.homes(key)[:2]
    gate = first.gated()
    gate.free_bytes = HALF
    gate.block_gate.clear()
    reads = [asyncio.create_task(six[id_].read(key)) for id_ in ("b1", "b2", "c1", "c2")]
    await until(lambda: received_bytes(six).count(HALF) == 3)
    await first.die()
    assert await asyncio.gather(*reads) == [body] * 4
    assert six.origin_gets() == 2
    assert six.origin_bytes() == CHUNK_BYTES
    assert await second.holds(key)


async def test_a_rack_home_that_dies_is_passed_by(six: Cluster, tmp_path: Path) -> None:
    key = six.key_at("a1")
    body = put(tmp_path, key, CHUNK_BYTES)
    gate = six["a1"].gated()
    gate.free_bytes = HALF
    gate.block_gate.clear()
    home, other = [each for each in six.homes(key) if each.config.node.rack == "b"]
    read = asyncio.create_task(other.read(key))
    await until(lambda: received_bytes(six).count(HALF) == 2)
    await home.die()
    await asyncio.sleep(0)
    gate.block_gate.set()
    assert await read == body
    assert six.origin_gets() == 1


async def test_an_answer_that_breaks_off_is_gone_on_with_at_the_origin(
    six: Cluster, tmp_path: Path
) -> None:
    key = six.key_at("a1")
    body = put(tmp_path, key, CHUNK_BYTES)
    gate = six["a1"].gated()
    gate.break_after_bytes = HALF
    gate.breaks = 4
    assert await six["b1"].read(key) == body
