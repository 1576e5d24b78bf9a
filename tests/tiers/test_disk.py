"""The disk tier as the store uses it: what goes in comes out, also after a restart."""

import asyncio
from pathlib import Path

import pytest

from gateway.config import ConfigError
from gateway.errors import TierFull, TierUnavailable
from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.model.ranges import span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    MIB,
    SMALL_BYTES,
    cache_config,
    chunks,
    content,
    get,
    get_span,
    info,
    on_disk_bytes,
    opened,
    put,
    put_chunk,
    sample,
    version,
)
from tests.waiting import until

SIZES = (1, 4096, SMALL_BYTES, SMALL_BYTES + 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 17)


@pytest.mark.parametrize("size_bytes", SIZES)
async def test_what_was_kept_is_read_back_whole(tmp_path: Path, size_bytes: int) -> None:
    one = version("one", size_bytes)
    async with opened(cache_config(tmp_path)) as tier:
        assert await get(tier, one) is None
        await put(tier, one)
        assert await get(tier, one) == content(one)


async def test_a_restart_is_warm_and_reads_from_disk(tmp_path: Path) -> None:
    config = cache_config(tmp_path)
    objects = [version(f"k{size}", size) for size in SIZES]
    async with opened(config) as tier:
        for one in objects:
            await put(tier, one)
            await tier.remember(one.ref, info(one))
    async with opened(config) as tier:
        usage = tier.usage()
        assert usage.chunks == 6
        assert usage.shards == 1
        assert usage.objects == len(objects)
        for one in objects:
            assert await get(tier, one) == content(one)
            assert tier.recall(one.ref) == info(one)
        for file in (tmp_path / "shards").iterdir():
            file.unlink()
    async with opened(config) as tier:
        # Small objects really came from the shard: without it there are none.
        assert await get(tier, objects[0]) is None
        assert await get(tier, objects[-1]) == content(objects[-1])


@pytest.mark.parametrize("size_bytes", [10_000, CHUNK_BYTES])
async def test_any_range_of_a_span_can_be_read(tmp_path: Path, size_bytes: int) -> None:
    one = version("one", size_bytes)
    data = content(one)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
        for settled in (False, True):
            if settled:
                await tier.held_bytes("main", "bucket", "")
            reader = await tier.open(span(one, 0, CHUNK_BYTES))
            assert reader is not None
            assert reader.tier == "disk"
            for offset, limit in ((0, 1), (5, 7), (4095, 2), (size_bytes - 1, 100), (9_000, 900)):
                block = bytes(await reader.read(offset, limit))
                assert block
                assert data[offset : offset + limit].startswith(block)
            await reader.close()
            await reader.close()


async def test_a_small_range_of_a_chunk_reads_one_block_of_it(tmp_path: Path) -> None:
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
        path = next(path for path in (tmp_path / "chunks").rglob("*.0"))
        with path.open("r+b") as file:
            file.write(b"\0" * 65_536)  # the first block is no good any more
        reader = await tier.open(chunks(one)[0])
        assert reader is not None
        assert bytes(await reader.read(70_000, 4096)) == content(one)[70_000:74_096]
        await reader.close()


async def test_a_growing_chunk_can_be_followed(tmp_path: Path) -> None:
    one = version("one", CHUNK_BYTES)
    data = content(one)
    async with opened(cache_config(tmp_path)) as tier:
        writer = await tier.begin(CHUNK_BYTES)
        assert await writer.read(0, 10) == b""
        await writer.append(data[:1000])
        assert await writer.read(990, 500) == data[990:1000]
        assert writer.size_bytes == 1000
        await writer.append(memoryview(data)[1000:])
        assert await writer.read(999, CHUNK_BYTES) == data[999:]
        await writer.commit(chunks(one)[0])
        assert await get(tier, one) == data


async def test_committing_what_is_held_already_changes_nothing(tmp_path: Path) -> None:
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
        before = tier.usage()
        await put(tier, one)
        # The second file's room comes back once it is closed, in a thread.
        await until(lambda: tier.usage() == before)
        writers = [await tier.begin(CHUNK_BYTES) for _ in range(2)]
        other = version("other", CHUNK_BYTES)
        for writer in writers:
            await writer.append(content(other))
        await asyncio.gather(*(writer.commit(chunks(other)[0]) for writer in writers))
        assert await get(tier, other) == content(other)
        assert tier.usage().chunks == 2
        await until(lambda: tier.usage().bytes <= before.bytes + CHUNK_BYTES)


