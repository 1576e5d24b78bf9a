"""Reading: near before far, each byte from the origin once, one version per answer."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import BucketConfig
from gateway.errors import NoSuchKey, TierUnavailable, VersionChanged
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL_WRITE
from gateway.model.ranges import RangeSpec
from tests.store.gated import CHUNK_BYTES, Bench
from tests.waiting import until, until_it

LARGE = random.Random(1).randbytes(3 * CHUNK_BYTES + 12_345)
SMALL = random.Random(2).randbytes(5000)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        yield made


@pytest.mark.parametrize("body", [b"", b"x", SMALL, LARGE], ids=["empty", "1", "small", "large"])
async def test_a_cold_object_comes_from_the_origin_once_and_then_from_disk(
    bench: Bench, body: bytes
) -> None:
    path = bench.root / "train" / "k"
    path.write_bytes(body)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    await _settled(bench, "k")
    first = await bench.service.get("train", "k")
    assert b"".join([bytes(b) async for b in first.blocks()]) == body
    await first.close()
    assert first.tier == "origin"
    assert bench.origin.read_bytes == len(body)
    await until(lambda: not bench.service.fills())
    again = await bench.service.get("train", "k")
    assert b"".join([bytes(b) async for b in again.blocks()]) == body
    await again.close()
    assert again.tier == "disk"
    assert bench.origin.read_bytes == len(body)


async def _settled(bench: Bench, key: str) -> None:
    """Waits until the origin no longer calls the file's timestamps racy."""
    ref = bench.service.bucket("train").ref(key)

    async def is_cacheable() -> bool:
        return (await bench.origin.inner.head(ref)).cacheable

    await until_it(is_cacheable, "the file is cacheable")


async def _put(bench: Bench, key: str, body: bytes) -> None:
    await bench.service.put("train", key, BytesBody(body), {}, UNCONDITIONAL_WRITE)


async def _put_unseen(bench: Bench, key: str, body: bytes) -> None:
    """Writes an S3-like object straight into the origin, so that the cache is cold."""
    await bench.origin.inner.put(
        bench.service.bucket("train").ref(key), BytesBody(body), {}, UNCONDITIONAL_WRITE
    )


async def test_a_thousand_readers_of_one_cold_object_make_one_origin_get_a_chunk(
    bench: Bench,
) -> None:
    await _put_unseen(bench, "k", LARGE)
    bench.origin.open_gate.clear()
    readers = [asyncio.create_task(bench.read("k")) for _ in range(1000)]
    await asyncio.sleep(0)
    bench.origin.open_gate.set()
    assert all(body == LARGE for body in await asyncio.gather(*readers))
    assert bench.origin.calls == {"open": 4}
    assert bench.origin.read_bytes == len(LARGE)


async def test_a_reader_that_leaves_harms_no_other(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE)
    bench.origin.block_gate.clear()
    leaver = asyncio.create_task(bench.read("k"))
    stayer = asyncio.create_task(bench.read("k"))
    while not bench.service.fills():
        await asyncio.sleep(0)
    leaver.cancel()
    bench.origin.block_gate.set()
    assert await stayer == LARGE
    assert bench.origin.read_bytes == len(LARGE)


async def test_a_range_fetches_only_the_chunks_it_touches(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE)
    start = 2 * CHUNK_BYTES - 10
    found = await bench.read("k", wanted=RangeSpec(start, start + 19))
    assert found == LARGE[start : start + 20]
    assert bench.origin.read_bytes == 2 * CHUNK_BYTES
    assert await bench.read("k", wanted=RangeSpec(None, 7)) == LARGE[-7:]
    assert bench.origin.read_bytes == 2 * CHUNK_BYTES + 12_345


async def test_bytes_flow_before_the_chunk_is_complete(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE[: 2 * CHUNK_BYTES])
    bench.origin.free_bytes = CHUNK_BYTES // 4
    bench.origin.block_gate.clear()
    answer = await bench.service.get("train", "k")
    blocks = answer.blocks()
    async with asyncio.timeout(60):
        first = bytes(await anext(blocks))
    assert first
    assert bench.origin.read_bytes < CHUNK_BYTES
    assert LARGE.startswith(first)
    bench.origin.block_gate.set()
    rest = b"".join([bytes(block) async for block in blocks])
    await answer.close()
    assert first + rest == LARGE[: 2 * CHUNK_BYTES]


