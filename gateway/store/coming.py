"""One span on its way in: what has come of it, and who waits for more."""

import asyncio
from time import monotonic

from gateway.model.objects import Span
from gateway.store.courtesy import Courtesy
from gateway.store.trail import Trail
from gateway.tiers.disk import Landing
from gateway.tiers.protocol import Source, TierName


class Fill:
    """One span on its way in. `received_bytes` only grows; `done` is final."""

    def __init__(self, span: Span, source: Source | None = None, *, kept: bool = True) -> None:
        self.span = span
        self.source = source
        self.kept = kept
        # Where its bytes come from, as far as is known.
        self.tier: TierName = "origin"
        self.received_bytes = 0
        self.done = False
        self.error: Exception | None = None
        self.memory: bytearray | bytes | None = None
        self.landing: Landing | None = None
        self.followers = 0
        # Set where nobody waits for it: it gives way to those for whom somebody does.
        self.courtesy: Courtesy | None = None
        self.task: asyncio.Task[None] | None = None
        self._trail: Trail | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def land(self, landing: Landing) -> None:
        """The bytes will come in there."""
        self.landing = landing
        pieces = -(-self.span.size_bytes // landing.piece_bytes)
        self._trail = Trail(pieces, self.followers)

    def enter(self) -> None:
        """One more follows, from the beginning."""
        self.followers += 1
        if self._trail is not None and self.landing is not None:
            self._trail.enter()
            self.landing.let_go(0)

    def move(self, place: int, offset: int) -> int:
        """A follower that stood at `place` has read up to `offset`; its place now."""
        if self._trail is None or self.landing is None:
            return place
        onto = offset // self.landing.piece_bytes
        if onto > place and self._trail.move(place, onto):
            self.landing.let_go(self._trail.passed)
        return max(place, onto)

    def leave(self, place: int) -> None:
        """The follower that stands at `place` is gone."""
        self.followers -= 1
        if self._trail is not None and self._trail.leave(place) and self.landing is not None:
            self.landing.let_go(self._trail.passed)

    async def space(self) -> memoryview:
        """Where the next bytes go. TierFull, TierUnavailable."""
        if self.landing is not None:
            return await self.landing.space()
        assert isinstance(self.memory, bytearray)  # noqa: S101 - one of the two is set
        return memoryview(self.memory)[self.received_bytes :]

    def took(self, size_bytes: int) -> None:
        """The next `size_bytes` are in their place."""
        if self.landing is not None:
            self.landing.received(size_bytes)
        self.received_bytes += size_bytes
        self._wake()

    def read_now(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        """What has come from `offset` on, out of memory; None where nothing of it is there."""
        if self.landing is not None:
            return self.landing.read_now(offset, limit_bytes)
        if self.memory is None or offset >= self.received_bytes:
            return None
        if isinstance(self.memory, bytes) and not offset and limit_bytes >= len(self.memory):
            return self.memory
        return memoryview(self.memory)[offset : min(offset + limit_bytes, self.received_bytes)]

    def finish(self, error: Exception | None = None) -> None:
        self.done = True
        self.error = error
        self._wake()

    async def wait_beyond(self, offset: int) -> None:
        """Returns once the byte at `offset` is here or the fill is over."""
        while self.received_bytes <= offset and not self.done:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    async def give_way(self) -> None:
        """Lets others go first: its readers and all others, between two pieces."""
        begun = monotonic()
        await asyncio.sleep(0)
        turn_seconds = monotonic() - begun
        # More than one follower: somebody reads it by now.
        while self.courtesy is not None and self.followers <= 1:
            rest = self.courtesy.rest_seconds(turn_seconds, monotonic() - begun)
            if not rest:
                return
            await asyncio.sleep(rest)

    async def wait_over(self) -> None:
        """Returns once the fill is over, well or badly."""
        await self.wait_beyond(self.span.size_bytes)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
