"""Slurm for the tests of this folder: started on demand, always stopped, its controller watched."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.slurm.lab import SlurmLab
from tests.slurm.place import obstacle
from tests.slurm.placed import Placed

MakeSlurm = Callable[..., SlurmLab]


@pytest.fixture(scope="session")
def slurm_is_there() -> None:
    """Skips where this machine has no Slurm; fails there if REQUIRE names slurm."""
    why = obstacle()
    if why is None:
        return
    if "slurm" in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE names slurm: {why}")
    pytest.skip(why)


@pytest.fixture
def make_slurm(slurm_is_there: None) -> Iterator[MakeSlurm]:
    """`make_slurm(…)` is a lab that is not started yet: first its files, then `start`. The end of
    the test stops it."""
    labs: list[SlurmLab] = []

    def make(**how: Any) -> SlurmLab:
        labs.append(SlurmLab(**how))
        return labs[-1]

    yield make
    for lab in labs:
        lab.stop()


@pytest.fixture(scope="module")
def module_slurm(slurm_is_there: None) -> Iterator[SlurmLab]:
    """Four nodes in two racks, for all tests of a module."""
    with SlurmLab() as lab:
        yield lab


@pytest.fixture
def slurm(module_slurm: SlurmLab) -> Iterator[SlurmLab]:
    """The module's Slurm, idle before the test; a controller that the test crashed fails it."""
    yield module_slurm
    assert module_slurm.alive(), module_slurm.log()[-3000:]
    module_slurm.clear()


@pytest.fixture
def placed(cluster: Placed) -> Iterator[Placed]:
    """The `cluster` of a module, idle before the test; a controller that crashed fails it."""
    yield cluster
    assert cluster.slurm.alive(), cluster.slurm.log()[-3000:]
    cluster.slurm.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a cluster runs in one worker: each would start one of its own."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
