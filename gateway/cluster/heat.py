"""Which spans are asked for so often that a node should hold them though they are not at home
there. Pure: the time is handed in.

Each read counts one, and what was counted halves every half-life. A span that comes to `hot_reads`
is worth a replica. Nothing here takes a replica away: it lies on the disk as everything else, and
one that is not read any more is what eviction drops first.
"""

from collections import OrderedDict
from collections.abc import Hashable

_HALF_LIFE_SECONDS = 30.0
_HOT_READS = 8.0
_MOST_SPANS = 16_384


class Heat:
    """Counts reads of spans that have their home elsewhere; of the `most_spans` read last."""

    def __init__(
        self,
        *,
        half_life_seconds: float = _HALF_LIFE_SECONDS,
        hot_reads: float = _HOT_READS,
        most_spans: int = _MOST_SPANS,
    ) -> None:
        self._half_life_seconds = half_life_seconds
        self._hot_reads = hot_reads
        self._most_spans = most_spans
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def read(self, name: Hashable, now: float) -> bool:
        """Counts a read; whether the span is hot by now. One that is begins anew."""
        reads, since = self._counts.pop(name, (0.0, now))
        reads = 1.0 + reads * 0.5 ** (max(0.0, now - since) / self._half_life_seconds)
        # Decay takes a little off each of them.
        if reads > self._hot_reads - 0.5:
            return True
        self._counts[name] = (reads, now)
        if len(self._counts) > self._most_spans:
            self._counts.popitem(last=False)
        return False

    def __len__(self) -> int:
        return len(self._counts)
