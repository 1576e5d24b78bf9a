"""What one node's disk holds by folder, counted when somebody asks: a node without a cluster keeps
no counters."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from gateway.cluster.datasets import Counter
from gateway.tiers.disk import DiskTier

# For how long a count is used again: so long, and so many times as long as it took.
_KEPT_SECONDS = 5.0
_KEPT_TIMES = 20.0


class OwnCounts:
    """`Counts` of the node `me`. `now` is monotonic."""

    def __init__(
        self, me: str, disk: DiskTier, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._me = me
        self._disk = disk
        self._now = now
        self._held: dict[Counter, int] = {}
        self._folders: dict[tuple[str, bytes], list[bytes]] = {}
        self._good_until = float("-inf")
        self._turn = asyncio.Lock()

    async def buckets(self) -> list[tuple[str, bytes]]:
        """As `Counts`: counts anew where the last count is too old."""
        async with self._turn:
            if self._now() >= self._good_until:
                await self._count()
        return sorted(self._folders)

    async def folders(self, origin: str, bucket: bytes, after: bytes, limit: int) -> list[bytes]:
        """As `Counts`, of the last count."""
        folders = self._folders.get((origin, bucket), [])
        start = bisect_left(folders, after)
        return folders[start : start + limit]

    async def held(self, counters: Sequence[Counter]) -> list[dict[str, int]]:
        """As `Counts`, of the last count."""
        sizes = (self._held.get(each, 0) for each in counters)
        return [{self._me: size_bytes} if size_bytes else {} for size_bytes in sizes]

    async def _count(self) -> None:
        begun = self._now()
        self._held = await self._disk.held_by_folder()
        folders: dict[tuple[str, bytes], list[bytes]] = {}
        for each in self._held:
            folders.setdefault((each.origin, each.bucket), []).append(each.folder)
        self._folders = {bucket: sorted(names) for bucket, names in folders.items()}
        ended = self._now()
        self._good_until = ended + max(_KEPT_SECONDS, _KEPT_TIMES * (ended - begun))
