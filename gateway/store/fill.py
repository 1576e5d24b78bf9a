"""Fills: each cold span comes in once, and everybody who waits follows along.

A fill is a task of its own. It has the bytes put where they are to stay, which is a
landing (a large object's chunk) or memory (a small object), and wakes its followers, who read from
the same place; a follower that leaves changes nothing for the others. When the bytes are complete
they are published on disk first and the fill is struck from the list second, so that a new reader
always finds one or the other.

A fill that breaks off resumes from what it has, from the next place that has the rest (`Source`:
peers, the origin). One that is not to be kept stays in memory, as small objects do, and goes with
its last reader. What the disk will not take is not filled at all:
followers get TierFull and read from the origin for themselves (pass-through).
"""

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from weakref import WeakValueDictionary

import structlog

from gateway.errors import FeedrackError, TierFull, TierUnavailable
from gateway.model.objects import Span
from gateway.store.coming import Fill
from gateway.store.courtesy import Courtesy
from gateway.store.lanes import Lane, budgets
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.protocol import FileRegion, Incoming, Source, SpanReader, TierName

_ATTEMPTS = 4
_BACKOFF_SECONDS = 0.1
# Whole small objects that the disk has not taken yet; beyond, no other begins to come in.
_MAX_UNKEPT_BYTES = 32 * 1024**2

log = structlog.get_logger()


class FollowingReader:
    """Reads a span while it is being filled, and from disk once it is there."""

    def __init__(self, fill: Fill, disk: DiskTier) -> None:
        self._fill = fill
        self._disk = disk
        self._kept: SpanReader | None = None
        self._follows = True
        self._place = 0
        self._from_disk = fill.done and fill.kept
        # Hears how long each wait for bytes was, in seconds.
        self.on_wait: Callable[[float], None] | None = None
        fill.enter()

    @property
    def tier(self) -> TierName:
        """Where the bytes come from that this reader has waited for."""
        return "disk" if self._from_disk else self._fill.tier

    @property
    def received_bytes(self) -> int:
        """What has come of the span."""
        return self._fill.received_bytes

    @property
    def fill(self) -> Fill:
        return self._fill

    @property
    def begun(self) -> bool:
        """Whether anything has come, or nothing will."""
        return self._fill.received_bytes > 0 or self._fill.done

    @property
    def failed(self) -> bool:
        return self._fill.error is not None

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        while True:
            if self._kept is not None:
                return await self._kept.read(offset, limit_bytes)
            fill = self._fill
            data = self._from_memory(offset, limit_bytes)
            if data is not None:
                return data
            if fill.error is not None:
                raise fill.error
            if fill.done:
                self._kept = await self._disk.open(fill.span)
                if self._kept is None:
                    raise TierUnavailable("the span was evicted while it was being read")
            elif offset >= fill.received_bytes:
                begun = monotonic()
                await fill.wait_beyond(offset)
                if self.on_wait is not None:
                    self.on_wait(monotonic() - begun)
            else:
                assert fill.landing is not None  # noqa: S101 - else it were in memory
                try:
                    return await fill.landing.read(offset, limit_bytes)
                except TierUnavailable:
                    # The file is getting its name this very moment, or the disk fails: the fill
                    # will tell.
                    await fill.wait_over()

    def read_now(self, offset: int, limit_bytes: int) -> bytes | bytearray | memoryview | None:
        if self._kept is not None:
            return self._kept.read_now(offset, limit_bytes)
        return self._from_memory(offset, limit_bytes)

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        return None if self._kept is None else self._kept.region(offset, limit_bytes)

    async def over(self) -> None:
        """Returns once all of the span has come; raises what has ended it early."""
        await self._fill.wait_over()
        if self._fill.error is not None:
            raise self._fill.error

    async def close(self) -> None:
        self.release()
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.close()

    def release(self) -> None:
        """As `close`, before the fill's end."""
        if self._follows:
            self._follows = False
            self._fill.leave(self._place)

    def _from_memory(self, offset: int, limit_bytes: int) -> bytes | memoryview | None:
        data = self._fill.read_now(offset, limit_bytes)
        if data is not None and self._follows:
            self._place = self._fill.move(self._place, offset + len(data))
        return data

    def call_off(self) -> None:
        """As `release`; a fill that has brought nothing and that nobody else follows is ended."""
        self.release()
        fill = self._fill
        if not fill.followers and not self.begun and fill.task is not None:
            fill.task.cancel()


