"""What goes wrong in a soak, when and where: decided by a seed, done to a fleet, undone again."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.cluster.fleet import Fleet
from tests.faulty import Fault

_ORIGIN_ERRORS = (
    Fault("status", status=503),
    Fault("status", status=500),
    Fault("reset"),
    # The origin has done it, and its answer is lost.
    Fault("lose"),
    Fault("reset", after_bytes=0),
    Fault("reset", after_bytes=100_000),
    Fault("truncate", after_bytes=50),
)


@dataclass(frozen=True)
class Injury:
    """One fault: when it begins, for how long it lasts, and which node it meets."""

    at_seconds: float
    for_seconds: float
    what: str
    node: int

    def __str__(self) -> str:
        whom = f" n{self.node + 1}" if self.what in NODE_FAULTS else ""
        return f"{self.at_seconds:6.1f} s: {self.what}{whom} for {self.for_seconds:.1f} s"


@contextmanager
def _killed(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.kill(node)
    yield
    fleet.restart(node)


@contextmanager
def _frozen(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.freeze(node)
    yield
    fleet.thaw(node)


def _cut(far: str, mode: str) -> Callable[[Fleet, int, float], AbstractContextManager[None]]:
    @contextmanager
    def cut(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
        fleet.cut(node, far, mode)  # type: ignore[arg-type]
        yield
        fleet.heal(node, far)  # type: ignore[arg-type]

    return cut


@contextmanager
def _wiped(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.wipe(node)
    yield


@contextmanager
def unplugged(fleet: Fleet, node: int, seconds: float = 0.0) -> Iterator[None]:
    """The cache folder is gone, and what is in its place takes nothing. Wants root."""
    cache = fleet.node(node).folder / "cache"
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(cache)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)


@contextmanager
def _redis_gone(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.stop_redis()
    yield
    fleet.start_redis(empty=True)


@contextmanager
def _redis_back_as_it_was(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    """Down for longer than it takes to start only if `seconds` say so."""
    fleet.stop_redis(saving=True)
    yield
    fleet.start_redis(empty=False)


@contextmanager
def _redis_slow(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.slow_redis(0.5)
    yield
    fleet.slow_redis(0.0)


@contextmanager
def _origin_slow(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.origin.fail_at_random(0.5, [Fault("delay", seconds=0.7)])
    yield
    fleet.origin.heal()


@contextmanager
def _origin_failing(fleet: Fleet, node: int, seconds: float) -> Iterator[None]:
    fleet.origin.fail_at_random(0.3, _ORIGIN_ERRORS)
    yield
    fleet.origin.heal()


NODE_FAULTS: dict[
    str, tuple[float, Callable[[Fleet, int, float], AbstractContextManager[None]]]
] = {
    "kill": (3.0, _killed),
    "freeze": (10.0, _frozen),
    "cut from Redis": (6.0, _cut("redis", "hold")),
    "reset from Redis": (4.0, _cut("redis", "refuse")),
    "cut from peers": (6.0, _cut("peers", "hold")),
    "cut from the origin": (4.0, _cut("origin", "hold")),
    "wipe": (0.5, _wiped),
    "unplug": (4.0, unplugged),
}
SHARED_FAULTS: dict[
    str, tuple[float, Callable[[Fleet, int, float], AbstractContextManager[None]]]
] = {
    "Redis empty": (4.0, _redis_gone),
    "Redis restarted": (0.1, _redis_back_as_it_was),
    "Redis slow": (6.0, _redis_slow),
    "origin slow": (6.0, _origin_slow),
    "origin failing": (6.0, _origin_failing),
}


def schedule(seed: int, seconds: float, nodes: int) -> list[Injury]:
    """Two lanes, one of faults of nodes and one of what they share; each in rounds of all kinds, in
    an order of its own, with pauses to recover in."""
    chance = random.Random(seed)
    found: list[Injury] = []
    for faults in (NODE_FAULTS, SHARED_FAULTS):
        now = 2.0
        while now < seconds:
            names = list(faults)
            if os.geteuid() != 0 and "unplug" in names:
                names.remove("unplug")
            chance.shuffle(names)
            for name in names:
                lasts = faults[name][0]
                if now + lasts < seconds:
                    found.append(Injury(now, lasts, name, chance.randrange(nodes)))
                now += lasts + chance.uniform(0.5, 4.0)
    return sorted(found, key=lambda injury: injury.at_seconds)


def inflict(
    fleet: Fleet,
    injuries: list[Injury],
    tell: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """All of a lane's, in their time; returns when the last is over."""
    begun = time.monotonic()
    for injury in injuries:
        if stop.wait(max(0.0, begun + injury.at_seconds - time.monotonic())):
            return
        tell(f"{time.monotonic():.3f} {injury}")
        _, fault = (NODE_FAULTS | SHARED_FAULTS)[injury.what]
        with fault(fleet, injury.node, injury.for_seconds):
            stop.wait(injury.for_seconds)
        tell(f"{time.monotonic():.3f} over: {injury.what}")
