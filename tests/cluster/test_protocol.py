"""The protocol of coherence in random interleavings; SEEDS and SEED in the environment do more."""

import os

import pytest

from tests.cluster.simulated import StaleError, World

_STEPS = 3000
_SEEDS = int(os.environ.get("SEEDS", "60"))
_FIRST = int(os.environ.get("SEED", "0"))


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _SEEDS))
def test_no_read_is_behind_what_was_answered_or_read_before(seed: int) -> None:
    world = World(seed, nodes=3)
    for _ in range(_STEPS):
        world.step()


def test_memory_is_used_and_writes_are_answered() -> None:
    world = World(1, nodes=3)
    for _ in range(_STEPS):
        world.step()
    assert world.reads_from_memory > 50
    assert world.answered > 20


@pytest.mark.parametrize("flaw", ["nobody is waited for", "leases last", "nothing was missed"])
def test_a_protocol_with_a_flaw_is_found_out(flaw: str) -> None:
    with pytest.raises(StaleError):
        _run_many(flaw)


def _run_many(flaw: str) -> None:
    for seed in range(300):
        world = World(seed, nodes=3, flaw=flaw)
        for _ in range(_STEPS):
            world.step()
