"""The pieces of the pipeline are measured by what they really do."""

import tempfile

from benchmarks.pieces import measure, pieces, table
from gateway.telemetry.lines import LineWriter


def test_every_piece_runs_and_has_its_line() -> None:
    with tempfile.TemporaryFile() as file:
        costs = measure(pieces(LineWriter(file.fileno())), rounds=3, calls=5)
        file.seek(0)
        assert len(file.read().splitlines()) == 4 * 5
    assert [len(cost.rounds) for cost in costs] == [3] * len(costs)
    assert all(cost.cpu_microseconds >= 0 for cost in costs)
    lines = table(costs)
    assert len(lines) == len(costs) + 2
    assert any(line.startswith("| authenticate, presigned |") for line in lines)
