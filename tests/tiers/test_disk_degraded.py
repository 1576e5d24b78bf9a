"""A disk that is full, read-only or gone: the tier takes nothing in, serves what it can, says so
loudly, and goes on by itself once the disk is well again."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.errors import Corrupt, TierFull, TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    CHUNK_BYTES,
    MIB,
    cache_config,
    chunks,
    content,
    get,
    info,
    opened,
    put,
    sample,
    version,
)
from tests.waiting import until

LOOK_SECONDS = 0.05


def mount(*arguments: str) -> bool:
    command = shutil.which("mount")
    return (
        command is not None
        and subprocess.run([command, *arguments], capture_output=True, check=False).returncode == 0
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)):
        if "mount" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names mount, and a tmpfs cannot be mounted")
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The folder, read-only for everything that is opened meanwhile. (A file system that has files
    open for writing cannot be remounted read-only; it can be hidden under itself.)"""
    assert mount("--bind", str(path), str(path))
    try:
        assert mount("-o", "remount,bind,ro", str(path))
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def fill(tier: DiskTier, count: int = 60) -> None:
    for number in range(count):
        await put(tier, version(f"fill-{number}", CHUNK_BYTES))


async def test_a_full_disk_passes_through_and_comes_back(small_disk: Path) -> None:
    metrics = Metrics()
    small, large = version("small", 1000), version("large", CHUNK_BYTES)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 * MIB))
    async with opened(
        cache_config(small_disk, 64 * MIB), metrics, look_seconds=LOOK_SECONDS
    ) as tier:
        for one in (small, large):
            await put(tier, one)
            await tier.remember(one.ref, info(one))
        with pytest.raises((TierFull, TierUnavailable)):
            await fill(tier)
        assert not tier.accepting
        assert tier.usage().degraded == "full"
        assert sample(metrics, "feedrack_cache_degraded", reason="full") == 1
        with pytest.raises(TierUnavailable):
            await tier.begin(CHUNK_BYTES)
        with pytest.raises(TierUnavailable):
            await tier.keep(chunks(version("more", 5))[0], b"12345")
        assert sample(metrics, "feedrack_cache_unkept_total", reason="degraded") == 2
        assert await get(tier, small) == content(small)
        assert await get(tier, large) == content(large)
        assert tier.recall(large.ref) == info(large)
        assert not list((small_disk / "tmp").glob("*.chunk"))

        await tier.forget(large.ref)
        assert tier.recall(large.ref) is None
        ballast.unlink()
        await until(lambda: tier.accepting)
        assert sample(metrics, "feedrack_cache_degraded", reason="full") == 0
        await put(tier, version("again", CHUNK_BYTES))
    async with opened(cache_config(small_disk, 64 * MIB)) as tier:
        assert tier.recall(large.ref) is None
        again = version("again", CHUNK_BYTES)
        assert await get(tier, again) == content(again)


async def test_a_disk_that_fills_under_small_objects_serves_no_wrong_byte(
    small_disk: Path,
) -> None:
    async with opened(cache_config(small_disk, 64 * MIB), look_seconds=LOOK_SECONDS) as tier:
        taken = 0
        while tier.accepting:
            await put(tier, version(f"k{taken}", 60_000))
            taken += 1
            if taken % 10 == 0:
                await tier.held_bytes("main", "bucket", "")
        assert tier.usage().degraded == "full"
        kept = 0
        for number in range(taken):
            one = version(f"k{number}", 60_000)
            data = await get(tier, one)
            assert data in (None, content(one))
            kept += data is not None
        assert kept >= 60


async def test_a_read_only_disk_is_read_and_comes_back(small_disk: Path) -> None:
    metrics = Metrics()
    config = cache_config(small_disk)
    one = version("one", CHUNK_BYTES)
    async with opened(config, metrics, look_seconds=LOOK_SECONDS) as tier:
        await put(tier, one)
        await tier.remember(one.ref, info(one))
        await tier.held_bytes("main", "bucket", "")
        with read_only(small_disk):
            with pytest.raises(TierUnavailable):
                await put(tier, version("two", CHUNK_BYTES))
            assert tier.usage().degraded == "read-only"
            assert sample(metrics, "feedrack_cache_degraded", reason="read-only") == 1
            assert await get(tier, one) == content(one)
            assert tier.recall(one.ref) == info(one)
            await tier.forget(one.ref)
            assert tier.recall(one.ref) is None
        await until(lambda: tier.accepting)
        assert tier.recall(one.ref) is None
        await put(tier, version("two", CHUNK_BYTES))
    async with opened(config) as tier:
        assert tier.recall(one.ref) is None


async def test_a_disk_turned_read_only_is_noticed_before_anything_is_written(
    small_disk: Path,
) -> None:
    async with opened(cache_config(small_disk), look_seconds=LOOK_SECONDS) as tier:
        with read_only(small_disk):
            await until(lambda: tier.usage().degraded == "read-only")
        await until(lambda: tier.accepting)


