"""What is told of a disk is what it holds: while it is counted, while it changes, and once it is
gone."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cluster import recount
from gateway.cluster.chunk_sets import bit_of, stretch_key
from gateway.cluster.holdings import Holdings
from gateway.cluster.rebuilding import Rebuilding
from gateway.cluster.recount import Recount
from gateway.model.objects import ObjectVersion
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from tests.tiers.cached import (
    KIB,
    MIB,
    cache_config,
    chunks,
    info,
    put,
    settled,
    version,
)
from tests.waiting import until


class Watched:
    """A disk and what is told of it."""

    def __init__(self, path: Path, *, look_seconds: float = 2.0) -> None:
        self.holdings = Holdings()
        self.rebuilding = Rebuilding()
        self.wholes = 0
        self.recount = Recount(self.holdings, self.rebuilding, self._whole)
        self.disk = DiskTier(
            cache_config(path), Metrics(), observer=self.recount, look_seconds=look_seconds
        )

    def _whole(self) -> None:
        self.wholes += 1

    def says_it_holds(self, of: ObjectVersion) -> list[bool]:
        return [
            bool(
                self.holdings.stretches.get(stretch_key(of.digest, each.number), 0)
                & bit_of(each.number)
            )
            for each in chunks(of)
        ]

    async def agrees(self, *prefixes: str) -> bool:
        """Whether bytes and bits are what the disk itself says."""
        held = {prefix: await self.disk.held_bytes("main", "bucket", prefix) for prefix in prefixes}
        counted = {
            prefix: sum(
                size_bytes
                for counter, size_bytes in self.holdings.bytes.items()
                if counter.folder.startswith(prefix.encode())
            )
            for prefix in prefixes
        }
        return held == counted


@asynccontextmanager
async def watched(path: Path, *, look_seconds: float = 2.0) -> AsyncIterator[Watched]:
    found = Watched(path, look_seconds=look_seconds)
    await found.disk.start()
    try:
        yield found
    finally:
        await found.recount.close()
        await found.disk.close()


async def test_what_comes_in_and_what_goes_is_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as node:
        await until(lambda: node.holdings.whole)
        large = version("a/b/large", 600 * KIB)
        small = version("a/small", 5 * KIB)

        await put(node.disk, large)
        await put(node.disk, small)
        await settled(node.disk)

        assert node.says_it_holds(large) == [True, True, True]
        assert not node.holdings.stretches.keys() - {stretch_key(large.digest, 0)}
        assert await node.agrees("", "a/", "a/b/")

        await node.disk.remember(large.ref, info(large))
        await node.disk.forget(large.ref)

        assert not node.holdings.stretches
        assert await node.agrees("", "a/", "a/b/")


async def test_evictions_are_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as node:
        await until(lambda: node.holdings.whole)
        objects = [version(f"{n % 7}/{n}", 300 * KIB if n % 2 else 40 * KIB) for n in range(160)]

        for each in objects:
            await put(node.disk, each)
        await settled(node.disk)

        assert await node.agrees("", *(f"{n}/" for n in range(7)))
        for each in objects:
            if each.size_bytes > 64 * KIB:
                assert node.says_it_holds(each) == [
                    node.disk.holds(chunk) for chunk in chunks(each)
                ]


async def test_what_a_restart_finds_is_counted_while_more_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "_PIECE_ENTRIES", 3)
    rng = random.Random(7)
    objects = [version(f"{n % 3}/{n}", rng.choice((300, 20)) * KIB) for n in range(60)]
    async with watched(tmp_path) as node:
        for each in objects:
            await put(node.disk, each)
            await node.disk.remember(each.ref, info(each))

    async with watched(tmp_path) as node:
        again = [version(f"{n % 3}/n{n}", rng.choice((300, 20)) * KIB) for n in range(30)]
        for number, each in enumerate(again):
            await put(node.disk, each)
            await node.disk.forget(objects[number * 2].ref)
            await asyncio.sleep(0)
        await until(lambda: node.wholes > 0)
        await settled(node.disk)

        assert node.wholes == 1
        assert not node.rebuilding.ratios
        assert await node.agrees("", "0/", "1/", "2/")
        for each in [*objects, *again]:
            if each.size_bytes > 64 * KIB:
                assert node.says_it_holds(each) == [
                    node.disk.holds(chunk) for chunk in chunks(each)
                ]


async def test_of_a_disk_that_is_gone_nothing_is_held_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    async with watched(folder, look_seconds=0.05) as node:
        await until(lambda: node.holdings.whole)
        await put(node.disk, version("a/x", MIB))
        assert node.holdings.stretches

        folder.rename(tmp_path / "unplugged")
        # So that no new folder is made in its place.
        folder.touch()
        await until(lambda: not node.holdings.stretches)
        assert not any(node.holdings.bytes.values())

        folder.unlink()
        (tmp_path / "unplugged").rename(folder)
        await until(lambda: node.disk.accepting and node.holdings.whole)
        assert await node.agrees("", "a/")
        await put(node.disk, version("a/y", MIB))
        assert await node.agrees("", "a/")
