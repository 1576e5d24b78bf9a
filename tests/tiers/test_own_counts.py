"""What a disk holds by folder is what its index says, and is not counted more often than useful."""

from pathlib import Path

from gateway.cluster.datasets import REST, Counter
from gateway.tiers.disk import DiskTier
from gateway.tiers.own_counts import OwnCounts
from tests.cluster.listed import Clock
from tests.tiers.cached import CHUNK_BYTES, cache_config, opened, put, version


async def held(counts: OwnCounts) -> dict[bytes, dict[str, int]]:
    """By folder, as a listing finds it."""
    buckets = await counts.buckets()
    assert buckets in ([], [("main", b"bucket")])
    folders = await counts.folders("main", b"bucket", b"", 10_000)
    assert folders == sorted(folders)
    sizes = await counts.held([Counter("main", b"bucket", each) for each in folders])
    return dict(zip(folders, sizes, strict=True))


async def test_bytes_are_counted_by_folder_and_again_after_a_while(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(cache_config(tmp_path)) as tier:
        counts = OwnCounts("me", tier, now=clock)
        assert await held(counts) == {}
        for key, size_bytes in (("a/b/c/1", CHUNK_BYTES + 5), ("a/b/2", 10), ("3", 20)):
            await put(tier, version(key, size_bytes))

        assert await held(counts) == {}
        clock.seconds += 6
        assert await held(counts) == {b"": {"me": 20}, b"a/b/": {"me": CHUNK_BYTES + 15}}
        assert await counts.folders("main", b"bucket", b"\0", 1) == [b"a/b/"]
        assert await counts.held([Counter("main", b"bucket", b"x/")]) == [{}]


async def test_folders_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        for number in range(520):
            await put(tier, version(f"{number}/k", 10))

        found = await held(OwnCounts("me", tier))

        assert len(found) == 513
        assert found[REST] == {"me": 80}


async def test_a_disk_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, version("k", 10))
        closed: DiskTier = tier
    assert await held(OwnCounts("me", closed)) == {}