async def test_a_disk_that_is_read_only_at_the_start_is_used_once_it_is_not(
    small_disk: Path,
) -> None:
    config = cache_config(small_disk)
    one = version("one", CHUNK_BYTES)
    async with opened(config) as tier:
        await put(tier, one)
        await tier.remember(one.ref, info(one))
    assert mount("-o", "remount,ro", str(small_disk))
    async with opened(config, look_seconds=LOOK_SECONDS) as tier:
        assert not tier.accepting
        assert tier.usage().degraded == "read-only"
        assert await get(tier, one) is None
        await tier.forget(one.ref)
        assert mount("-o", "remount,rw", str(small_disk))
        await until(lambda: tier.accepting)
        # Nobody noted meanwhile what was overwritten; the bytes themselves are as good as ever.
        assert tier.recall(one.ref) is None
        assert await get(tier, one) == content(one)


async def test_a_folder_that_vanishes_and_returns_is_taken_up_again(tmp_path: Path) -> None:
    metrics = Metrics()
    path = tmp_path / "cache"
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(path), metrics, look_seconds=LOOK_SECONDS) as tier:
        await put(tier, one)
        await tier.remember(one.ref, info(one))
        await tier.held_bytes("main", "bucket", "")
        path.rename(tmp_path / "away")
        path.write_text("in the way, so that no new folder can be made")
        await until(lambda: tier.usage().degraded == "missing")
        assert await get(tier, one) is None
        assert tier.recall(one.ref) is None
        assert tier.usage().bytes == 0
        with pytest.raises(TierUnavailable):
            await tier.begin(CHUNK_BYTES)
        path.unlink()
        (tmp_path / "away").rename(path)
        await until(lambda: tier.accepting)
        assert await get(tier, one) == content(one)
        assert tier.recall(one.ref) is None


async def test_a_folder_that_is_replaced_by_an_empty_one_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(path), look_seconds=LOOK_SECONDS) as tier:
        await put(tier, one)
        growing = await tier.begin(CHUNK_BYTES)
        await growing.append(b"half")
        reader = await tier.open(chunks(one)[0])
        assert reader is not None
        path.rename(tmp_path / "away")
        await until(lambda: path.joinpath("LOCK").exists() and tier.accepting)
        assert await get(tier, one) is None
        # What was open reads on; what was growing is given up.
        assert bytes(await reader.read(0, 100)) == content(one)[:100]
        await reader.close()
        with pytest.raises(TierUnavailable):
            await growing.append(b"more")
        await growing.discard()
        assert tier.accepting
        await put(tier, one)
        assert await get(tier, one) == content(one)


async def test_a_place_where_no_folder_can_be_made_degrades(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    tier = DiskTier(cache_config(tmp_path / "file" / "cache"), Metrics())
    await tier.start()
    try:
        assert not tier.accepting
        assert tier.usage().degraded == "missing"
        assert await get(tier, version("k", 10)) is None
        await tier.remember(version("k", 10).ref, info(version("k", 10)))
        await tier.forget(version("k", 10).ref)
        assert await tier.held_bytes("main", "bucket", "") == 0
    finally:
        await tier.close()


async def test_a_disk_that_fails_to_write_passes_through_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    one, two = version("one", CHUNK_BYTES), version("two", CHUNK_BYTES)
    async with opened(cache_config(tmp_path), metrics, look_seconds=LOOK_SECONDS) as tier:
        await put(tier, one)
        with monkeypatch.context() as failing:
            # No disk fails on demand here: the one error that is played.
            failing.setattr(os, "pwrite", fails_with_eio)
            with pytest.raises(TierUnavailable):
                await put(tier, two)
            assert not tier.accepting
            assert sample(metrics, "feedrack_cache_degraded", reason="io-error") == 1
            assert await get(tier, one) == content(one)
        await until(lambda: tier.accepting)
        await put(tier, two)
        assert await get(tier, two) == content(two)


async def test_a_chunk_that_cannot_be_read_is_dropped_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    one, small = version("one", CHUNK_BYTES), version("small", 5000)
    async with opened(cache_config(tmp_path), metrics) as tier:
        await put(tier, one)
        await put(tier, small)
        await tier.held_bytes("main", "bucket", "")
        with monkeypatch.context() as failing:
            failing.setattr(os, "preadv", fails_with_eio)
            failing.setattr(os, "pread", fails_with_eio)
            with pytest.raises(Corrupt):
                await get(tier, one)
            assert await get(tier, small) is None
        assert sample(metrics, "feedrack_cache_corrupt_total") == 2
        assert await get(tier, one) is None
        for again in (one, small):
            await put(tier, again)
            assert await get(tier, again) == content(again)


def fails_with_eio(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
