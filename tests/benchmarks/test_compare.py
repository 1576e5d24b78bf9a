"""A small comparison from end to end: a real node, and nginx where it is installed."""

from pathlib import Path

from rich.console import Console

from benchmarks.compare import compare
from benchmarks.measure import Cell
from benchmarks.plan import Plan, Read, Size, Upload

SMALL = Size(label="4 KiB", size_bytes=4096, count=100, connections=4)
LARGE = Size(label="2 MiB", size_bytes=2 * 1024**2, count=2, connections=2)
PLAN = Plan(
    rounds=2,
    sizes=(SMALL, LARGE),
    reads=(
        Read(size=SMALL, connections=4, requests=500, seconds=0.2, paced=True, silent=True),
        Read(size=LARGE, connections=2, requests=40, seconds=5.0, piece_bytes=4096),
    ),
    uploads=(Upload(size=SMALL, seconds=5.0),),
    colds=(),
)


def test_every_server_takes_its_turn_at_every_task_in_every_round(tmp_path: Path) -> None:
    console = Console(quiet=True)
    found = compare(PLAN, tmp_path, {"get", "put"}, ("nginx", "nginx silent", "feedrack"), console)
    assert found.wrong == []
    warm = Cell("warm GET", "4 KiB", 4)
    expected = {
        Cell("cold GET", "4 KiB", 4): 100,
        Cell("cold GET", "2 MiB", 2): 2,
        warm: None,
        Cell("warm GET, half rate", "4 KiB", 4): None,
        Cell("range GET", "4 KiB of 2 MiB", 2): 40,
        Cell("PUT", "4 KiB", 4): 100,
    }
    assert found.samples.keys() == expected.keys()
    for cell, requests in expected.items():
        rounds = found.samples[cell]["feedrack"]
        assert len(rounds) == 2
        for sample in rounds:
            assert sample.outcome.failures == 0
            assert requests in (None, sample.outcome.requests)
            assert sample.outcome.requests > 0
            assert sample.cpu_us > 0
    if "nginx" in found.missing:
        assert "is not installed" in found.missing["nginx"]
    else:
        assert [*found.samples[warm]] == ["nginx", "nginx silent", "feedrack"]
    assert all([*sample.outcome.tiers] == ["disk"] for sample in found.samples[warm]["feedrack"])
    assert "seaweedfs" in found.missing["feedrack over S3"]
    assert not (tmp_path / "feedrack").exists()
