"""The capacity is a promise about the disk, not an average: it holds at every look."""

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.errors import TierFull
from gateway.telemetry.metrics import Metrics
from gateway.tiers.packed import growing
from gateway.tiers.protocol import SpanReader
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    MIB,
    cache_config,
    chunks,
    content,
    get,
    info,
    on_disk_bytes,
    opened,
    put,
    sample,
    version,
)
from tests.waiting import until

CAPACITY_BYTES = 8 * MIB


class Watch:
    """Looks at the folder over and over, from a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self.looks = 0
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.most_bytes = max(self.most_bytes, on_disk_bytes(self._path))
            self.looks += 1


async def test_a_hundred_writers_never_take_more_than_the_capacity(tmp_path: Path) -> None:
    metrics = Metrics()
    async with opened(cache_config(tmp_path, CAPACITY_BYTES), metrics) as tier:

        async def writer(number: int) -> tuple[int, int]:
            kept = refused = 0
            for step in range(6):
                size = (3 * KIB, 30 * KIB, CHUNK_BYTES, 2 * CHUNK_BYTES)[(number + step) % 4]
                one = version(f"k{number}-{step}", size)
                try:
                    await put(tier, one)
                    kept += 1
                except TierFull:
                    refused += 1
                assert await get(tier, one) in (None, content(one))
                assert tier.usage().bytes <= CAPACITY_BYTES
            return kept, refused

        with Watch(tmp_path) as watch:
            outcomes = await asyncio.gather(*(writer(number) for number in range(100)))
        assert watch.looks > 5
        assert CAPACITY_BYTES // 4 < watch.most_bytes <= CAPACITY_BYTES
        assert sum(kept for kept, _ in outcomes) > 300
        assert sample(metrics, "feedrack_evicted_bytes_total") > CAPACITY_BYTES
        assert sample(metrics, "feedrack_evicted_bytes_total") == tier.usage().evicted_bytes
        assert sample(metrics, "feedrack_cache_bytes") == tier.usage().bytes
        await until(lambda: tier.usage().bytes >= on_disk_bytes(tmp_path))


async def test_chunks_with_open_readers_are_not_evicted(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, CAPACITY_BYTES)) as tier:
        held = version("held", CHUNK_BYTES)
        await put(tier, held)
        reader = await tier.open(chunks(held)[0])
        assert reader is not None
        for number in range(60):
            await put(tier, version(f"k{number}", CHUNK_BYTES))
        assert await get(tier, version("k0", CHUNK_BYTES)) is None
        assert bytes(await reader.read(0, CHUNK_BYTES)) == content(held)
        assert tier.usage().bytes <= CAPACITY_BYTES
        await reader.close()
        assert await get(tier, held) == content(held)


async def test_where_everything_is_in_use_there_is_no_room(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, CAPACITY_BYTES)) as tier:
        readers: list[SpanReader] = []
        refused = False
        while not refused:
            one = version(f"k{len(readers)}", CHUNK_BYTES)
            try:
                await put(tier, one)
            except TierFull:
                refused = True
                continue
            reader = await tier.open(chunks(one)[0])
            assert reader is not None
            readers.append(reader)
        assert 10 < len(readers) <= CAPACITY_BYTES // CHUNK_BYTES
        for reader in readers:
            await reader.close()
        await put(tier, version("more", CHUNK_BYTES))


async def test_unfinished_chunks_take_at_most_half_the_cache(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, CAPACITY_BYTES)) as tier:
        writers = [await tier.begin(CHUNK_BYTES) for _ in range(16)]
        with pytest.raises(TierFull):
            await tier.begin(CHUNK_BYTES)
        for writer in writers:
            await writer.discard()
        await (await tier.begin(CHUNK_BYTES)).discard()


async def test_small_objects_in_use_outlive_the_eviction_of_their_shard(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, CAPACITY_BYTES)) as tier:
        hot = [version(f"hot-{number}", 8 * KIB) for number in range(30)]
        for one in hot:
            await put(tier, one)
        for number in range(2000):
            await put(tier, version(f"scan-{number}", 8 * KIB))
            if number % 100 == 0:
                for one in hot:
                    await get(tier, one)
        kept = [one for one in hot if await get(tier, one) == content(one)]
        assert len(kept) >= 25
        assert await get(tier, version("scan-0", 8 * KIB)) is None
        assert tier.usage().bytes <= CAPACITY_BYTES


async def test_small_objects_that_wait_for_the_disk_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_MAX_WAITING_BYTES", MIB)
    async with opened(cache_config(tmp_path, 32 * MIB)) as tier:
        assert tier._holding is not None
        waiting = tier._holding.small.log
        most_bytes = 0

        async def writer(number: int) -> None:
            nonlocal most_bytes
            for step in range(4):
                await put(tier, version(f"k{number}-{step}", 60 * KIB))
                most_bytes = max(most_bytes, waiting.waiting_bytes)

        await asyncio.gather(*(writer(number) for number in range(100)))
        # Beyond the limit by the one extent that reached it.
        assert MIB // 2 < most_bytes < MIB + 512 * KIB


async def test_the_index_is_bounded_too(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, CAPACITY_BYTES)) as tier:
        for number in range(8_000):
            one = version(f"{'k' * 200}{number}", 100)
            await tier.remember(one.ref, info(one))
            if number % 50 == 0:
                await put(tier, one)
            if number % 200 == 0:
                await tier.held_bytes("main", "bucket", "none")  # commits
        assert tier.accepting
        assert (tmp_path / "index.lmdb").stat().st_size <= CAPACITY_BYTES // 8
        assert on_disk_bytes(tmp_path) <= CAPACITY_BYTES
        assert 500 < tier.usage().objects < 8_000
        last = version(f"{'k' * 200}7999", 100)
        assert tier.recall(last.ref) == info(last)
