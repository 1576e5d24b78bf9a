"""What the cache takes on disk, kept within its capacity at every moment.

Bytes are reserved before they are written and given back once they are gone from the disk, so
that chunks, shards, files being written, the index and what is reserved never exceed the capacity
together, however many write at once.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.errors import TierFull
from gateway.telemetry.metrics import Metrics
from gateway.tiers.eviction import Policy, Victim

# The file system gives space out in blocks of this size.
_BLOCK_BYTES = 4096
# LOCK, FORMAT, SESSION, LMDB's lock file and the probe's.
FIXED_BYTES = 65_536

Item = bytes | int
"""A chunk by its key in the index, or a shard by its number."""


def on_disk(size_bytes: int) -> int:
    """What a file of that size takes."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


class Room:
    """The one ledger; `evicted_bytes` only grows. `headroom_bytes` are left for moving what is
    worth keeping out of a shard before the shard's own bytes are free."""

    def __init__(
        self,
        capacity_bytes: int,
        headroom_bytes: int,
        policy: Policy[Item],
        metrics: Metrics,
        *,
        pinned: Callable[[Item], bool],
        evict: Callable[[list[Victim[Item]]], Awaitable[None]],
        seal: Callable[[], Awaitable[bool]],
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.evicted_bytes = 0
        self._limit_bytes = capacity_bytes - headroom_bytes
        self._policy = policy
        self._metrics = metrics
        self._pinned = pinned
        self._evict = evict
        self._seal = seal
        self._turn = asyncio.Lock()
        metrics.cache_capacity_bytes.set(capacity_bytes)
        self.take(FIXED_BYTES)

    async def reserve(self, size_bytes: int) -> None:
        """Takes room, evicting for it. TierFull where everything there is must stay."""
        if not self._turn.locked() and self.used_bytes + size_bytes <= self._limit_bytes:
            self.take(size_bytes)
            return
        if size_bytes > self._limit_bytes:
            raise TierFull(f"{size_bytes} bytes are more than the cache may hold")
        async with self._turn:
            while self.used_bytes + size_bytes > self._limit_bytes:
                victims = self._victims(self.used_bytes + size_bytes - self._limit_bytes)
                if victims:
                    await self._evict(victims)
                elif not await self._seal():
                    raise TierFull("everything in the cache is in use")
            self.take(size_bytes)

    def try_headroom(self, size_bytes: int) -> bool:
        """Takes room up to the very capacity, for bytes that will free more than they take."""
        if self.used_bytes + size_bytes > self.capacity_bytes:
            return False
        self.take(size_bytes)
        return True

    def take(self, size_bytes: int) -> None:
        """Counts what is on disk already."""
        self.used_bytes += size_bytes
        self._metrics.cache_bytes.set(self.used_bytes)

    def release(self, size_bytes: int) -> None:
        """Gives back what is gone from the disk, or was reserved and not used."""
        self.used_bytes -= size_bytes
        self._metrics.cache_bytes.set(self.used_bytes)

    def evicted(self, size_bytes: int) -> None:
        """Counts what had to go to make room."""
        self.evicted_bytes += size_bytes
        self._metrics.evicted_bytes.inc(size_bytes)

    async def shrink(self) -> None:
        """Evicts until what is there fits: after a restart with a smaller capacity."""
        await self.reserve(0)

    async def evict_some(self) -> None:
        """Evicts a shard or a chunk, where anything can be."""
        async with self._turn:
            victims = self._victims(1)
            if victims:
                await self._evict(victims)

    def _victims(self, wanted_bytes: int) -> list[Victim[Item]]:
        victims: list[Victim[Item]] = []
        freed = 0
        while freed < wanted_bytes:
            victim = self._policy.victim(self._pinned)
            if victim is None:
                break
            victims.append(victim)
            freed += victim.size_bytes
            if isinstance(victim.item, int):
                # A shard keeps what is worth it: how much it frees is only known afterwards.
                break
        return victims
