"""Sixteen clients on fifty keys through six nodes, while everything that can fail does."""

import os
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFleet
from tests.cluster.faults import NODE_FAULTS, SHARED_FAULTS, Injury, schedule
from tests.cluster.soak import SETTINGS, is_stale, soak

_SECONDS = 60.0


def test_a_seed_decides_what_goes_wrong_when_and_where() -> None:
    assert schedule(7, 60, 6) == schedule(7, 60, 6)
    assert schedule(7, 60, 6) != schedule(8, 60, 6)


def test_a_short_schedule_has_most_of_what_can_go_wrong() -> None:
    named = {injury.what for injury in schedule(1, _SECONDS, 6)}
    assert len(named) >= len(NODE_FAULTS) + len(SHARED_FAULTS) - 3


@pytest.mark.timeout(240)
def test_no_answer_contradicts_another_whatever_fails(
    make_fleet: MakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """One schedule for all who run the tests; SEED=… is another, and `make soak` draws one, for as
    long as one likes."""
    seed = int(os.environ.get("SEED", "5"))
    fleet = make_fleet(settings=SETTINGS, buckets=("train", "fixed"))
    outcome = soak(fleet, seed=seed, seconds=_SECONDS, tell=lambda line: None)
    assert outcome.faultless, f"SEED={seed}\n{outcome}"


@pytest.mark.timeout(120)
def test_strangers_before_one_origin_are_found_out(make_fleet: MakeFleet) -> None:
    """Nodes that tell each other nothing: what the checker must find in any run."""
    fleet = make_fleet(
        settings=SETTINGS, buckets=("train", "fixed"), racks=("r1", "r2"), clustered=False
    )
    outcome = soak(fleet, seed=5, seconds=60, tell=lambda line: None, injuries=[], until_stale=True)
    assert any(map(is_stale, outcome.violations)), str(outcome)


@pytest.mark.timeout(300)
def test_writers_that_wait_for_nobody_are_found_out(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of the protocol but one thing: a node that has not heard of a write is not waited for."""
    (tmp_path / "sitecustomize.py").write_text(
        "from gateway.cluster.changes import Waits\nWaits.begun = lambda *_: True\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fleet = make_fleet(settings=SETTINGS, buckets=("train", "fixed"), racks=("r1", "r1", "r2"))
    injuries = [Injury(at, 2.5, "cut from Redis", 0) for at in range(2, 180, 5)]
    outcome = soak(
        fleet, seed=5, seconds=180, tell=lambda line: None, injuries=injuries, until_stale=True
    )
    assert any(map(is_stale, outcome.violations)), str(outcome)