async def test_discarding_leaves_nothing_and_is_always_safe(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        empty = tier.usage().bytes
        writer = await tier.begin(CHUNK_BYTES)
        await writer.append(b"x" * 1000)
        assert tier.usage().bytes > empty
        await writer.discard()
        await writer.discard()
        await until(lambda: tier.usage().bytes == empty)
        assert not list((tmp_path / "tmp").iterdir())
        with pytest.raises(TierUnavailable):
            await writer.append(b"more")
        one = version("one", CHUNK_BYTES)
        committed = await tier.begin(CHUNK_BYTES)
        await committed.append(content(one))
        await committed.commit(chunks(one)[0])
        await committed.discard()
        assert await get(tier, one) == content(one)


async def test_a_cancelled_append_leaves_nothing_once_discarded(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        empty = tier.usage().bytes
        writer = await tier.begin(CHUNK_BYTES)
        await writer.append(b"x")
        task = asyncio.create_task(writer.append(b"y" * 200_000))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.discard()
        await until(lambda: tier.usage().bytes == empty)
        assert not list((tmp_path / "tmp").iterdir())


async def test_a_chunk_of_another_size_than_its_span_is_refused(tmp_path: Path) -> None:
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        writer = await tier.begin(CHUNK_BYTES)
        await writer.append(content(one)[:-1])
        with pytest.raises(ValueError, match="size"):
            await writer.commit(chunks(one)[0])
        with pytest.raises(ValueError, match="begun"):
            await writer.append(b"x" * 5000)
        await writer.discard()
        with pytest.raises(ValueError, match="small"):
            await tier.keep(chunks(version("two", 10))[0], b"nine byte")


async def test_another_version_of_a_key_is_another_object(tmp_path: Path) -> None:
    old, new = version("k", 100, "e1"), version("k", 100, "e2")
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, old)
        assert await get(tier, new) is None
        await put(tier, new)
        assert await get(tier, old) == content(old)
        assert await get(tier, new) == content(new)


async def test_forgetting_a_key_forgets_all_its_versions_and_frees_their_bytes(
    tmp_path: Path,
) -> None:
    config = cache_config(tmp_path)
    large = version("large", 3 * CHUNK_BYTES)
    small = version("small", 100)
    numbered = ObjectRef("main", "bucket", "large", "v7")
    async with opened(config) as tier:
        before = tier.usage().bytes
        for one in (large, small):
            await put(tier, one)
            await tier.remember(one.ref, info(one))
        await tier.remember(numbered, info(large))
        assert tier.recall(numbered) == info(large)
        await tier.forget(numbered.current)
        await tier.forget(small.ref)
        assert tier.recall(large.ref) is None
        assert tier.recall(numbered) is None
        assert await get(tier, large) is None
        assert await get(tier, small) is None
        await until(lambda: tier.usage().bytes < before + CHUNK_BYTES)
    async with opened(config) as tier:
        assert tier.recall(large.ref) is None
        assert tier.recall(small.ref) is None
        assert await get(tier, small) is None


async def test_remembering_a_new_version_lets_go_of_the_old_one(tmp_path: Path) -> None:
    old, new = version("k", CHUNK_BYTES, "e1"), version("k", CHUNK_BYTES, "e2")
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, old)
        await tier.remember(old.ref, info(old))
        await put(tier, new)
        await tier.remember(new.ref, info(new))
        assert tier.recall(new.ref) == info(new)
        assert await get(tier, old) is None
        assert await get(tier, new) == content(new)