class Filler:
    """Starts fills and hands out readers that follow them; one fill a span at any time."""

    def __init__(
        self,
        disk: DiskTier,
        metrics: Metrics,
        *,
        small_object_limit_bytes: int,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._disk = disk
        self.metrics = metrics
        self._small_bytes = small_object_limit_bytes
        self._jitter = jitter
        self._lanes = budgets()
        self.courtesy = Courtesy(lambda: self._lanes["read"].fills)
        self._fills: dict[tuple[bytes, int], Fill] = {}
        # Fills that are over, for as long as somebody reads from what they left in memory.
        self._over: WeakValueDictionary[tuple[bytes, int], Fill] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unkept_bytes = 0
        self._kept = asyncio.Event()

    def find(self, span: Span) -> FollowingReader | None:
        """A reader that follows the span's fill, if one is under way, or has left all in memory."""
        fill = self._readable(span)
        return None if fill is None else FollowingReader(fill, self._disk)

    def under_way_of(self, span: Span) -> Fill | None:
        """The span's fill while it is under way."""
        return self._fills.get((span.version.digest, span.number))

    def received_bytes(self, span: Span) -> int | None:
        """How much has come of a span that `find` would give a reader of; None where it would
        not."""
        fill = self._readable(span)
        return None if fill is None else fill.received_bytes

    def start(
        self,
        span: Span,
        source: Source,
        coming: Incoming | None = None,
        *,
        lane: Lane = "read",
        kept: bool = True,
    ) -> FollowingReader:
        """Begins to fill `span` from `source` and returns a reader that follows.

        `coming`: an answer that already begins at the span's first byte; it is the fill's to close.
        `kept` False, of small objects alone: nothing of it goes to the disk.
        """
        fill = Fill(span, source, kept=kept)
        key = (span.version.digest, span.number)
        assert key not in self._fills  # noqa: S101 - callers look with `find` in the same step
        if lane in ("prefetch", "background"):
            fill.courtesy = self.courtesy
        self._fills[key] = fill
        self.metrics.fills_in_flight.set(len(self._fills))
        self._lanes[lane].begun(span.size_bytes)
        fill.task = task = asyncio.create_task(self._run(key, fill, source, coming))
        self._tasks.add(task)

        def over(_: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            self._lanes[lane].ended(span.size_bytes)
            fill.task = None

        task.add_done_callback(over)
        return FollowingReader(fill, self._disk)

    def ahead(self, span: Span, source: Source, *, lane: Lane = "read") -> FollowingReader | None:
        """A reader of a span that nobody waits for yet, its fill begun if need be; None where the
        disk takes nothing in or the lane has enough on its way."""
        following = self.find(span)
        if following is not None:
            return following
        if not self._disk.accepting or not self._lanes[lane].fits(span.size_bytes):
            return None
        return self.start(span, source, lane=lane)

    def fits(self, span: Span, lane: Lane) -> bool:
        """Whether the lane has room for one more."""
        return self._disk.accepting and self._lanes[lane].fits(span.size_bytes)

    def holds(self, span: Span) -> bool:
        """Whether the disk has the span already."""
        return self._disk.holds(span)

    def under_way(self) -> list[tuple[Span, int]]:
        """Every span being filled and the bytes it has so far."""
        return [(fill.span, fill.received_bytes) for fill in self._fills.values()]

    async def close(self) -> None:
        """Stops every fill; their followers are told that the tier is gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _readable(self, span: Span) -> Fill | None:
        """The span's fill, under way, or over with all it brought in memory."""
        key = (span.version.digest, span.number)
        fill = self._fills.get(key)
        if fill is None:
            fill = self._over.get(key)
            if fill is None or not (not fill.kept or (fill.landing and fill.landing.in_memory)):
                return None
        return fill

    async def _run(
        self, key: tuple[bytes, int], fill: Fill, source: Source, coming: Incoming | None
    ) -> None:
        error: Exception | None = TierUnavailable("the fill was stopped")
        try:
            if await self._is_kept(fill.span):
                # It was filled between the caller's look at the disk and now.
                fill.kept = True
                if coming is not None:
                    await coming.close()
            else:
                await self._receive(fill, source, coming)
                self.metrics.fills.labels(fill.tier).inc()
                await self._publish(fill)
            error = None
        except FeedrackError as failure:
            error = failure
        except Exception as failure:  # a bug must reach the readers that wait, and the log
            log.exception("fill failed", key=fill.span.version.ref.key, span=fill.span.number)
            error = failure
        finally:
            del self._fills[key]
            self.metrics.fills_in_flight.set(len(self._fills))
            fill.finish(error)
            if error is None:
                self._over[key] = fill
            if error is not None and fill.landing is not None:
                await fill.landing.discard()

    async def _is_kept(self, span: Span) -> bool:
        reader = await self._disk.open(span)
        if reader is None:
            return False
        await reader.close()
        return True

    async def _receive(self, fill: Fill, source: Source, coming: Incoming | None) -> None:
        span = fill.span
        try:
            await self._make_room(fill)
        except BaseException:
            if coming is not None:
                await coming.close()
            raise
        attempt = 1
        while True:
            before = fill.received_bytes
            try:
                if coming is None:
                    coming = await source.open(fill.received_bytes, span.size_bytes)
                fill.tier = coming.tier
                await _take_in(fill, coming)
            except TierUnavailable as failure:
                elsewhere = source.goes_on()
                if not elsewhere and attempt == _ATTEMPTS:
                    raise
                log.warning(
                    "fill interrupted",
                    key=span.version.ref.key,
                    span=span.number,
                    received_bytes=fill.received_bytes,
                    gained_bytes=fill.received_bytes - before,
                    reason=str(failure),
                )
                if not elsewhere:
                    await asyncio.sleep(_BACKOFF_SECONDS * 2**attempt * self._jitter())
                    attempt += 1
            else:
                return
            finally:
                if coming is not None:
                    await coming.close()
                coming = None

    async def _make_room(self, fill: Fill) -> None:
        """Where the bytes are to go. TierFull, TierUnavailable."""
        span = fill.span
        if span.version.size_bytes > self._small_bytes:
            fill.land(await self._disk.land(span.size_bytes))
            return
        # A reader has its bytes before the disk does: without this, clients that read fast
        # would leave ever more objects waiting for a disk that writes slowly.
        while self._unkept_bytes >= _MAX_UNKEPT_BYTES:
            self._kept.clear()
            await self._kept.wait()
        fill.memory = bytearray(span.size_bytes)

    async def _publish(self, fill: Fill) -> None:
        if fill.landing is not None:
            await fill.landing.commit(fill.span)
            return
        assert fill.memory is not None  # noqa: S101 - one of the two is set
        data = fill.memory = bytes(fill.memory)
        if not fill.kept:
            return
        self._unkept_bytes += len(data)
        try:
            await self._disk.keep(fill.span, data)
        except (TierFull, TierUnavailable):
            # Its followers are served from memory; the disk has counted what it did not keep.
            log.debug("small object not kept", key=fill.span.version.ref.key)
        finally:
            self._unkept_bytes -= len(data)
            self._kept.set()


async def _take_in(fill: Fill, coming: Incoming) -> None:
    """Receives until the span is whole; what the answer carries beyond it is left unread."""
    while fill.received_bytes < fill.span.size_bytes:
        size_bytes = await coming.read_into(await fill.space())
        if not size_bytes:
            raise TierUnavailable("the answer ended early")
        fill.took(size_bytes)
        # A fast origin has more to give at once.
        await fill.give_way()
