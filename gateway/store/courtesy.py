"""How a prefetch keeps out of the way of reads. Pure: facts in, decisions out.

While a read waits for bytes to come in, or lately did, nothing new is prefetched and what is on its
way rests between pieces. While reads are answered from what is here, pieces (and beginnings) keep
their distance over the whole node, so that hardly one read in a hundred meets one. Rests are
bounded: an origin would hang up, and a job on a node that always reads would never end.
"""

from collections.abc import Callable
from time import monotonic

# How long after the last read, or the last that waited, there is nobody to give way to.
QUIET_SECONDS = 0.2
# Between two pieces of all that is prefetched while reads are answered; and at least so many times
# what a turn of the event loop takes.
GAP_SECONDS = 0.4
_TURNS = 100
# No rest is longer; and after so long without any, one prefetch may begin however busy it is.
LONGEST_REST_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 5.0
# A rest is looked at again after so long: reads may have ended.
_LOOK_SECONDS = 0.05


class Courtesy:
    """`waiting`: how many fills reads wait for now. `now` is monotonic."""

    def __init__(self, waiting: Callable[[], int], *, now: Callable[[], float] = monotonic) -> None:
        self._waiting = waiting
        self._now = now
        self._reads = 0
        self._reads_before = 0
        self._read_at = float("-inf")
        self._waited_at = float("-inf")
        self._piece_at = float("-inf")
        self._begun_at = now()

    def read(self) -> None:
        """A read has begun."""
        self._reads += 1

    def may_begin(self) -> bool:
        """Whether a prefetch may begin now; if so, it has."""
        now = self._now()
        self._look(now)
        calm = now - self._waited_at >= QUIET_SECONDS and not self._is_met(now, 0.0)
        if not calm and now - self._begun_at < LONGEST_WAIT_SECONDS:
            return False
        self._begun_at = self._piece_at = now
        return True

    def rest_seconds(self, turn_seconds: float, rested_seconds: float) -> float:
        """How long to rest now, between two pieces; 0: go on. The event loop's last turn took
        `turn_seconds`; the rest has lasted for `rested_seconds` so far."""
        now = self._now()
        self._look(now)
        held_up = self._waiting() or self._is_met(now, turn_seconds)
        if held_up and rested_seconds < LONGEST_REST_SECONDS:
            return min(_LOOK_SECONDS, LONGEST_REST_SECONDS - rested_seconds)
        self._piece_at = now
        return 0.0

    def _is_met(self, now: float, turn_seconds: float) -> bool:
        """Whether a piece now would be one too many for those who read."""
        gap = max(GAP_SECONDS, _TURNS * turn_seconds)
        return now - self._read_at < QUIET_SECONDS and now - self._piece_at < gap

    def _look(self, now: float) -> None:
        if self._reads != self._reads_before:
            self._reads_before = self._reads
            self._read_at = now
        if self._waiting():
            self._waited_at = now
