"""The ledger of the disk: what is taken never exceeds the capacity, however many ask at once."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import TierFull, TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.eviction import Policy, Victim
from gateway.tiers.room import FIXED_BYTES, Item, Room, on_disk
from tests.tiers.cached import sample

CAPACITY_BYTES = FIXED_BYTES + 1000
HEADROOM_BYTES = 100
LIMIT_BYTES = CAPACITY_BYTES - HEADROOM_BYTES


class Disk:
    """Where the room is: chunks take a turn of the loop to go, and a shard keeps a third of itself
    in the headroom before it goes."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.policy: Policy[Item] = Policy(LIMIT_BYTES - FIXED_BYTES)
        self.pinned: set[Item] = set()
        self.evicted: list[Item] = []
        self.growing: list[tuple[int, int]] = []
        self.broken = False
        self.room = Room(
            CAPACITY_BYTES,
            HEADROOM_BYTES,
            self.policy,
            self.metrics,
            pinned=lambda item: item in self.pinned,
            evict=self.evict,
            seal=self.seal,
        )

    async def evict(self, victims: list[Victim[Item]]) -> None:
        if self.broken:
            raise TierUnavailable("cannot be removed")
        for victim in victims:
            assert victim.item not in self.pinned
            if isinstance(victim.item, int) and self.room.try_headroom(victim.size_bytes // 3):
                self.look()
                self.policy.add(b"moved from %d" % victim.item, victim.size_bytes // 3)
            await asyncio.sleep(0)
            self.evicted.append(victim.item)
            self.room.release(victim.size_bytes)

    async def seal(self) -> bool:
        await asyncio.sleep(0)
        if not self.growing:
            return False
        shard, size_bytes = self.growing.pop()
        self.policy.add(shard, size_bytes)
        return True

    def look(self) -> None:
        assert self.room.used_bytes <= CAPACITY_BYTES

    async def put(self, item: Item, size_bytes: int) -> None:
        await self.room.reserve(size_bytes)
        self.look()
        self.policy.add(item, size_bytes)


def name(number: int) -> bytes:
    return b"chunk %d" % number


async def test_room_is_made_by_evicting_and_told_in_metrics() -> None:
    disk = Disk()
    for number in range(20):
        await disk.put(name(number), 100)
    assert len(disk.evicted) == 11
    assert disk.room.used_bytes == FIXED_BYTES + 900
    assert sample(disk.metrics, "feedrack_cache_bytes") == disk.room.used_bytes
    assert sample(disk.metrics, "feedrack_cache_capacity_bytes") == CAPACITY_BYTES


async def test_what_is_released_can_be_taken_again_without_evicting() -> None:
    disk = Disk()
    await disk.room.reserve(900)
    disk.room.release(900)
    await disk.room.reserve(900)
    assert disk.evicted == []


async def test_what_can_never_fit_evicts_nothing() -> None:
    disk = Disk()
    await disk.put(name(1), 500)
    with pytest.raises(TierFull):
        await disk.room.reserve(LIMIT_BYTES + 1)
    assert disk.evicted == []


async def test_where_everything_is_pinned_there_is_no_room() -> None:
    disk = Disk()
    for number in range(9):
        await disk.put(name(number), 100)
        disk.pinned.add(name(number))
    with pytest.raises(TierFull):
        await disk.room.reserve(1)
    assert disk.room.used_bytes == LIMIT_BYTES
    disk.pinned.remove(name(4))
    await disk.room.reserve(1)
    assert disk.evicted == [name(4)]


async def test_what_grows_is_ended_where_nothing_else_can_go() -> None:
    disk = Disk()
    await disk.room.reserve(600)
    disk.growing.append((7, 600))
    await disk.room.reserve(600)
    assert disk.evicted == [7]
    assert b"moved from 7" in disk.policy


async def test_the_headroom_is_for_moving_only_and_ends_at_the_capacity() -> None:
    disk = Disk()
    await disk.room.reserve(900)
    with pytest.raises(TierFull):
        await disk.room.reserve(1)
    assert disk.room.try_headroom(60)
    assert not disk.room.try_headroom(41)
    assert disk.room.try_headroom(40)
    assert disk.room.used_bytes == CAPACITY_BYTES


async def test_a_smaller_capacity_is_reached_by_evicting() -> None:
    disk = Disk()
    for number in range(20):
        disk.policy.add(name(number), 100)
        disk.room.take(100)
    await disk.room.shrink()
    assert disk.room.used_bytes <= LIMIT_BYTES
    assert len(disk.evicted) == 11


async def test_a_failed_eviction_is_the_askers_error_and_nobody_elses() -> None:
    disk = Disk()
    for number in range(9):
        await disk.put(name(number), 100)
    disk.broken = True
    with pytest.raises(TierUnavailable):
        await disk.room.reserve(100)
    disk.broken = False
    await disk.room.reserve(100)
    assert disk.evicted


async def test_a_cancelled_asker_takes_nothing() -> None:
    disk = Disk()
    for number in range(9):
        await disk.put(name(number), 100)
    asking = asyncio.create_task(disk.room.reserve(100))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert disk.room.used_bytes <= LIMIT_BYTES
    await disk.room.reserve(100)
    assert disk.room.used_bytes <= LIMIT_BYTES


async def test_evicting_some_makes_room_and_is_no_error_where_nothing_can_go() -> None:
    disk = Disk()
    await disk.room.evict_some()
    await disk.put(name(1), 100)
    await disk.room.evict_some()
    assert disk.evicted == [name(1)]


@given(
    asked=st.lists(
        st.tuples(st.integers(1, 400), st.booleans(), st.booleans()), min_size=1, max_size=60
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_askers_at_the_same_time_never_exceed_the_capacity(
    asked: list[tuple[int, bool, bool]], seed: int
) -> None:
    async def run() -> None:
        disk = Disk()
        rng = random.Random(seed)

        async def ask(number: int, size_bytes: int, shard: bool, pinned: bool) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            item: Item = number if shard else name(number)
            try:
                await disk.room.reserve(size_bytes)
            except TierFull:
                return
            disk.look()
            if pinned and not shard:
                disk.pinned.add(item)
            await asyncio.sleep(0)
            disk.policy.add(item, size_bytes)
            await asyncio.sleep(0)
            disk.pinned.discard(item)

        await asyncio.gather(*(ask(number, *one) for number, one in enumerate(asked)))
        # Everything is counted once: what is held, and what is always there.
        assert disk.room.used_bytes == FIXED_BYTES + disk.policy.resident_bytes
        while (victim := disk.policy.victim()) is not None:
            disk.room.release(victim.size_bytes)
        assert disk.room.used_bytes == FIXED_BYTES

    asyncio.run(run())


@given(size_bytes=st.integers(0, 2**40))
def test_a_file_takes_whole_blocks(size_bytes: int) -> None:
    assert 0 <= on_disk(size_bytes) - size_bytes < 4096
    assert on_disk(size_bytes) % 4096 == 0
