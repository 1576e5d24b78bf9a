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
    worlds = [World(seed, nodes=3) for seed in range(1, 6)]
    for world in worlds:
        for _ in range(_STEPS):
            world.step()
    assert sum(world.reads_from_memory for world in worlds) > 200
    assert sum(world.told_by_nodes for world in worlds) > 20
    assert sum(world.answered for world in worlds) > 200


@pytest.mark.parametrize(
    "flaw",
    [
        "nobody is waited for",
        "leases last",
        "nothing was missed",
        "who joins hears of nothing that was left",
        "who is asked looks at no lease",
        "questions are shared during writes",
        "questions are shared without a lease",
    ],
)
def test_a_protocol_with_a_flaw_is_found_out(flaw: str) -> None:
    with pytest.raises(StaleError):
        _run_many(flaw)


def _run_many(flaw: str) -> None:
    for seed in range(300):
        world = World(seed, nodes=3, flaw=flaw)
        for _ in range(_STEPS):
            world.step()
