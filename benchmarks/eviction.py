"""`python -m benchmarks.eviction`: hit ratios of the cache's policy beside LRU and the optimum.

Two kinds of reading. *Zipf with scans*: a few objects are wanted often, and now and then somebody
reads a long run of objects that nobody wants again. *Shuffles*: every epoch reads all N objects
once, in a new random order, as training does. There the past says nothing of what comes next, so
that nothing can be expected beyond keeping what one has ("keep" in the table: what came first
stays for good, C/N of the reads hit). The optimum is Belady's, which knows the future and may
leave an object out: no cache can be better.

All objects have the same size and everything is pure: one seed, no clocks, no disks.
"""

import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import click
from msgspec import Struct

from benchmarks import report
from gateway.tiers.eviction import Policy

_SEED = 20_231
_SHARES = (0.1, 0.3, 0.5, 0.8)
_ZIPF_OBJECTS = 10_000
_ZIPF_READS = 200_000
_ZIPF_EXPONENTS = (0.8, 1.0)
_SCAN_SHARE = 0.3
_SCAN_READS = 3_000
_SHUFFLE_OBJECTS = 10_000
_EPOCHS = 11

Trace = Sequence[int]


class Cache(Protocol):
    """A cache of a fixed number of objects."""

    def read(self, item: int) -> bool:
        """Reads an object, taking it in where it is not there; whether it was."""
        ...


class Fifo:
    """Evicts what came first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: set[int] = set()
        self._order: deque[int] = deque()

    def read(self, item: int) -> bool:
        if item in self._held:
            return True
        if len(self._held) == self._capacity:
            self._held.remove(self._order.popleft())
        self._held.add(item)
        self._order.append(item)
        return False


class Lru:
    """Evicts what was not read for longest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def read(self, item: int) -> bool:
        if item in self._held:
            self._held.move_to_end(item)
            return True
        if len(self._held) == self._capacity:
            self._held.popitem(last=False)
        self._held[item] = None
        return False


class Keep:
    """Evicts nothing: what came first stays."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: set[int] = set()

    def read(self, item: int) -> bool:
        if item in self._held:
            return True
        if len(self._held) < self._capacity:
            self._held.add(item)
        return False


class Feedrack:
    """The cache's own policy."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._policy: Policy[int] = Policy(capacity)

    def read(self, item: int) -> bool:
        if item in self._policy:
            self._policy.read(item)
            return True
        if len(self._policy) == self._capacity:
            self._policy.victim()
        self._policy.add(item, 1)
        return False


class Belady:
    """Evicts, or does not take in, what will not be read for longest. Reads `trace` only."""

    def __init__(self, capacity: int, trace: Trace) -> None:
        self._capacity = capacity
        self._next = _next_reads(trace)
        self._now = 0
        # The next read of each object held; the heap has the farthest first, and old entries too.
        self._held: dict[int, int] = {}
        self._farthest: list[tuple[int, int]] = []

    def read(self, item: int) -> bool:
        hit = item in self._held
        following = self._next[self._now]
        self._now += 1
        self._held[item] = following
        heapq.heappush(self._farthest, (-following, item))
        while len(self._held) > self._capacity:
            at, last = heapq.heappop(self._farthest)
            if self._held.get(last) == -at:
                del self._held[last]
        return hit


class Ratios(Struct, frozen=True, kw_only=True):
    """Hit ratios of every policy on one trace and one size of the cache."""

    trace: str
    capacity_share: float
    reads: int
    hit_ratios: dict[str, float]


def zipf_with_scans(
    exponent: float, objects: int, reads: int, rng: random.Random, *, scan_share: float
) -> Trace:
    """Zipf-distributed reads, every now and then broken by a run over objects read only once."""
    weights = list(accumulate(1 / rank**exponent for rank in range(1, objects + 1)))
    popular = rng.choices(range(objects), cum_weights=weights, k=reads)
    trace: list[int] = []
    scanned = objects
    pause = round(_SCAN_READS * (1 - scan_share) / scan_share)
    while len(trace) < reads:
        trace += popular[len(trace) : len(trace) + pause]
        trace += range(scanned, scanned + _SCAN_READS)
        scanned += _SCAN_READS
    return trace[:reads]


