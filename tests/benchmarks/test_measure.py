"""Medians over rounds, and ratios within them."""

import pytest

from benchmarks.measure import ratio, summarise
from tests.benchmarks.figures import sample


def test_a_row_is_the_medians_of_its_rounds_each_figure_for_itself() -> None:
    row = summarise(
        [
            sample(cpu_us=10, per_second=500, p50_ms=1, p99_ms=9),
            sample(cpu_us=30, per_second=100, p50_ms=2, p99_ms=4),
            sample(cpu_us=20, per_second=900, p50_ms=3, p99_ms=3),
        ]
    )
    assert (row.cpu_us, row.cpu_us_lowest, row.cpu_us_highest) == pytest.approx((20, 10, 30))
    assert row.per_second == pytest.approx(500)
    assert (row.latency.p50_ms, row.latency.p99_ms) == (2, 4)
    assert row.tail == 2


def test_failures_and_tiers_of_all_rounds_are_counted() -> None:
    row = summarise([sample(tiers={"disk": 3}), sample(failures=2, tiers={"disk": 1, "origin": 4})])
    assert (row.failures, row.first_failure) == (2, "HTTP/1.1 500")
    assert row.tiers == {"disk": 4, "origin": 4}


def test_a_ratio_is_taken_within_each_round() -> None:
    """A slow minute that met both of a round is not a difference between them."""
    ours = [sample(cpu_us=20), sample(cpu_us=200), sample(cpu_us=22)]
    theirs = [sample(cpu_us=10), sample(cpu_us=100), sample(cpu_us=10)]
    assert ratio(ours, theirs, lambda each: each.cpu_us) == pytest.approx(2.0)


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio([sample()], [], lambda each: each.cpu_us) is None
    assert ratio([], [sample()], lambda each: each.cpu_us) is None
    assert ratio([sample()], [sample(cpu_us=0)], lambda each: each.cpu_us) is None


def test_cpu_is_told_by_the_request_and_by_the_gib() -> None:
    found = sample(cpu_us=100, body_bytes=1024**2)
    assert found.cpu_us == pytest.approx(100)
    assert found.cpu_seconds_per_gib == pytest.approx(0.1024)