async def test_a_reader_goes_on_after_its_chunk_was_let_go(tmp_path: Path) -> None:
    one = version("k", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
        await tier.remember(one.ref, info(one))
        reader = await tier.open(chunks(one)[0])
        assert reader is not None
        held = tier.usage().bytes
        await tier.forget(one.ref)
        assert bytes(await reader.read(100_000, 1000)) == content(one)[100_000:101_000]
        # Its bytes are on the disk until the last reader is gone, and count as long.
        assert tier.usage().bytes == held
        await reader.close()
        await until(lambda: tier.usage().bytes == held - CHUNK_BYTES)


async def test_headers_that_are_not_text_are_not_remembered(tmp_path: Path) -> None:
    one = version("k", 10)
    odd = ObjectInfo(
        etag="e1", size_bytes=10, last_modified_ms=1, headers={"x-amz-meta-a": "\udcff"}
    )
    async with opened(cache_config(tmp_path)) as tier:
        await tier.remember(one.ref, info(one))
        await tier.remember(one.ref, odd)
        assert tier.recall(one.ref) is None


@pytest.mark.parametrize("key", ["ä" * 500, "\ud800", "\0", "a/../b", "k" * 1024])
async def test_every_key_can_be_held(tmp_path: Path, key: str) -> None:
    config = cache_config(tmp_path)
    small, large = version(key, 77), version(key, CHUNK_BYTES)
    async with opened(config) as tier:
        await put(tier, small)
        await put(tier, large)
        await tier.remember(small.ref, info(small))
    async with opened(config) as tier:
        assert await get(tier, small) == content(small)
        assert await get(tier, large) == content(large)
        assert tier.recall(small.ref) == info(small)


async def test_an_etag_that_is_not_text_does_not_keep_bytes_out(tmp_path: Path) -> None:
    config = cache_config(tmp_path)
    small, large = version("small", 77, "\udcff"), version("large", CHUNK_BYTES, "\udcff")
    async with opened(config) as tier:
        await put(tier, small)
        await put(tier, large)
    async with opened(config) as tier:
        assert await get(tier, small) == content(small)
        assert await get(tier, large) == content(large)


async def test_held_bytes_counts_what_is_under_the_prefix(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for key, size in (("a/1", 100), ("a/2", CHUNK_BYTES + 5), ("b/1", 1000)):
            await put(tier, version(key, size))
        assert await tier.held_bytes("main", "bucket", "a/") == 100 + CHUNK_BYTES + 5
        assert await tier.held_bytes("main", "bucket", "") == 1100 + CHUNK_BYTES + 5
        assert await tier.held_bytes("main", "other", "") == 0
        assert await tier.held_bytes("other", "bucket", "") == 0


async def test_a_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    config = cache_config(tmp_path)
    async with opened(config) as tier:
        second = DiskTier(config, Metrics())
        with pytest.raises(ConfigError, match="another process"):
            await second.start()
        await second.close()
        await put(tier, version("k", 10))
        assert await get(tier, version("k", 10)) is not None
    async with opened(config) as tier:
        assert tier.accepting


async def test_another_chunk_size_starts_empty(tmp_path: Path) -> None:
    config = cache_config(tmp_path)
    async with opened(config) as tier:
        await put(tier, version("k", CHUNK_BYTES))
    (tmp_path / "FORMAT").write_text('{"version": 1, "chunk_bytes": 4096}')
    async with opened(config) as tier:
        assert await get(tier, version("k", CHUNK_BYTES)) is None
        assert tier.usage().chunks == 0
        assert on_disk_bytes(tmp_path / "chunks") == 0


async def test_a_smaller_capacity_takes_effect_at_the_start(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, 16 * MIB)) as tier:
        for number in range(40):
            await put(tier, version(f"k{number}", CHUNK_BYTES))
        assert tier.usage().chunks == 40
    async with opened(cache_config(tmp_path, 6 * MIB)) as tier:
        assert 0 < tier.usage().chunks < 30
        assert on_disk_bytes(tmp_path) <= 6 * MIB


async def test_what_is_larger_than_the_cache_is_refused_and_counted(tmp_path: Path) -> None:
    metrics = Metrics()
    async with opened(cache_config(tmp_path), metrics) as tier:
        with pytest.raises(TierFull):
            await tier.begin(17 * MIB)
        assert sample(metrics, "feedrack_cache_unkept_total", reason="full") == 1


async def test_more_chunks_than_descriptors_are_kept_open(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path, 32 * MIB)) as tier:
        writers = []
        for number in range(60):
            writer = await tier.begin(CHUNK_BYTES)
            await writer.append(content(version(f"k{number}", CHUNK_BYTES))[: 4 * KIB])
            writers.append(writer)
        assert tier._holding is not None
        tier._holding.files._keep_open = 4
        for number, writer in enumerate(writers):
            await writer.append(content(version(f"k{number}", CHUNK_BYTES))[4 * KIB :])
        links = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in _descriptors()]
        assert sum(link.startswith(str(tmp_path / "tmp")) for link in links) <= 4
        for number, writer in enumerate(writers):
            await writer.commit(chunks(version(f"k{number}", CHUNK_BYTES))[0])
        assert await get_span(tier, chunks(version("k0", CHUNK_BYTES))[0]) is not None


async def test_spans_are_taken_in_and_served_at_the_same_time(tmp_path: Path) -> None:
    objects = [version(f"k{number}", 1000 + number * 9000) for number in range(40)]
    async with opened(cache_config(tmp_path, 64 * MIB)) as tier:

        async def cycle(number: int) -> None:
            for step in range(20):
                one = objects[(number * 7 + step) % len(objects)]
                data = await get(tier, one)
                assert data in (None, content(one))
                if data is None:
                    for chunk in chunks(one):
                        if one.size_bytes <= SMALL_BYTES:
                            await put(tier, one)
                        else:
                            await put_chunk(tier, chunk)

        await asyncio.gather(*(cycle(number) for number in range(8)))
        for one in objects:
            assert await get(tier, one) in (None, content(one))


def _descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
