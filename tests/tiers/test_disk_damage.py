"""Whatever happens to the cache's files, no wrong byte is served, and the cache goes on."""

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import Corrupt, TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    CHUNK_BYTES,
    SMALL_BYTES,
    cache_config,
    chunks,
    content,
    files,
    get,
    info,
    opened,
    put,
    sample,
    version,
)
from tests.waiting import until

OBJECTS = [
    *(version(f"small-{number}", 500 + 3000 * number) for number in range(20)),
    *(version(f"large-{number}", SMALL_BYTES + 1 + 150_000 * number) for number in range(8)),
]


async def filled(path: Path) -> None:
    async with opened(cache_config(path)) as tier:
        for one in OBJECTS:
            await put(tier, one)
            await tier.remember(one.ref, info(one))


async def check(tier: DiskTier) -> int:
    """Reads everything; how many objects are still whole. A wrong byte fails the test."""
    whole = 0
    for one in OBJECTS:
        assert tier.recall(one.ref) in (None, info(one))
        data = None
        for _ in chunks(one):
            try:
                data = await get(tier, one)
                break
            except Corrupt:
                # What was corrupt is dropped, so that each chunk is corrupt at most once.
                continue
        if data is not None:
            assert data == content(one)
            whole += 1
    return whole


async def refill(tier: DiskTier) -> None:
    """Everything can be kept again, and is whole then."""
    for one in OBJECTS:
        await put(tier, one)
    assert await check(tier) == len(OBJECTS)


def flip(path: Path, rng: random.Random, bits: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(bits):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def truncate(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))


