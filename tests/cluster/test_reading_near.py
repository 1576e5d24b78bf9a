"""Six nodes in three racks over one origin: every byte is asked of it once."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.running import CHUNK_BYTES, Cluster, cluster

RACKS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c"}


@pytest.fixture
async def six(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, RACKS) as made:
        yield made


def put(folder: Path, key: str, size_bytes: int) -> bytes:
    body = random.Random(key).randbytes(size_bytes)
    path = folder / "origin" / "train" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    # What was changed a moment ago is not kept.
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return body


async def test_a_cold_large_object_is_read_once_though_all_ask_at_once(
    six: Cluster, tmp_path: Path
) -> None:
    body = put(tmp_path, "large", 9 * CHUNK_BYTES + 1234)
    found = await asyncio.gather(*(each.read("large") for each in six.nodes for _ in range(4)))
    assert all(each == body for each in found)
    assert six.origin_gets() == 10
    assert six.origin_bytes() == len(body)


async def test_cold_small_objects_are_read_once_though_all_ask_at_once(
    six: Cluster, tmp_path: Path
) -> None:
    bodies = {f"small{n}": put(tmp_path, f"small{n}", 1000 + n) for n in range(50)}

    async def all_of(node: int) -> list[bytes]:
        return list(await asyncio.gather(*(six.nodes[node].read(key) for key in bodies)))

    for found in await asyncio.gather(*(all_of(n) for n in range(6))):
        assert found == list(bodies.values())
    assert six.origin_requests() == 50
    assert six.origin_bytes() == sum(map(len, bodies.values()))


async def test_a_node_that_holds_nothing_serves_warm_reads_with_no_origin_request(
    six: Cluster, tmp_path: Path
) -> None:
    body = put(tmp_path, "large", 4 * CHUNK_BYTES)
    await asyncio.gather(*(each.read("large") for each in six.nodes))
    asked = six.origin_requests()
    for each in six.nodes:
        assert await each.read("large") == body
    assert six.origin_requests() == asked


async def test_an_answer_says_how_far_its_bytes_have_come(six: Cluster, tmp_path: Path) -> None:
    key = six.key_at("a1")
    put(tmp_path, key, CHUNK_BYTES)
    in_b = next(each for each in six.homes(key) if each.config.node.rack == "b")
    other_b = six["b2" if in_b.id == "b1" else "b1"]
    assert await six["a1"].tiers(key) == ("origin", {"origin": CHUNK_BYTES})
    await six.settled()
    assert await six["a1"].tiers(key) == ("disk", {"disk": CHUNK_BYTES})
    assert await six["a2"].tiers(key) == ("rack", {"rack": CHUNK_BYTES})
    assert await in_b.tiers(key) == ("remote", {"remote": CHUNK_BYTES})
    await six.settled()
    assert await in_b.tiers(key) == ("disk", {"disk": CHUNK_BYTES})
    assert await other_b.tiers(key) == ("rack", {"rack": CHUNK_BYTES})
    crossed = {each.id: each.counted("feedrack_cross_rack_bytes_total") for each in six.nodes}
    assert crossed == {each: CHUNK_BYTES if each == in_b.id else 0 for each in RACKS}


async def test_what_is_at_home_elsewhere_is_passed_on_and_not_kept(
    six: Cluster, tmp_path: Path
) -> None:
    key = six.key_at("a1")
    body = put(tmp_path, key, 5000)
    assert await six["a2"].read(key) == body
    assert not await six["a2"].holds(key)
    assert await six["a1"].holds(key)


async def test_what_is_asked_for_often_gains_a_replica(six: Cluster, tmp_path: Path) -> None:
    key = six.key_at("a1")
    put(tmp_path, key, CHUNK_BYTES)
    tiers = []
    for _ in range(12):
        tiers.append((await six["a2"].tiers(key))[0])
        await six.settled()
    assert tiers[1] == "rack"
    assert tiers[-1] == "disk"
    assert six.origin_gets() == 1


async def test_nodes_that_may_believe_nothing_ask_the_origin_for_heads_and_each_other_for_bytes(
    six: Cluster, tmp_path: Path
) -> None:
    bodies = {f"k{n}": put(tmp_path, f"k{n}", 2000 + n) for n in range(10)}
    bodies["large"] = put(tmp_path, "large", 3 * CHUNK_BYTES)
    for each in six.nodes:
        each.node.service._versions._trusted_until = lambda: 0.0
    found = await asyncio.gather(*(each.read(key) for each in six.nodes for key in bodies))
    assert found == list(bodies.values()) * 6
    assert six.origin_bytes() == sum(map(len, bodies.values()))
