"""What is held is opened and read without waiting wherever the waiting way would not wait either,
with the same bytes and the same end for what is corrupt."""

import random
from pathlib import Path

import pytest

from gateway.errors import Corrupt, TierUnavailable
from gateway.model.objects import ObjectVersion, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.protocol import SpanReader
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    SMALL_BYTES,
    cache_config,
    chunks,
    content,
    descriptor_of,
    evict_pages,
    files,
    get,
    opened,
    put,
    sample,
    settled,
    version,
)
from tests.waiting import until

SIZES = [1, 77, 4 * KIB, SMALL_BYTES, SMALL_BYTES + 1, CHUNK_BYTES, 3 * CHUNK_BYTES - 5]
OBJECTS = [version(f"k{size}", size) for size in SIZES]


def span_content(span: Span) -> bytes:
    return content(span.version)[span.start : span.stop]


async def check_ranges(tier: DiskTier, of: ObjectVersion, rng: random.Random) -> None:
    for span in chunks(of):
        reader = tier.open_now(span)
        assert reader is not None
        assert reader.tier == "disk"
        for _ in range(20):
            offset = rng.randrange(span.size_bytes)
            limit = rng.choice([1, 100, 70_000, CHUNK_BYTES])
            now = reader.read_now(offset, limit)
            assert now is not None
            assert bytes(now) == bytes(await reader.read(offset, limit))
            assert bytes(now) == span_content(span)[offset : offset + len(now)]
            assert 1 <= len(now) <= limit
        assert not reader.read_now(span.size_bytes, 1)
        await reader.close()


async def test_bytes_that_were_just_written_are_read_without_waiting(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with opened(cache_config(tmp_path)) as tier:
        for one in OBJECTS:
            assert tier.open_now(chunks(one)[0]) is None
            await put(tier, one)
            await check_ranges(tier, one, rng)
        await settled(tier)
        for one in OBJECTS:
            await check_ranges(tier, one, rng)


async def test_another_version_of_a_key_is_not_here(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for one in OBJECTS:
            await put(tier, one)
            for other in (version(one.ref.key, one.size_bytes, "e2"), version("other", 1)):
                assert tier.open_now(chunks(other)[0]) is None


async def test_pages_that_are_not_in_memory_are_left_to_a_thread(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for one in OBJECTS:
            await put(tier, one)
        await settled(tier)
        for one in OBJECTS:
            span = chunks(one)[0]
            # That somebody asks whether a page is there may bring it in, a moment later.
            for _ in range(100):
                for path in files(tmp_path, "chunks", "shards"):
                    with descriptor_of(path) as descriptor:
                        evict_pages(descriptor)
                reader: SpanReader | None = tier.open_now(span)
                if reader is None or reader.read_now(0, 100) is None:
                    break
                await reader.close()
            else:
                pytest.fail("what is not in memory is read at once")
            assert (reader is None) == (one.size_bytes <= SMALL_BYTES)
            if reader is None:
                reader = await tier.open(span)
            assert reader is not None
            assert bytes(await reader.read(0, 100)) == span_content(span)[:100]
            await reader.close()
            assert await get(tier, one) == content(one)
        for one in OBJECTS:
            assert await get(tier, one) == content(one)
        # By now they are.
        for one in OBJECTS:
            await check_ranges(tier, one, random.Random(1))


@pytest.mark.parametrize("size_bytes", [4 * KIB, SMALL_BYTES, CHUNK_BYTES])
async def test_a_corrupt_byte_met_without_waiting_is_dropped_and_counted_once(
    tmp_path: Path, size_bytes: int
) -> None:
    metrics = Metrics()
    one = version("one", size_bytes)
    span = chunks(one)[0]
    async with opened(cache_config(tmp_path), metrics) as tier:
        await put(tier, one)
        await settled(tier)
        [path] = files(tmp_path, "chunks", "shards")
        raw = path.read_bytes()
        at = raw.index(content(one)[:100])
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        reader = tier.open_now(span)
        if size_bytes > SMALL_BYTES:
            assert reader is not None
            with pytest.raises(Corrupt):
                reader.read_now(0, 10)
            await reader.close()
        else:
            assert reader is None
        assert sample(metrics, "feedrack_cache_corrupt_total") == 1
        assert await tier.open(span) is None
        assert sample(metrics, "feedrack_cache_corrupt_total") == 1
        assert tier.accepting
        await put(tier, one)
        await check_ranges(tier, one, random.Random(1))


async def test_a_file_that_is_gone_is_dropped_and_counted_once(tmp_path: Path) -> None:
    metrics = Metrics()
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
    for path in files(tmp_path, "chunks"):
        path.rename(tmp_path / "elsewhere")
    (tmp_path / "chunks" / "00" / ("00" * 16 + ".0")).touch()
    async with opened(cache_config(tmp_path), metrics) as tier:
        assert tier.open_now(chunks(one)[0]) is None
        assert await tier.open(chunks(one)[0]) is None
        assert tier.accepting
        await put(tier, one)
        for path in files(tmp_path, "chunks"):
            path.unlink()
        # It is open still, so nobody can tell yet.
        await check_ranges(tier, one, random.Random(1))


async def test_a_folder_that_is_gone_is_told_by_the_first_that_is_opened(tmp_path: Path) -> None:
    config = cache_config(tmp_path / "cache")
    one = version("one", CHUNK_BYTES)
    async with opened(config) as tier:
        await put(tier, one)
    async with opened(config, look_seconds=0.05) as tier:
        (tmp_path / "cache").rename(tmp_path / "moved")
        assert tier.open_now(chunks(one)[0]) is None
        await tier.open(chunks(one)[0])
        await until(lambda: not tier.accepting)


async def test_a_closed_reader_reads_no_more(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for size in (SMALL_BYTES, CHUNK_BYTES):
            one = version(f"k{size}", size)
            await put(tier, one)
            await settled(tier)
            # The first reader of a small object has it in memory, the next one in the file.
            for _ in range(2):
                reader = tier.open_now(chunks(one)[0])
                assert reader is not None
                await reader.close()
                await reader.close()
            assert reader is not None
            with pytest.raises(TierUnavailable):
                reader.read_now(0, 1)
            with pytest.raises(TierUnavailable):
                reader.region(0, 1)
            with pytest.raises(TierUnavailable):
                await reader.read(0, 1)


async def test_before_the_start_and_after_the_end_nothing_is_here(tmp_path: Path) -> None:
    one = version("one", 10)
    tier = DiskTier(cache_config(tmp_path), Metrics())
    assert tier.open_now(chunks(one)[0]) is None
    await tier.start()
    await put(tier, one)
    await tier.close()
    assert tier.open_now(chunks(one)[0]) is None


async def test_file_systems_that_cannot_tell_are_read_by_threads(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for one in OBJECTS:
            await put(tier, one)
        await settled(tier)
        assert tier._holding is not None
        tier._holding.files._nowait = False
        for one in OBJECTS:
            assert await get(tier, one) == content(one)
            for span in chunks(one):
                reader = tier.open_now(span)
                if reader is not None:
                    assert reader.read_now(0, 10) is None
                    await reader.close()
