"""Whose packs lie where: the prefix of a place that this node has not taken in. A manifest is read
for it, and no index, so that who only wants the name of a pack does not bring it in."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

import structlog

from gateway.errors import FeedrackError
from gateway.tiers.packed.looking import highest
from gateway.tiers.protocol import Origin
from packer.format import ManifestError, Place

# Whoever asks waits so long; what comes later the next one is told.
_PATIENCE_SECONDS = 1.0
_AT_ONCE = 8
_MOST_PLACES = 10_000
# A place that has no pack may have one later; whose it is never changes, for its name says so.
_AGAIN_SECONDS = 20.0

log = structlog.get_logger()


class Places:
    """The prefixes of an origin's places, a bounded number remembered. `now` is monotonic."""

    def __init__(self, origin: Origin, now: Callable[[], float]) -> None:
        self._origin = origin
        self._now = now
        # By bucket and root: the prefix, or None, and until when that is good.
        self._known: OrderedDict[tuple[str, str], tuple[str | None, float]] = OrderedDict()
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def prefixes(self, bucket: str, roots: Iterable[str]) -> dict[str, str]:
        """By root the prefix of each place that has a pack, as far as that is known within a
        second."""
        places = {(bucket, root) for root in roots}
        looks = {self._look(place) for place in places if not self._knows(place)}
        if looks:
            await asyncio.wait(looks, timeout=_PATIENCE_SECONDS)
        found: dict[str, str] = {}
        for place in places:
            prefix, _ = self._known.get(place, (None, 0.0))
            if prefix is not None:
                found[place[1]] = prefix
        return found

    async def close(self) -> None:
        tasks = [*self._looking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _knows(self, place: tuple[str, str]) -> bool:
        return place in self._known and self._now() < self._known[place][1]

    def _look(self, place: tuple[str, str]) -> "asyncio.Task[None]":
        task = self._looking.get(place)
        if task is None:
            task = self._looking[place] = asyncio.create_task(self._look_at(place))
            task.add_done_callback(lambda _: self._looking.pop(place))
        return task

    async def _look_at(self, place: tuple[str, str]) -> None:
        bucket, root = place
        prefix: str | None = None
        async with self._slots:
            try:
                manifest = await highest(self._origin, bucket, f"{root}manifests/")
            except (FeedrackError, ManifestError) as error:
                log.info("whose packs lie there is not known", place=root, reason=str(error))
            else:
                if manifest is not None and manifest.state != "dropped":
                    prefix = manifest.prefix if Place(manifest.prefix).root == root else None
        until = float("inf") if prefix is not None else self._now() + _AGAIN_SECONDS
        self._known.pop(place, None)
        self._known[place] = prefix, until
        if len(self._known) > _MOST_PLACES:
            self._known.popitem(last=False)
