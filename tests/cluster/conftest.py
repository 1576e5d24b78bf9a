"""Fleets for the tests of this folder: made on demand, always stopped, on a Redis that is real."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.netns import Namespaces, obstacle
from tests.cluster.services import redis_server

MakeFleet = Callable[..., Fleet]


def absent(name: str, why: str) -> None:
    """Skips; fails where REQUIRE names what is missing."""
    if name in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE names {name}: {why}")
    pytest.skip(why)


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[MakeFleet]:
    """`make_fleet(racks=…, …)` starts a fleet that the end of the test stops."""
    fleets: list[Fleet] = []

    def make(**how: Any) -> Fleet:
        if how.get("clustered", True) and redis_server() is None:
            absent("redis", "redis-server is not installed")
        fleet = Fleet(tmp_path / f"fleet{len(fleets)}", **how)
        fleets.append(fleet)
        return fleet.start()

    yield make
    for fleet in fleets:
        fleet.stop()


@pytest.fixture
def namespaces() -> Callable[..., Namespaces]:
    """`make_fleet(network=namespaces(rate_mbit=…))`, where this machine can have namespaces."""
    why = obstacle()
    if why is not None:
        absent("netns", why)
    return Namespaces
