"""Bytes are sent from a file only if this process has verified them, nothing has changed the file
since, and they are in the page cache; then they are the right ones."""

import os
import random
from pathlib import Path

import pytest

from gateway.config import Bytes, CacheConfig
from gateway.errors import Corrupt
from gateway.model.objects import Span
from gateway.tiers.disk import DiskTier
from gateway.tiers.protocol import FileRegion, SpanReader
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    MIB,
    cache_config,
    chunks,
    content,
    descriptor_of,
    evict_pages,
    files,
    get,
    get_span,
    opened,
    put,
    settled,
    version,
)

BLOCK = 64 * KIB
CHUNK = chunks(version("chunk", CHUNK_BYTES))[0]
SMALL_LIMIT = 200 * KIB
SMALL = [version(f"small{number}", 70 * KIB + number) for number in range(5)]


def small_config(path: Path) -> CacheConfig:
    return CacheConfig(
        path=path,
        capacity=Bytes(32 * MIB),
        chunk_size=Bytes(CHUNK_BYTES),
        small_object_limit=Bytes(SMALL_LIMIT),
    )


def sent(region: FileRegion) -> bytes:
    """What sendfile would send."""
    return os.pread(region.descriptor, region.size_bytes, region.offset)


async def reader_of(tier: DiskTier, span: Span) -> SpanReader:
    reader = tier.open_now(span) or await tier.open(span)
    assert reader is not None
    return reader


async def region_of(tier: DiskTier, span: Span, offset: int, limit: int) -> bytes | None:
    """The bytes that would be sent, None where they must be read."""
    reader = await reader_of(tier, span)
    region = reader.region(offset, limit)
    data = None if region is None else sent(region)
    await reader.close()
    return data


async def put_small(tier: DiskTier) -> None:
    for one in SMALL:
        await tier.keep(Span(one, 0, 0, one.size_bytes), content(one))


def small_span(number: int) -> Span:
    return Span(SMALL[number], 0, 0, SMALL[number].size_bytes)


async def test_a_chunk_that_was_just_written_is_sent_from_its_file(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
        data = content(CHUNK.version)
        assert await region_of(tier, CHUNK, 0, 2**40) == data
        assert await region_of(tier, CHUNK, 5, 10) == data[5:15]
        assert await region_of(tier, CHUNK, CHUNK_BYTES - 1, 10) == data[-1:]
        assert await region_of(tier, CHUNK, CHUNK_BYTES, 10) is None


async def test_a_chunk_found_at_the_start_is_read_once_and_sent_from_then_on(
    tmp_path: Path,
) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
    async with opened(cache_config(tmp_path)) as tier:
        data = content(CHUNK.version)
        assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) is None
        reader = await reader_of(tier, CHUNK)
        # One byte verifies its block, and no other.
        await reader.read(BLOCK + 5, 1)
        await reader.close()
        assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) is None
        assert await region_of(tier, CHUNK, BLOCK + 7, CHUNK_BYTES) == data[BLOCK + 7 : 2 * BLOCK]
        assert await region_of(tier, CHUNK, 2 * BLOCK, 1) is None
        assert await get_span(tier, CHUNK) == data
        assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) == data


@pytest.mark.parametrize("change", ["flip", "truncate", "grow", "touch"])
async def test_a_file_that_was_changed_in_place_is_not_sent(tmp_path: Path, change: str) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
        reader = await reader_of(tier, CHUNK)
        assert reader.region(0, CHUNK_BYTES) is not None
        [path] = files(tmp_path, "chunks")
        match change:
            case "flip":
                with path.open("r+b") as file:
                    file.seek(100)
                    file.write(bytes([content(CHUNK.version)[100] ^ 1]))
            case "truncate":
                os.truncate(path, BLOCK)
            case "grow":
                os.truncate(path, CHUNK_BYTES + 1)
            case _:
                os.utime(path)
        # Under the open reader, and for the next.
        assert reader.region(0, CHUNK_BYTES) is None
        assert await region_of(tier, CHUNK, BLOCK, 1) is None
        await reader.close()
        if change in ("flip", "truncate"):
            with pytest.raises(Corrupt):
                await get_span(tier, CHUNK)
            assert tier.open_now(CHUNK) is None
        else:
            assert await get_span(tier, CHUNK) == content(CHUNK.version)
            assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) == content(CHUNK.version)


