"""Hot is what is asked for often in a short time."""

from gateway.cluster.heat import Heat
from gateway.cluster.suspects import Suspects


def test_many_reads_in_a_short_time_make_a_span_hot() -> None:
    heat = Heat(hot_reads=8)
    assert [heat.read("s", n / 10) for n in range(8)] == [False] * 7 + [True]


def test_as_many_reads_over_a_long_time_do_not() -> None:
    heat = Heat(hot_reads=8, half_life_seconds=30)
    assert not any(heat.read("s", n * 20.0) for n in range(1000))


def test_a_span_that_was_hot_begins_anew() -> None:
    heat = Heat(hot_reads=3)
    assert [heat.read("s", 0) for _ in range(6)] == [False, False, True, False, False, True]


def test_no_more_spans_are_counted_than_there_is_room_for() -> None:
    heat = Heat(hot_reads=3, most_spans=10)
    for n in range(1000):
        heat.read(n, 0)
    assert len(heat) == 10


def test_a_suspect_is_one_for_some_seconds() -> None:
    seconds = 0.0
    suspects = Suspects(now=lambda: seconds, seconds=3)
    assert "a" not in suspects
    suspects.failed("a")
    assert "a" in suspects
    seconds = 3.0
    assert "a" not in suspects
