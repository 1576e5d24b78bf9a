"""What is said of packing is what was measured, and the packs are really built."""

import sys
from pathlib import Path

import pytest

from benchmarks.mixes import even
from benchmarks.packed import report_of
from benchmarks.packing import Overhead, Pair, Turn, overhead, run, tables


def turn(seconds: float, cpu_seconds: float = 1.0) -> Turn:
    return Turn(
        objects=1000,
        size_bytes=4_096_000,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_resident_bytes=100 * 1024**2,
        peak_anonymous_bytes=80 * 1024**2,
    )


def pair(packing: list[Turn], copying: list[Turn]) -> Pair:
    return Pair(mix=even("4 KiB", 1000, 4096), packing=packing, copying=copying, index_bytes=96_000)


def test_a_ratio_is_the_median_of_each_rounds_own() -> None:
    # The machine was slow in the second round, and as slow for the one as for the other.
    found = pair([turn(1.25), turn(12.5), turn(1.0)], [turn(1.0), turn(10.0), turn(1.0)])
    assert found.ratio("per_second") == pytest.approx(0.8)
    assert found.ratio("cpu_seconds") == 1.0


@pytest.mark.parametrize(("seconds", "said"), [(1.2, "reached"), (1.3, "missed")])
def test_four_fifths_of_the_rate_are_aimed_at(seconds: float, said: str) -> None:
    lines = tables([pair([turn(seconds)], [turn(1.0)])], [])
    [row] = [line for line in lines if "| packing |" in line]
    assert row.endswith(f"| {said} |")


def test_rows_are_as_wide_as_their_heads() -> None:
    lines = tables([pair([turn(1.0)], [turn(1.0)])], [Overhead("1 KiB", 1000, 1020)])
    widths = [[line.count("|") for line in lines[at : at + 4]] for at in (2, 10)]
    assert widths[0] == [11] * 4
    assert [line for line in lines if line.startswith("| 1 KiB")] == [
        "| 1 KiB | 0 | +2.00% | reached |"
    ]


def test_overhead_is_that_of_shards_that_packer_builds(tmp_path: Path) -> None:
    found = overhead(even("2,030 B", 4000, 2030), tmp_path / "built")
    assert found.plain_bytes == 4000 * 2030
    assert 0 < found.share < 0.03
    assert not (tmp_path / "built").exists()


def test_a_process_is_watched_to_its_end() -> None:
    program = "import sys; held = b'x' * (64 << 20); print(len(held), sys.stdin.read())"
    said, cpu_seconds, peak, anonymous = run([sys.executable, "-c", program], b"given")
    assert said == b"67108864 given\n"
    assert cpu_seconds > 0
    assert peak > 64 * 1024**2
    assert anonymous <= peak


def test_a_process_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="status 3"):
        run([sys.executable, "-c", "raise SystemExit(3)"], b"")


def test_what_packer_tells_is_read() -> None:
    said = (
        b'{"report": {"pack": "a", "packed_objects": 3, "packed_bytes": 12, "shard_files": 1,'
        b' "shard_file_bytes": 16384, "index_bytes": 8192, "seconds": 0.5, "plan": {}},'
        b' "deleted_originals": null}'
    )
    report = report_of(said)
    assert (report.packed_objects, report.shard_files, report.seconds) == (3, 1, 0.5)