async def test_an_answer_that_breaks_off_is_resumed_where_it_stood(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE)
    bench.origin.break_after_bytes = 300_000
    bench.origin.breaks = 2
    assert await bench.read("k") == LARGE
    assert bench.origin.read_bytes == len(LARGE)


async def test_an_origin_that_stays_down_is_unavailable_and_never_missing(bench: Bench) -> None:
    await _put_unseen(bench, "k", SMALL)
    bench.origin.down = True
    with pytest.raises(TierUnavailable):
        await bench.read("k")
    bench.origin.down = False
    assert await bench.read("k") == SMALL


async def test_what_is_fresh_is_served_while_the_origin_is_down(bench: Bench) -> None:
    await _put(bench, "k", LARGE)
    bench.origin.down = True
    assert await bench.read("k") == LARGE
    bench.seconds += 3601
    with pytest.raises(TierUnavailable):
        await bench.read("k")


async def test_an_object_replaced_past_us_in_mid_answer_breaks_it_off(bench: Bench) -> None:
    await _put_unseen(bench, "k", LARGE)
    answer = await bench.service.get("train", "k")
    got = bytearray()

    async def read_on() -> None:
        async for block in answer.blocks():
            if not got:
                await _put_unseen(bench, "k", LARGE[::-1])
            got.extend(block)

    with pytest.raises(VersionChanged):
        await read_on()
    await answer.close()
    assert LARGE.startswith(got)
    assert await bench.read("k") == LARGE[::-1]


async def test_an_object_replaced_past_us_is_noticed_when_its_freshness_ends(
    bench: Bench,
) -> None:
    await _put(bench, "k", SMALL)
    await _put_unseen(bench, "k", SMALL[::-1])
    assert await bench.read("k") == SMALL
    bench.seconds += 3600
    assert await bench.read("k") == SMALL[::-1]


async def test_freshness_0_asks_always(tmp_path: Path) -> None:
    async with Bench(tmp_path, bucket=BucketConfig(freshness_seconds=0)) as bench:
        await _put(bench, "k", SMALL)
        await _put_unseen(bench, "k", SMALL[::-1])
        assert await bench.read("k") == SMALL[::-1]
        await _put_unseen(bench, "k", SMALL)
        assert await bench.read("k") == SMALL
        opens = bench.origin.calls["open"]
        assert await bench.read("k") == SMALL
        # Asking always is not fetching always.
        assert bench.origin.calls["open"] == opens


async def test_an_immutable_bucket_never_asks_again_not_even_after_a_restart(
    tmp_path: Path,
) -> None:
    forever = BucketConfig(immutable=True, freshness_seconds=0)
    async with Bench(tmp_path, bucket=forever) as bench:
        await _put(bench, "k", SMALL)
        bench.seconds += 1e9
        assert await bench.read("k") == SMALL
        assert bench.origin.calls["head"] == 0
    async with Bench(tmp_path, bucket=forever) as bench:
        bench.origin.down = True
        assert await bench.read("k") == SMALL


async def test_a_missing_key_is_asked_for_each_time_and_appears_when_written(
    bench: Bench,
) -> None:
    with pytest.raises(NoSuchKey):
        await bench.read("k")
    await _put_unseen(bench, "k", SMALL)
    assert await bench.read("k") == SMALL


async def test_a_full_cache_passes_through_and_serves_right_bytes(tmp_path: Path) -> None:
    async with Bench(tmp_path, capacity_bytes=8 * CHUNK_BYTES) as bench:
        bodies = {f"k{n}": random.Random(n).randbytes(2 * CHUNK_BYTES) for n in range(12)}
        for key, body in bodies.items():
            await _put_unseen(bench, key, body)
        found = await asyncio.gather(*(bench.read(key) for key in bodies))
        assert found == list(bodies.values())
        assert bench.disk.usage().bytes <= 8 * CHUNK_BYTES