async def test_pages_that_left_memory_are_verified_again(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
        reader = await reader_of(tier, CHUNK)
        assert reader.region(0, CHUNK_BYTES) is not None
        [path] = files(tmp_path, "chunks")
        with descriptor_of(path) as descriptor:
            evict_pages(descriptor)
            assert reader.region(0, 1) is None
            # Back in memory, but past this process.
            os.pread(descriptor, CHUNK_BYTES, 0)
        assert reader.region(0, CHUNK_BYTES) is None
        assert bytes(await reader.read(0, 10)) == content(CHUNK.version)[:10]
        region = reader.region(0, CHUNK_BYTES)
        assert region is not None
        assert region.size_bytes == BLOCK
        await reader.close()
        assert await get_span(tier, CHUNK) == content(CHUNK.version)
        assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) == content(CHUNK.version)


async def test_what_a_read_from_the_disk_brings_along_is_not_taken_for_verified(
    tmp_path: Path,
) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
        [path] = files(tmp_path, "chunks")
        with descriptor_of(path) as descriptor:
            evict_pages(descriptor)
        reader = await reader_of(tier, CHUNK)
        assert bytes(await reader.read(BLOCK, 1)) == content(CHUNK.version)[BLOCK : BLOCK + 1]
        region = reader.region(BLOCK, CHUNK_BYTES)
        assert region is not None
        assert region.size_bytes == BLOCK
        assert reader.region(2 * BLOCK, 1) is None
        await reader.close()


async def test_a_region_outlives_its_chunk_until_its_reader_is_closed(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, CHUNK.version)
        reader = await reader_of(tier, CHUNK)
        region = reader.region(0, CHUNK_BYTES)
        assert region is not None
        assert tier._holding is not None
        tier._holding.chunks.forget(CHUNK.version)
        await tier._holding.chunks.settle()
        assert not files(tmp_path, "chunks")
        assert await tier.open(CHUNK) is None
        assert sent(region) == content(CHUNK.version)
        # Its file has changed since (it has no name any more): read it, do not send it.
        assert reader.region(0, CHUNK_BYTES) is None
        assert bytes(await reader.read(0, 100)) == content(CHUNK.version)[:100]
        await reader.close()


async def test_a_chunk_that_comes_in_anew_is_known_by_its_new_file(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for _ in range(3):
            await put(tier, CHUNK.version)
            assert await region_of(tier, CHUNK, 0, CHUNK_BYTES) == content(CHUNK.version)
            assert tier._holding is not None
            tier._holding.chunks.forget(CHUNK.version)


async def test_small_objects_of_some_size_are_sent_from_their_shard_once_read(
    tmp_path: Path,
) -> None:
    async with opened(small_config(tmp_path)) as tier:
        await put_small(tier)
        # In memory, until their extent is written.
        assert await region_of(tier, small_span(0), 0, SMALL_LIMIT) is None
        await settled(tier)
        for number, one in enumerate(SMALL):
            span = small_span(number)
            # The first to read has it in memory, the next is sent the file's.
            assert await region_of(tier, span, 0, SMALL_LIMIT) is None
            for offset, limit in ((0, SMALL_LIMIT), (5, 10), (one.size_bytes - 1, 10)):
                data = content(one)[offset : offset + limit]
                assert await region_of(tier, span, offset, limit) == data
            assert await region_of(tier, span, one.size_bytes, 10) is None
            reader = await reader_of(tier, span)
            now = reader.read_now(7, 100)
            assert now is not None
            assert bytes(now) == bytes(await reader.read(7, 100)) == content(one)[7:107]
            await reader.close()


async def test_shorter_objects_are_read(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        one = version("short", BLOCK - 1)
        await put(tier, one)
        await settled(tier)
        for _ in range(3):
            assert await region_of(tier, chunks(one)[0], 0, BLOCK) is None
            assert await get(tier, one) == content(one)


async def test_a_shard_that_grew_since_is_read(tmp_path: Path) -> None:
    async with opened(small_config(tmp_path)) as tier:
        await put_small(tier)
        assert tier._holding is not None
        await tier._holding.small.log.flush()
        span = small_span(0)
        reader = await reader_of(tier, span)
        await reader.close()
        reader = await reader_of(tier, span)
        assert reader.region(0, 10) is not None
        other = version("other", 100 * KIB)
        await tier.keep(Span(other, 0, 0, other.size_bytes), content(other))
        await tier._holding.small.log.flush()
        assert reader.region(0, 10) is None
        assert bytes(await reader.read(0, SMALL_LIMIT)) == content(SMALL[0])
        await reader.close()


@pytest.mark.parametrize("damage", ["flip", "truncate"])
async def test_a_shard_that_was_changed_in_place_is_not_sent(tmp_path: Path, damage: str) -> None:
    async with opened(small_config(tmp_path)) as tier:
        await put_small(tier)
        await settled(tier)
        span = small_span(1)
        for _ in range(2):
            reader = await reader_of(tier, span)
            await reader.close()
        reader = await reader_of(tier, span)
        assert reader.region(0, SMALL_LIMIT) is not None
        [path] = files(tmp_path, "shards")
        at = path.read_bytes().index(content(span.version)[:100])
        if damage == "flip":
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content(span.version)[0] ^ 1]))
        else:
            os.truncate(path, at)
        assert reader.region(0, SMALL_LIMIT) is None
        with pytest.raises(Corrupt):
            await reader.read(0, 10)
        await reader.close()
        assert await tier.open(span) is None


