"""What reading a pack costs the origin: one GET a shard where a reader goes through it, ranges
where readers come at random."""

import asyncio
import random

import pytest

from gateway.tiers.packed.appetite import Appetite
from packer.format import PACKS
from tests.packs.bench import PLACE, Bench, BenchNode

CHANCE = random.Random(5)
OBJECTS = {f"p/{number:04}": CHANCE.randbytes(CHANCE.randrange(1, 8000)) for number in range(300)}


async def read(node: BenchNode, keys: list[str]) -> None:
    for key in keys:
        assert await node.get(key) == OBJECTS[key]


@pytest.mark.parametrize("readers", [1, 16])
async def test_an_epoch_costs_one_request_a_shard(bench: Bench, readers: int) -> None:
    await bench.packed(OBJECTS)
    node = await bench.node(freshness_seconds=3600, chunk_size="1MiB")
    keys = sorted(OBJECTS)
    await asyncio.gather(*(read(node, keys) for _ in range(readers)))
    shards = bench.files("shards")
    assert len(shards) > 10
    for shard in shards:
        assert node.origin.requests["open", f"{PLACE.shards}{shard.name}"] == 1
    assert node.origin.count("open", PLACE.indexes) == 1
    assert node.origin.count("open", PLACE.manifests) == 1
    # Nothing was asked of any object.
    assert not node.origin.count("open", "p/")
    assert not node.origin.count("head", "")
    assert node.origin.count("list_objects", PACKS) <= 4


async def test_random_reads_go_to_ranges_first_and_then_to_the_whole(bench: Bench) -> None:
    await bench.packed(OBJECTS, shard_bytes=64 * 1024**2)
    [shard] = bench.files("shards")
    node = await bench.node(freshness_seconds=3600, chunk_size="1MiB")
    appetite = node.packed._appetite
    paid = Appetite(10**9)
    keys = [key for key in sorted(OBJECTS) if key > "p/0100"]
    # A shard of 1 MiB is worth its ranges at once; this one is to cost a hundred times that.
    wanted = paid.wants_whole

    def dear(shard: str, size_bytes: int, offset: int, wanted_bytes: int, now: float) -> bool:
        return wanted(shard, 100 * size_bytes, offset, wanted_bytes, now)

    appetite.wants_whole = dear  # type: ignore[method-assign, assignment]
    CHANCE.shuffle(keys)
    await read(node, keys)
    requests = node.origin.requests["open", f"{PLACE.shards}{shard.name}"]
    assert 5 < requests < 60
    again = await _requests_of(node, sorted(OBJECTS))
    assert again == 0


async def _requests_of(node: BenchNode, keys: list[str]) -> int:
    before = node.origin.count("open", PLACE.shards)
    await read(node, keys)
    return node.origin.count("open", PLACE.shards) - before


async def test_a_cache_smaller_than_four_shards_is_read_through_in_ranges(bench: Bench) -> None:
    await bench.packed(OBJECTS, shard_bytes=64 * 1024**2)
    node = await bench.node(freshness_seconds=3600, capacity="2MiB", chunk_size="64KiB")
    await asyncio.gather(read(node, sorted(OBJECTS)), read(node, sorted(OBJECTS, reverse=True)))
    assert node.origin.count("open", PLACE.shards) >= 100


async def test_shards_may_be_evicted_while_they_are_read(bench: Bench) -> None:
    await bench.packed(OBJECTS, shard_bytes=256 * 1024)
    assert len(bench.files("shards")) > 3
    # Room for a few shards, and readers at all of them.
    node = await bench.node(freshness_seconds=3600, capacity="2MiB", chunk_size="64KiB")
    keys = sorted(OBJECTS)
    orders = [keys, keys[::-1], *(CHANCE.sample(keys, len(keys)) for _ in range(6))]
    await asyncio.gather(*(read(node, order) for order in orders))