def blank(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def swap(path: Path, rng: random.Random) -> None:
    others = [other for other in path.parent.parent.rglob(f"*{path.suffix}") if other != path]
    if others:
        path.write_bytes(rng.choice(others).read_bytes())


@pytest.mark.parametrize("damage", [flip, truncate, blank, delete, swap])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_damaged_chunks_are_dropped_and_come_back(
    tmp_path: Path, damage: Callable[[Path, random.Random], None], running: bool
) -> None:
    await filled(tmp_path)
    rng = random.Random(damage.__name__)
    metrics = Metrics()
    if not running:
        for path in files(tmp_path, "chunks")[::2]:
            damage(path, rng)
    async with opened(cache_config(tmp_path), metrics) as tier:
        if running:
            for path in files(tmp_path, "chunks")[::2]:
                damage(path, rng)
        assert await check(tier) < len(OBJECTS)
        if running or damage is not delete:
            assert sample(metrics, "feedrack_cache_corrupt_total") > 0
        assert tier.accepting
        await refill(tier)


@pytest.mark.parametrize("damage", [truncate, blank, delete])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_damaged_shards_are_dropped_and_come_back(
    tmp_path: Path, damage: Callable[[Path, random.Random], None], running: bool
) -> None:
    await filled(tmp_path)
    rng = random.Random(damage.__name__)
    if not running:
        damage(files(tmp_path, "shards")[0], rng)
    async with opened(cache_config(tmp_path)) as tier:
        if running:
            damage(files(tmp_path, "shards")[0], rng)
        assert await check(tier) < len(OBJECTS)
        assert tier.accepting
        await refill(tier)


@pytest.mark.parametrize("seed", range(8))
async def test_flipped_bits_in_a_shard_cost_only_the_objects_they_hit(
    tmp_path: Path, seed: int
) -> None:
    await filled(tmp_path)
    flip(files(tmp_path, "shards")[0], random.Random(seed))
    async with opened(cache_config(tmp_path)) as tier:
        assert await check(tier) >= len(OBJECTS) - 1
        await refill(tier)


async def test_every_bit_of_a_block_is_covered(tmp_path: Path) -> None:
    one = version("one", CHUNK_BYTES)
    async with opened(cache_config(tmp_path)) as tier:
        await put(tier, one)
        path = files(tmp_path, "chunks")[0]
        raw = path.read_bytes()
        for position in (0, 65_535, 65_536, CHUNK_BYTES - 1):
            with path.open("r+b") as file:
                file.write(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
            reader = await tier.open(chunks(one)[0])
            assert reader is not None
            with pytest.raises(Corrupt):
                await reader.read(position - position % 65_536, 1)
            await reader.close()
            assert await tier.open(chunks(one)[0]) is None
            await put(tier, one)
            path = files(tmp_path, "chunks")[0]


@pytest.mark.parametrize("seed", range(12))
async def test_garbage_in_the_index_costs_speed_and_nothing_else(tmp_path: Path, seed: int) -> None:
    await filled(tmp_path)
    rng = random.Random(seed)
    index = tmp_path / "index.lmdb"
    raw = bytearray(index.read_bytes())
    match seed % 4:
        case 0:
            raw[:] = rng.randbytes(len(raw))
        case 1:
            # Behind the two meta pages, so that the file still looks like an index.
            start = rng.randrange(8192, len(raw))
            raw[start : start + 4096] = rng.randbytes(len(raw[start : start + 4096]))
        case 2:
            del raw[rng.randrange(len(raw)) :]
        case _:
            for _ in range(200):
                raw[rng.randrange(8192, len(raw))] ^= 1 << rng.randrange(8)
    index.write_bytes(raw)
    async with opened(cache_config(tmp_path)) as tier:
        assert tier.accepting
        await check(tier)
        # Damage that only a look-up meets makes the cache start empty then, by itself.
        with suppress(TierUnavailable):
            await refill(tier)
        await until(lambda: tier.accepting)
        await refill(tier)


@pytest.mark.parametrize("name", ["FORMAT", "SESSION"])
@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"version": "x"}'])
async def test_unreadable_notes_are_started_over(tmp_path: Path, name: str, raw: bytes) -> None:
    await filled(tmp_path)
    (tmp_path / name).write_bytes(raw)
    async with opened(cache_config(tmp_path)) as tier:
        whole = await check(tier)
        assert whole == (0 if name == "FORMAT" else len(OBJECTS))
        # Without its session, what the index remembers of objects is not believed.
        assert tier.recall(OBJECTS[0].ref) is None
        await refill(tier)


async def test_what_was_remembered_before_a_power_cut_is_not_believed(tmp_path: Path) -> None:
    await filled(tmp_path)
    session = tmp_path / "SESSION"
    assert json.loads(session.read_text())["clean"] is True
    session.write_text(json.dumps({"boot_id": "another", "clean": False}))
    async with opened(cache_config(tmp_path)) as tier:
        assert tier.recall(OBJECTS[0].ref) is None
        assert await check(tier) == len(OBJECTS)


@pytest.mark.parametrize(("silence_seconds", "believed"), [(5, True), (600, False), (-600, False)])
async def test_what_was_remembered_is_believed_after_a_kill_if_the_restart_follows_soon(
    tmp_path: Path, silence_seconds: float, believed: bool
) -> None:
    await filled(tmp_path)
    async with opened(cache_config(tmp_path)):
        running = (tmp_path / "SESSION").read_text()
    # As a process leaves it that is killed: a disk that took nothing took no note of it either.
    (tmp_path / "SESSION").write_text(running)
    heard_of = time.time() - silence_seconds
    os.utime(tmp_path / "SESSION", (heard_of, heard_of))
    async with opened(cache_config(tmp_path)) as tier:
        assert (tier.recall(OBJECTS[0].ref) is not None) == believed
        assert await check(tier) == len(OBJECTS)


async def test_a_running_cache_gives_signs_of_life(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path), look_seconds=0.05):
        session = tmp_path / "SESSION"
        os.utime(session, (1, 1))
        await until(lambda: session.stat().st_mtime > 1)


async def test_files_that_are_none_of_ours_are_cleared(tmp_path: Path) -> None:
    await filled(tmp_path)
    strangers = [
        tmp_path / "chunks" / "00" / "stranger",
        tmp_path / "chunks" / "00" / ("00" * 16 + ".0"),
        tmp_path / "chunks" / "01" / ("00" * 16 + ".0"),
        tmp_path / "shards" / "77.lmdb",
        tmp_path / "shards" / "x.lmdb",
        tmp_path / "tmp" / "5.chunk",
    ]
    for path in strangers:
        path.write_bytes(b"x" * 5000)
    async with opened(cache_config(tmp_path)) as tier:
        assert not any(path.exists() for path in strangers)
        assert await check(tier) == len(OBJECTS)
