"""Tables are complete, in order, and own up to what went wrong."""

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.measure import Cell, Samples
from tests.benchmarks.figures import sample

WARM = Cell("warm GET", "4 KiB", 32)


def rows(lines: list[str]) -> list[list[str]]:
    return [
        [each.strip() for each in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def test_a_table_has_a_row_for_each_server_of_each_cell() -> None:
    samples: Samples = {
        WARM: {"nginx": [sample(cpu_us=20)], "feedrack": [sample(cpu_us=50)]},
        Cell("range GET", "4 KiB of 1 GiB", 32): {"feedrack": [sample()]},
    }
    head, rule, *body = rows(report.table(samples, report.SPEED, "feedrack"))
    assert len({len(head), len(rule), *map(len, body)}) == 1
    assert [row[3] for row in body] == ["nginx", "feedrack", "feedrack"]
    ours_over_its = head.index("our CPU ÷ its")
    assert [row[ours_over_its] for row in body] == ["2.50", "1.00", "1.00"]


def test_without_ours_there_are_no_ratios() -> None:
    lines = report.table({WARM: {"nginx": [sample()]}}, report.SPEED, "feedrack")
    assert rows(lines)[2][-2:] == ["", ""]


@pytest.mark.parametrize(
    ("cell", "figures", "note"),
    [
        (WARM, {"failures": 3}, "3 failures"),
        (WARM, {"tiers": {"disk": 7, "origin": 3}}, "3 of 10 answers did not come from disk"),
        (
            Cell("cold GET", "4 KiB", 32),
            {"tiers": {"disk": 1, "origin": 3}},
            "1 of 4 answers did not come from origin",
        ),
        (WARM, {"client_busy": 0.97}, "the load generator had no time left"),
    ],
)
def test_a_footnote_tells_what_is_wrong_with_a_row(
    cell: Cell, figures: dict[str, object], note: str
) -> None:
    found = sample(**figures)  # type: ignore[arg-type]
    lines = report.table({cell: {"feedrack": [found]}}, report.SPEED, "feedrack")
    notes = [line for line in lines if line.startswith("- ")]
    assert len(notes) == 1
    assert note in notes[0]
    assert "feedrack" in notes[0]


def test_what_went_well_needs_no_footnote() -> None:
    found = sample(tiers={"disk": 10})
    lines = report.table({WARM: {"feedrack": [found]}}, report.SPEED, "feedrack")
    assert not [line for line in lines if line.startswith("- ")]


def test_results_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.write("some", ["# a", "b"], {"machine": report.machine()})
    written = tmp_path / "results"
    assert (written / "some.md").read_text() == "# a\nb\n"
    assert json.loads((written / "some.json").read_bytes())["machine"]["cores"] >= 1
    assert sorted(path.name for path in written.iterdir()) == ["some.json", "some.md"]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, ""), (0.001234, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits_that_matter(value: float, said: str) -> None:
    assert report.number(value) == said