def shuffles(objects: int, epochs: int, rng: random.Random) -> Trace:
    """Every epoch all objects once, each time in another order."""
    trace: list[int] = []
    for _ in range(epochs):
        order = list(range(objects))
        rng.shuffle(order)
        trace += order
    return trace


def hit_ratio(cache: Cache, trace: Trace, warm_up: int) -> float:
    """The share of reads that hit, those of the warm-up aside."""
    for item in trace[:warm_up]:
        cache.read(item)
    return sum(map(cache.read, trace[warm_up:])) / (len(trace) - warm_up)


def compare(name: str, trace: Trace, share: float, capacity: int, warm_up: int) -> Ratios:
    """All policies on one trace."""
    caches: dict[str, Callable[[], Cache]] = {
        "feedrack": lambda: Feedrack(capacity),
        "LRU": lambda: Lru(capacity),
        "FIFO": lambda: Fifo(capacity),
        "keep": lambda: Keep(capacity),
        "optimum": lambda: Belady(capacity, trace),
    }
    return Ratios(
        trace=name,
        capacity_share=share,
        reads=len(trace) - warm_up,
        hit_ratios={
            policy: round(hit_ratio(make(), trace, warm_up), 4) for policy, make in caches.items()
        },
    )


def rows(seed: int = _SEED) -> Iterator[Ratios]:
    """Every trace at every size."""
    rng = random.Random(seed)
    for exponent in _ZIPF_EXPONENTS:
        trace = zipf_with_scans(exponent, _ZIPF_OBJECTS, _ZIPF_READS, rng, scan_share=_SCAN_SHARE)
        for share in _SHARES:
            name = f"Zipf {exponent:g}, {_SCAN_SHARE:.0%} scans"
            yield compare(name, trace, share, round(share * _ZIPF_OBJECTS), _ZIPF_READS // 4)
    trace = shuffles(_SHUFFLE_OBJECTS, _EPOCHS, rng)
    for share in _SHARES:
        capacity = round(share * _SHUFFLE_OBJECTS)
        yield compare("shuffles", trace, share, capacity, _SHUFFLE_OBJECTS)


def table(found: Sequence[Ratios]) -> list[str]:
    """The ratios as Markdown."""
    policies = list(found[0].hit_ratios)
    lines = [
        "| reads | cache | " + " | ".join(policies) + " | feedrack ÷ optimum |",
        "| --- | ---: |" + " ---: |" * (len(policies) + 1),
    ]
    for row in found:
        ratios = " | ".join(f"{row.hit_ratios[policy]:.3f}" for policy in policies)
        relative = row.hit_ratios["feedrack"] / row.hit_ratios["optimum"]
        lines.append(f"| {row.trace} | {row.capacity_share:.0%} | {ratios} | {relative:.2f} |")
    return lines


def _next_reads(trace: Trace) -> list[int]:
    # What is never read again comes after everything, each at a time of its own.
    never = len(trace)
    last: dict[int, int] = {}
    following = [0] * len(trace)
    for at in range(len(trace) - 1, -1, -1):
        following[at] = last.get(trace[at], never + at)
        last[trace[at]] = at
    return following


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", default=_SEED, show_default=True, help="Of the traces.")
def main(seed: int) -> None:
    """Measure hit ratios; prints the table and writes eviction.md and eviction.json."""
    where = report.machine()
    began = time.monotonic()
    found = list(rows(seed))
    seconds = time.monotonic() - began
    command = "python -m benchmarks.eviction"
    notes = (
        f"seed {seed}, {seconds:.0f} s; `cache` is its size in shares of the objects wanted more "
        "than once",
        "hit ratios by object, all of one size, after a warm-up: a quarter of the reads (Zipf) or "
        "the first epoch (shuffles)",
        f"scans: runs of {_SCAN_READS:,} objects read only once; shuffles: {_EPOCHS - 1} epochs "
        f"over {_SHUFFLE_OBJECTS:,} objects",
    )
    lines = report.preamble(
        "Eviction", where, ("feedrack's policy: S3-FIFO adapted",), notes, command
    )
    lines += table(found)
    print("\n".join(lines))
    report.write(
        "eviction", lines, {"command": command, "seed": seed, "machine": where, "rows": found}
    )


if __name__ == "__main__":
    main()
