"""The benchmarks of placing tell what they measured, and time a script that does its work."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks import placed, submissions


def found(way: str, tiers: dict[str, int], crossed_bytes: float) -> placed.Found:
    return placed.Found(
        way=way,
        jobs=40,
        tiers=tiers,
        crossed_bytes=crossed_bytes,
        entered_bytes=None,
        origin_bytes=3 * 1024**2,
        makespan_seconds=100.0,
        wait_mean_seconds=1.0,
        wait_longest_seconds=5.0,
        reading_mean_seconds=2.0,
        run_mean_seconds=6.0,
        preferred=12,
    )


def test_a_way_is_a_line_with_its_bytes_by_where_they_came_from() -> None:
    lines = placed.table(
        [found("without", {"disk": 1, "remote": 3}, 2 * 1024**2), found("with", {}, 0.0)],
        placed.FULL,
    )
    assert lines[2].startswith("| without | 25% | 0% | 75% | 0% | 2 |  | 3 | 100.0 |")
    assert lines[3].startswith("| with | 0% | 0% | 0% | 0% | 0 |")
    assert all(line.count("|") == lines[0].count("|") for line in lines[:-1])


@pytest.fixture
def lua() -> None:
    if shutil.which("lua5.1") is None:
        if "slurm" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names slurm: lua5.1 is not installed")
        pytest.skip("lua5.1 is not installed")


def test_the_script_that_is_timed_prefers_where_there_is_a_ranking(
    lua: None, tmp_path: Path
) -> None:
    plan = submissions.Plan(datasets=7, lua_jobs=40, large=3)
    submissions.write_rankings(tmp_path / "rankings", plan.datasets, plan.large)
    script = submissions.write_script(tmp_path / "ours.lua", tmp_path / "rankings")
    preferred = {each.what: each.preferred for each in submissions.outside(script, plan)}
    assert preferred == {
        "no hint": 0,
        "a hint in the comment": 40,
        "the same, each after 20 ms of rest": 40,
        "a hint of the option": 40,
        "a hint, two nodes, a constraint": 40,
        "a hint, 990 readers listed, the job's group the last": 40,
        "a hint, 14 partitions, the job's the last": 40,
        "a hint, and a script of 64 KiB": 40,
        "a dataset nobody knows": 0,
    }


def test_what_a_controller_takes_more_is_within_rounds() -> None:
    def controlled(way: str, *times: float) -> submissions.Controlled:
        return submissions.Controlled(
            way=way, rounds=[submissions.Round(10.0, each) for each in times], script_us=(5, 9)
        )

    plain, ours = controlled("no job_submit", 100, 900, 200), controlled("ours", 140, 950, 230)
    lines = submissions.tables(
        [submissions.Alone("no hint", 1.5, 1.0, 0)], [plain, ours], submissions.FULL
    )
    assert any(line.startswith("| ours | 10.0 | 230 | +40 | 9 | 5 | 9 |") for line in lines)
