"""Fills: followers read behind what has come, and meet the end of a fill at any moment."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import Corrupt, TierFull, TierUnavailable
from gateway.model.objects import ObjectRef, ObjectVersion
from gateway.model.ranges import span
from gateway.store.coming import Fill
from gateway.store.fill import FollowingReader
from tests.store.gated import CHUNK_BYTES, Bench

BODY = random.Random(4).randbytes(CHUNK_BYTES)
SPAN = span(ObjectVersion(ObjectRef("main", "train", "k"), "e", CHUNK_BYTES), 0, CHUNK_BYTES)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        yield made


async def _growing(bench: Bench, size_bytes: int) -> Fill:
    fill = Fill(SPAN)
    fill.land(await bench.disk.land(CHUNK_BYTES))
    await _grow(fill, size_bytes)
    return fill


async def _grow(fill: Fill, size_bytes: int) -> None:
    """The next bytes come in."""
    space = await fill.space()
    space[:size_bytes] = BODY[fill.received_bytes : fill.received_bytes + size_bytes]
    fill.took(size_bytes)


async def test_a_follower_waits_for_what_has_not_come(bench: Bench) -> None:
    fill = await _growing(bench, 1000)
    reader = FollowingReader(fill, bench.disk)
    assert await reader.read(0, 5000) == BODY[:1000]
    waiting = asyncio.create_task(reader.read(1000, 5000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await _grow(fill, 2000)
    assert await waiting == BODY[1000:3000]
    assert fill.landing is not None
    await fill.landing.discard()


async def test_a_follower_outlives_the_moment_between_the_files_name_and_the_fills_end(
    bench: Bench,
) -> None:
    fill = await _growing(bench, CHUNK_BYTES)
    assert fill.landing is not None
    reader = FollowingReader(fill, bench.disk)
    await fill.landing.commit(SPAN)
    waiting = asyncio.create_task(reader.read(500, 1000))
    for _ in range(10):
        await asyncio.sleep(0)
    fill.finish()
    assert bytes(await waiting) == BODY[500:1500]
    await reader.close()


@pytest.mark.parametrize("error", [TierFull("full"), TierUnavailable("gone"), Corrupt("bad")])
async def test_a_follower_is_told_why_a_fill_failed(bench: Bench, error: Exception) -> None:
    fill = await _growing(bench, 1000)
    assert fill.landing is not None
    reader = FollowingReader(fill, bench.disk)
    waiting = asyncio.create_task(reader.read(1000, 10))
    await asyncio.sleep(0)
    await fill.landing.discard()
    fill.finish(error)
    with pytest.raises(type(error)):
        await waiting


async def test_readers_of_large_objects_meet_many_ends_of_fills(bench: Bench) -> None:
    """Eight readers a key, each a little behind the other, over many chunks."""
    bodies = {f"k{n}": random.Random(n).randbytes(6 * CHUNK_BYTES) for n in range(4)}
    for key, body in bodies.items():
        path = bench.root / "train" / key
        path.write_bytes(body)
    found = await asyncio.gather(*(bench.read(key) for key in bodies for _ in range(8)))
    assert found == [body for body in bodies.values() for _ in range(8)]
