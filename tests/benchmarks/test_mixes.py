"""A mix is the same objects in every run, and as large as it says."""

import math
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mixes import Mix, even


@given(
    count=st.integers(0, 200),
    smallest=st.integers(1, 5000),
    more=st.integers(0, 1_000_000),
)
def test_sizes_are_within_their_bounds_and_always_the_same(
    count: int, smallest: int, more: int
) -> None:
    mix = Mix(label="m", count=count, smallest_bytes=smallest, largest_bytes=smallest + more)
    sizes = mix.sizes()
    assert len(sizes) == count
    assert all(smallest <= size <= smallest + more for size in sizes)
    assert mix.sizes() == sizes


def test_sizes_are_even_in_their_logarithm() -> None:
    sizes = Mix(label="m", count=4000, smallest_bytes=1024, largest_bytes=1024**2).sizes()
    assert abs(mean(math.log2(size) for size in sizes) - 15) < 0.2


def test_keys_come_in_the_order_of_numbers() -> None:
    mix = even("4 KiB", 3000, 4096)
    keys = [mix.key(number) for number in range(mix.count)]
    assert keys == sorted(keys)
    assert all(key.startswith("4KiB/") for key in keys)
