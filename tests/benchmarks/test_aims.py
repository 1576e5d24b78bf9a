"""The table of aims says what was measured, whether that is enough, and what was not measured."""

from benchmarks.aims import Aim, aims, table
from benchmarks.measure import Cell, Sample, Samples
from benchmarks.plan import FULL, QUICK
from tests.benchmarks.figures import sample

WARM = Cell("warm GET", "4 KiB", 32)


def found(samples: Samples, figure: str, peer: str = "") -> Aim:
    chosen = [each for each in aims(samples, {}) if figure in each.figure and peer in each.wanted]
    assert len(chosen) == 1
    return chosen[0]


def of(**figures: float) -> list[Sample]:
    return [sample(**figures)]  # type: ignore[arg-type]


def test_every_figure_of_the_issue_is_there_even_where_nothing_was_measured() -> None:
    rows = aims({}, {})
    assert len(rows) == 17
    assert len({(row.figure, row.wanted) for row in rows}) == 17
    assert not any(row.met for row in rows)
    assert {row.reached for row in rows} == {"not part of this run"}


def test_less_cpu_than_the_aim_is_reached_and_more_is_missed() -> None:
    samples: Samples = {
        WARM: {
            "feedrack": of(cpu_us=50),
            "nginx": of(cpu_us=20),
            "seaweedfs": of(cpu_us=400),
            "juicefs": of(cpu_us=1000),
        }
    }
    assert found(samples, "warm GET 4 KiB, CPU", "nginx").met
    assert found(samples, "warm GET 4 KiB, CPU", "juicefs").met
    missed = found(samples, "warm GET 4 KiB, CPU", "seaweedfs")
    assert not missed.met
    assert missed.ratio == 0.125
    assert missed.reached == "50 µs to 400 µs"


def test_more_throughput_than_the_aim_is_reached_and_less_is_missed() -> None:
    for rate, met in ((94.0, False), (96.0, True)):
        cell = Cell("warm GET", "256 MiB", 4)
        samples: Samples = {cell: {"feedrack": of(per_second=rate), "nginx": of(per_second=100)}}
        assert found(samples, "256 MiB, 4 at a time").met is met
        assert found(samples, "256 MiB, 1 at a time").ratio is None


def test_a_range_is_held_against_the_small_object() -> None:
    samples: Samples = {
        WARM: {"feedrack": of(cpu_us=100)},
        Cell("range GET", "4 KiB of 1 GiB", 32): {"feedrack": of(cpu_us=120)},
    }
    row = found(samples, "4 KiB range")
    assert row.met
    assert row.ratio == 1.2


def test_the_tail_is_held_against_the_median_with_nginxs_beside_it() -> None:
    cell = Cell("warm GET, half rate", "4 KiB", 32)
    samples: Samples = {cell: {"feedrack": of(p50_ms=2, p99_ms=7), "nginx": of(p50_ms=1, p99_ms=2)}}
    row = found(samples, "warm GET 4 KiB at half")
    assert (row.met, row.ratio) == (False, 3.5)
    assert row.reached == "7 to 2 ms (nginx 2.0 \N{MULTIPLICATION SIGN})"


def test_two_workers_at_the_same_cpu_a_request_are_twice_one() -> None:
    cell = Cell("warm GET, two cores", "4 KiB", 32)
    for cpu_us, met in ((100.0, True), (110.0, True), (112.0, False)):
        samples: Samples = {
            cell: {"feedrack 1 worker": of(cpu_us=100), "feedrack 2 workers": of(cpu_us=cpu_us)}
        }
        assert found(samples, "two workers").met is met


def test_a_fill_is_held_against_its_origin_and_against_a_plain_read() -> None:
    cell = Cell("cold GET from S3", "64 MiB", 1)
    samples: Samples = {
        cell: {
            "seaweedfs": of(first_byte_ms=10),
            "feedrack over S3": of(first_byte_ms=11, cpu_us=40),
            "aiobotocore read()": of(cpu_us=100),
        }
    }
    assert found(samples, "cold GET 64 MiB, first byte").met
    assert found(samples, "cold GET 64 MiB, CPU").met


def test_a_server_that_is_left_out_says_why() -> None:
    rows = aims({WARM: {"feedrack": of()}}, {"juicefs": "it is not installed"})
    assert "juicefs: it is not installed" in [row.reached for row in rows]


def test_the_table_says_reached_missed_and_not_measured() -> None:
    rows = [
        Aim(figure="a", wanted="b", reached="c", ratio=0.5, met=True),
        Aim(figure="a", wanted="b", reached="c", ratio=123.4, met=False),
        Aim(figure="a", wanted="b", reached="why", ratio=None, met=False),
    ]
    times = "\N{MULTIPLICATION SIGN}"
    assert table(rows)[2:] == [
        f"| a | b | c | 0.5 {times} | reached |",
        f"| a | b | c | 123 {times} | missed |",
        "| a | b | why |  | not measured |",
    ]


def test_the_plan_measures_every_figure() -> None:
    for plan in (FULL, QUICK):
        read = {(task.operation, task.size.label, task.connections) for task in plan.reads}
        for size, connections in (("4 KiB", 32), ("64 KiB", 32), ("1 MiB", 32)):
            assert ("warm GET", size, connections) in read
        assert ("warm GET", "256 MiB", 1) in read
        assert plan is QUICK or ("warm GET", "256 MiB", 4) in read
        assert [task.size.label for task in plan.uploads] == ["4 KiB", "64 MiB"]
        assert [task.size.label for task in plan.colds] == ["4 KiB", "64 MiB"]
        assert {task.size for task in plan.reads} <= {*plan.sizes}
    assert FULL.reads[0].size.count >= 2000
