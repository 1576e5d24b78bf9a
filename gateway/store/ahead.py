"""Bringing in ahead of a reader that walks through a large object.

One stream of an origin is slower than most readers. So the chunks that follow the reader's are
brought in beside it (filled here, or begun at the node where they are at home), as many as it
takes: more while the reader waits and more of them bring more bytes a second, fewer while it does
not wait. A reader that takes its time never waits, and has nothing brought in ahead. Nothing is
past the range asked for, nor once the reader has left, and all readers together stay within
budgets.

`Pace` decides, from what was measured; `Ahead` measures and acts.
"""

from collections.abc import Callable
from time import monotonic

from gateway.model.objects import ObjectVersion, Span
from gateway.model.ranges import ByteRange, span
from gateway.store.direct import DirectReader
from gateway.store.fill import FollowingReader

_MOST_CHUNKS = 16
# Another node's fill costs this one nothing.
_FIRST_ELSEWHERE = 4
# Of the time looked at: from here on a reader waits, below there it does not.
_WAITS = 0.1
_WAITS_NOT = 0.02
# More chunks at once must bring so many more bytes a second.
_GAIN = 1.25
# Looks until more is tried again after it brought nothing: twice as many each time.
_FIRST_REST = 4
_LONGEST_REST = 64
# A look spans this much of each stream, and no less time than that.
_LOOK_BYTES = 1024**2
_LOOK_SECONDS = 0.02
# After a change, streams that have not begun to deliver by then are looked at all the same.
_BEGIN_SECONDS = 1.0


class Pace:
    """How many `chunks` are to be on their way ahead of one reader: `first_chunks` once it waits,
    and then twice as many each time."""

    def __init__(self, most_chunks: int = _MOST_CHUNKS, *, first_chunks: int = 1) -> None:
        self._most_chunks = most_chunks
        self._first_chunks = first_chunks
        self.chunks = 0
        # What the last step up came from: the chunks and the rate then.
        self._tried: tuple[int, float] | None = None
        self._rest = 0
        self._next_rest = _FIRST_REST
        self._calm = 0

    def look(self, *, seconds: float, arrived_bytes: int, waited_seconds: float) -> bool:
        """Takes in what happened in the last `seconds`; whether `chunks` has changed."""
        before = self.chunks
        rate = arrived_bytes / seconds
        waited = waited_seconds / seconds
        if self._tried is not None and not self._paid_off(rate, waited):
            return self.chunks != before
        self._rest = max(0, self._rest - 1)
        if waited >= _WAITS:
            self._calm = 0
            if not self._rest and self.chunks < self._most_chunks:
                self._tried = (self.chunks, rate)
                self.chunks = min(max(self._first_chunks, 2 * self.chunks), self._most_chunks)
        elif waited <= _WAITS_NOT:
            self._calm += 1
            # Waiting may come with the next chunk: look at some of them first.
            if self.chunks > 1 and self._calm > self.chunks:
                self._calm = 0
                self.chunks -= 1
        else:
            self._calm = 0
        return self.chunks != before

    def _paid_off(self, rate: float, waited: float) -> bool:
        """Whether the last step up brought what it must; else it is taken back."""
        assert self._tried is not None  # noqa: S101 - the caller has looked
        (fewer, rate_before), self._tried = self._tried, None
        if rate >= _GAIN * rate_before or waited <= _WAITS_NOT:
            self._next_rest = _FIRST_REST
            return True
        # One chunk ahead always pays: the origin is asked before the reader gets there.
        self.chunks = max(1, fewer)
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        return False


Coming = FollowingReader | DirectReader


class Ahead:
    """Brings in ahead of one reader of `wanted`, from the chunk it has come to on. `begin` gives a
    reader of a chunk that begins to come in; None where no more may. `holds`: it is here.

    `elsewhere`: chunks may come in at other nodes. How much of them has come is not seen from here,
    only how fast the reader gets on; and that only over as many chunks as are brought in at once.
    """

    def __init__(
        self,
        begin: Callable[[Span], Coming | None],
        holds: Callable[[Span], bool],
        version: ObjectVersion,
        wanted: ByteRange,
        *,
        chunk_size_bytes: int,
        elsewhere: bool = False,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._begin = begin
        self._holds = holds
        self._version = version
        self._stop = wanted.stop
        self._chunk_bytes = chunk_size_bytes
        self._now = now
        self._elsewhere = elsewhere
        self._crossed = 0
        self._pace = Pace(first_chunks=_FIRST_ELSEWHERE) if elsewhere else Pace()
        self._number = 0
        self._current: Coming | None = None
        # Chunks on their way or here, which the reader has not come to yet.
        self._coming: dict[int, Coming] = {}
        self._passed_bytes = 0
        self._begin_look(settled=True)

    def reader(self, number: int) -> Coming | None:
        """The reader of a chunk that was filled ahead, which the walk has now come to; None where
        it was not, or where that failed."""
        reader = self._coming.pop(number, None)
        if reader is None or reader.failed:
            return None
        self.reached(number, reader)
        return reader

    def reached(self, number: int, reader: Coming) -> None:
        """The walk has come to chunk `number`, which comes in through `reader`."""
        if self._current is not None:
            self._passed_bytes += self._current.received_bytes
            self._current.on_wait = None
        self._number, self._current = number, reader
        reader.on_wait = self._waited
        self._crossed += 1
        self._look(crossing=True)
        self._top_up()

    def close(self) -> None:
        """The reader has left: what has not begun to come in is called off."""
        if self._current is not None:
            self._current.on_wait = None
        coming, self._coming, self._current = self._coming, {}, None
        for reader in coming.values():
            reader.call_off()

    def _waited(self, seconds: float) -> None:
        self._waited_seconds += seconds
        if self._look(crossing=False):
            self._top_up()

    def _top_up(self) -> None:
        for number in range(self._number + 1, self._number + 1 + self._pace.chunks):
            if number in self._coming:
                continue
            if number * self._chunk_bytes >= self._stop:
                return
            ahead = span(self._version, number, self._chunk_bytes)
            if self._holds(ahead):
                continue
            reader = self._begin(ahead)
            if reader is None:
                return
            self._coming[number] = reader

    def _look(self, *, crossing: bool) -> bool:
        """Has a look where it is time for one; whether there are to be more chunks ahead, or
        fewer."""
        seconds = self._now() - self._began
        if seconds < _LOOK_SECONDS:
            return False
        if not self._settled:
            # New streams are given the time to begin.
            if seconds > _BEGIN_SECONDS or all(each.begun for each in self._coming.values()):
                self._begin_look(settled=True)
            return False
        if self._elsewhere and self._crossed <= self._pace.chunks:
            return False
        arrived_bytes = self._arrived() - self._arrived_before
        if not crossing and arrived_bytes < _LOOK_BYTES * (1 + len(self._coming)):
            return False
        changed = self._pace.look(
            seconds=seconds, arrived_bytes=arrived_bytes, waited_seconds=self._waited_seconds
        )
        self._begin_look(settled=not changed)
        return changed

    def _begin_look(self, *, settled: bool) -> None:
        self._crossed = 0
        self._began = self._now()
        self._arrived_before = self._arrived()
        self._waited_seconds = 0.0
        self._settled = settled

    def _arrived(self) -> int:
        current = 0 if self._current is None else self._current.received_bytes
        coming = sum(reader.received_bytes for reader in self._coming.values())
        return self._passed_bytes + current + coming
