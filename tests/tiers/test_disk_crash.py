"""kill -9 at random points of a mixed load: the restart serves every byte right, stays within the
capacity and has forgotten what it was told to forget. SEED=… repeats a run."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.errors import TierFull
from gateway.model.objects import ObjectVersion
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    CHUNK_BYTES,
    MIB,
    cache_config,
    content,
    get,
    info,
    on_disk_bytes,
    opened,
    put,
    sample,
    version,
)

CAPACITY_BYTES = 12 * MIB
ROUNDS = 6


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def some_object(rng: random.Random) -> ObjectVersion:
    number = rng.randrange(120)
    size = (1, 700, 4096, 40_000, 70_000, CHUNK_BYTES, 600_000)[number % 7]
    return version(f"k{number}", size)


async def load(path: Path, seed: int) -> None:
    """Puts, reads and forgets until it is killed; says on standard output what is forgotten."""
    tier = DiskTier(cache_config(path, CAPACITY_BYTES), Metrics())
    await tier.start()
    say("started")

    async def worker(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        while True:
            try:
                await step(rng, some_object(rng))
            except TierFull:
                continue

    async def step(rng: random.Random, one: ObjectVersion) -> None:
        match rng.randrange(10):
            case 0:
                await tier.forget(one.ref)
            case 1 | 2 | 3:
                assert await get(tier, one) in (None, content(one))
            case 4:
                writer = await tier.begin(CHUNK_BYTES)
                await writer.append(b"never finished")
                if rng.random() < 0.97:
                    await writer.discard()
            case _:
                await put(tier, one)
                await tier.remember(one.ref, info(one))

    async def forgetter() -> None:
        """Keys of its own, of which only the last word counts."""
        number = 0
        while True:
            one = version(f"forgotten-{number}", 50)
            await tier.remember(one.ref, info(one))
            await asyncio.sleep(0.3)
            await tier.forget(one.ref)
            say(str(number))
            number += 1

    await asyncio.gather(forgetter(), *(worker(number) for number in range(4)))


def run_and_kill(path: Path, seed: int, seconds: float) -> list[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tiers.test_disk_crash", str(path), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and line.strip() != "started":
        line = process.stdout.readline()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert on_disk_bytes(path) <= CAPACITY_BYTES
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    return [int(line) for line in out.splitlines() if line.isdigit()]


@pytest.mark.timeout(180)
async def test_a_killed_cache_serves_only_right_bytes_when_it_is_back(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10_000))))
    say(f"SEED={seed}")
    rng = random.Random(seed)
    served = 0
    for turn in range(ROUNDS):
        forgotten = await asyncio.to_thread(
            run_and_kill, tmp_path, seed + turn, rng.uniform(0.05, 2.0)
        )
        assert on_disk_bytes(tmp_path) <= CAPACITY_BYTES
        metrics = Metrics()
        async with opened(cache_config(tmp_path, CAPACITY_BYTES), metrics) as tier:
            assert not list((tmp_path / "tmp").glob("*.chunk"))
            assert on_disk_bytes(tmp_path) <= CAPACITY_BYTES
            for number in forgotten:
                assert tier.recall(version(f"forgotten-{number}", 50).ref) is None
            for number in range(120):
                size = (1, 700, 4096, 40_000, 70_000, CHUNK_BYTES, 600_000)[number % 7]
                one = version(f"k{number}", size)
                data = await get(tier, one)
                assert data in (None, content(one))
                served += data is not None
                assert tier.recall(one.ref) in (None, info(one))
        # A killed process loses nothing that it wrote: nothing is corrupt, only absent.
        assert sample(metrics, "feedrack_cache_corrupt_total") == 0
    assert served > 0


if __name__ == "__main__":
    asyncio.run(load(Path(sys.argv[1]), int(sys.argv[2])))
