"""The yardsticks of the eviction benchmark are what their names say."""

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eviction import (
    Belady,
    Cache,
    Feedrack,
    Fifo,
    Keep,
    Lru,
    hit_ratio,
    shuffles,
    zipf_with_scans,
)

traces = st.lists(st.integers(0, 6), min_size=1, max_size=40)


def hits(cache: Cache, trace: list[int]) -> int:
    return sum(map(cache.read, trace))


def test_lru_and_fifo_differ_where_they_should() -> None:
    trace = [1, 2, 1, 3, 1]
    assert hits(Lru(2), trace) == 2
    assert hits(Fifo(2), trace) == 1
    assert hits(Keep(2), trace) == 2


@given(trace=traces, capacity=st.integers(1, 5))
def test_nothing_hits_more_than_the_optimum(trace: list[int], capacity: int) -> None:
    best = hits(Belady(capacity, trace), trace)
    for cache in (Feedrack(capacity), Lru(capacity), Fifo(capacity), Keep(capacity)):
        assert hits(cache, trace) <= best


@given(trace=st.lists(st.integers(0, 4), min_size=1, max_size=9), capacity=st.integers(1, 3))
def test_the_optimum_is_what_trying_everything_finds(trace: list[int], capacity: int) -> None:
    reached = {frozenset[int](): 0}
    for item in trace:
        following: dict[frozenset[int], int] = {}
        for held, count in reached.items():
            total = count + (item in held)
            for size in range(capacity + 1):
                for kept in combinations(held | {item}, size):
                    key = frozenset(kept)
                    following[key] = max(following.get(key, 0), total)
        reached = following
    assert hits(Belady(capacity, trace), trace) == max(reached.values())


def test_an_epoch_reads_everything_once() -> None:
    trace = shuffles(50, 4, random.Random(1))
    epochs = [trace[start : start + 50] for start in range(0, 200, 50)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_scans_take_their_share_and_come_once() -> None:
    trace = zipf_with_scans(1.0, 100, 40_000, random.Random(1), scan_share=0.3)
    scanned = [item for item in trace if item >= 100]
    assert len(trace) == 40_000
    assert len(set(scanned)) == len(scanned)
    assert 0.25 < len(scanned) / len(trace) < 0.35
    assert hit_ratio(Keep(100), trace, 20_000) < 0.8
