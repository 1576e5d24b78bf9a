"""Sixteen clients on fifty keys through six nodes, while everything that can fail does."""

import os

import pytest

from tests.cluster.conftest import MakeFleet
from tests.cluster.faults import NODE_FAULTS, SHARED_FAULTS, schedule
from tests.cluster.soak import SETTINGS, soak

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
