"""How a prefetch keeps out of the way of reads. Pure: facts in, decisions out.

While a read waits for bytes to come in, or lately did, nothing new is prefetched and what is on its
way rests between pieces. While reads are answered from what is here, each piece is followed by a
rest, so that one read in a hundred at most meets one. Rests are bounded: an origin would hang up,
and a job on a node that always reads would never end.
"""

from collections.abc import Callable
from time import monotonic

# How long after the last wait nothing new begins.
QUIET_SECONDS = 0.2
# Between pieces while reads are answered, and times what a turn of the event loop takes.
REST_SECONDS = 0.1
_TURNS = 20
# No rest is longer; and after so long without any, one prefetch may begin however busy it is.
LONGEST_REST_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 5.0


class Courtesy:
    """`waiting`: how many fills reads wait for now. `now` is monotonic."""

    def __init__(self, waiting: Callable[[], int], *, now: Callable[[], float] = monotonic) -> None:
        self._waiting = waiting
        self._now = now
        self._reads = 0
        self._reads_before = 0
        self._read_at = float("-inf")
        self._waited_at = float("-inf")
        self._begun_at = now()

    def read(self) -> None:
        """A read has begun."""
        self._reads += 1

    def may_begin(self) -> bool:
        """Whether a prefetch may begin now; if so, it has."""
        now = self._now()
        self._look(now)
        calm = now - self._waited_at >= QUIET_SECONDS
        if not calm and now - self._begun_at < LONGEST_WAIT_SECONDS:
            return False
        self._begun_at = now
        return True

    def rest_seconds(self, turn_seconds: float, rested_seconds: float) -> float:
        """How long to rest now, between two pieces; 0: go on. The event loop's last turn took
        `turn_seconds`; the rest has lasted for `rested_seconds` so far."""
        now = self._now()
        self._look(now)
        if rested_seconds >= LONGEST_REST_SECONDS:
            return 0.0
        wanted = 0.0
        if self._waiting():
            wanted = LONGEST_REST_SECONDS
        elif now - self._read_at < QUIET_SECONDS:
            wanted = max(REST_SECONDS, _TURNS * turn_seconds)
        left = min(wanted, LONGEST_REST_SECONDS) - rested_seconds
        # Looked at again before long: reads may have ended.
        return max(0.0, min(left, REST_SECONDS / 2))

    def _look(self, now: float) -> None:
        if self._reads != self._reads_before:
            self._reads_before = self._reads
            self._read_at = now
        if self._waiting():
            self._waited_at = now