async def test_a_shards_pages_that_left_memory_are_verified_again(tmp_path: Path) -> None:
    async with opened(small_config(tmp_path)) as tier:
        await put_small(tier)
        await settled(tier)
        spans = [small_span(number) for number in range(len(SMALL))]
        for span in spans * 2:
            await region_of(tier, span, 0, 1)
        reader = await reader_of(tier, spans[2])
        [path] = files(tmp_path, "shards")
        with descriptor_of(path) as descriptor:
            evict_pages(descriptor)
        assert reader.region(0, 1) is None
        assert bytes(await reader.read(0, SMALL_LIMIT)) == content(SMALL[2])
        await reader.close()
        # Those behind it came into memory with it, but nobody has verified them.
        for span in spans[3:]:
            assert await region_of(tier, span, 0, 1) is None
        for span in spans:
            reader = await reader_of(tier, span)
            assert bytes(await reader.read(0, SMALL_LIMIT)) == content(span.version)
            await reader.close()
            assert await region_of(tier, span, 0, SMALL_LIMIT) == content(span.version)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_to_the_file_what_is_sent_is_right(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    data = content(CHUNK.version)
    regions = 0
    async with opened(cache_config(tmp_path)) as tier:
        for _ in range(150):
            reader = tier.open_now(CHUNK) or await tier.open(CHUNK)
            if reader is None:
                await put(tier, CHUNK.version)
                continue
            offset = rng.randrange(CHUNK_BYTES)
            limit = rng.choice([1, 1000, BLOCK, CHUNK_BYTES])
            [path] = files(tmp_path, "chunks")
            match rng.choice(["send", "send", "send", "read", "read", "evict", "flip", "touch"]):
                case "send":
                    region = reader.region(offset, limit)
                    if region is not None:
                        regions += 1
                        assert 1 <= region.size_bytes <= limit
                        assert sent(region) == data[offset : offset + region.size_bytes]
                case "read":
                    try:
                        block = await reader.read(offset, limit)
                        assert block == data[offset : offset + len(block)]
                    except Corrupt:
                        assert tier.open_now(CHUNK) is None
                case "evict":
                    with descriptor_of(path) as descriptor:
                        evict_pages(descriptor)
                case "flip" if rng.random() < 0.3:
                    with path.open("r+b") as file:
                        file.seek(offset)
                        file.write(bytes([data[offset] ^ 1]))
                case _:
                    os.utime(path)
            await reader.close()
    assert regions


async def test_a_shard_stays_while_it_may_be_sent_from_and_not_while_it_is_only_read(
    tmp_path: Path,
) -> None:
    async with opened(small_config(tmp_path)) as tier:
        await put_small(tier)
        await settled(tier)
        [shard] = files(tmp_path, "shards")
        holding = tier._holding
        assert holding is not None
        number = int(shard.stem)
        for span in (small_span(0), small_span(1)):
            await (await reader_of(tier, span)).close()
        sending = await reader_of(tier, small_span(0))
        region = sending.region(0, SMALL_LIMIT)
        assert region is not None
        # Reading meanwhile takes nothing from who sends.
        assert bytes(await sending.read(0, 10)) == content(SMALL[0])[:10]
        passing = [version(f"passing{step}", CHUNK_BYTES) for step in range(300)]
        for one in passing:
            await put(tier, one)
        assert shard.exists()
        assert sent(region) == content(SMALL[0])
        await sending.close()
        await sending.close()
        reading = await reader_of(tier, small_span(1))
        assert holding.small.is_read(number)
        assert bytes(await reading.read(0, 10)) == content(SMALL[1])[:10]
        assert reading.region(0, 10) is None
        assert not holding.small.is_read(number)
        for one in passing:
            await put(tier, one)
        assert not shard.exists()
        assert bytes(await reading.read(5, 10)) == content(SMALL[1])[5:15]
        await reading.close()
