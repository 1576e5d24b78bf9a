"""A fleet's network on plain loopback: one address for all, relays in between that can be cut.

Every process has addresses of its own in 127.0.0.0/8 and ports below those that the kernel gives
out, so that nobody takes the port of a node that is down for a moment.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import psutil

from tests.cluster.relay import Mode, Relays

Far = Literal["redis", "peers", "origin"]
_fleets = itertools.count()


class Spot(NamedTuple):
    """Where a process runs: the address it listens on, and the words before its command."""

    host: str
    prefix: tuple[str, ...] = ()


class Loopback:
    """Links by name; `cut` holds them, or with `how="refuse"` resets them."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._host = f"127.{64 + (pid >> 16 & 63)}.{pid >> 8 & 255}.{pid & 255 or 1}"
        self._first_port = 7000 + 200 * (next(_fleets) % 60)
        self._relays: Relays | None = None
        self._delays: dict[str, float] = {}
        self._modes: dict[str, Mode] = {}
        self._nodes: list[int] = []
        self._pids: dict[int, list[int]] = {}
        # Nodes cut from their peers.
        self._alone: dict[int, Mode] = {}

    def start(self, racks: Sequence[str]) -> None:
        self._relays = Relays(self._host)
        self._nodes = list(range(len(racks)))

    def close(self) -> None:
        if self._relays is not None:
            self._relays.close()
            self._relays = None

    def enter(self) -> None:
        """Brings the calling thread to where the services are."""

    @property
    def services(self) -> Spot:
        return Spot(self._host)

    @property
    def origin(self) -> Spot:
        return self.services

    def node(self, number: int) -> Spot:
        return Spot(self._host)

    def port(self, what: str, number: int = 0) -> int:
        """A port that is this fleet's own: of "redis", "s3", "admin", "peers" or "sentinel"."""
        block = ("redis", "sentinel", "s3", "admin", "peers").index(what)
        return self._first_port + 40 * block + number

    def wire(self, far: Far, number: int, to: tuple[str, int]) -> tuple[str, int]:
        """Where a node reaches its `far` that is at `to`; for "peers", where others reach it."""
        assert self._relays is not None
        return self._host, self._relays.open(f"{far}-{number}", to)

    def know(self, number: int, pid: int) -> None:
        """A node runs as this process now."""
        assert self._relays is not None
        self._relays.mind()
        self._pids[number] = [pid]
        if self._alone:
            self._apply_alone()

    def cut(self, number: int, far: Far, mode: Mode = "hold") -> None:
        if far == "peers":
            self._alone[number] = mode
            self._apply_alone()
        else:
            self._modes[f"{far}-{number}"] = mode
            self._apply(f"{far}-{number}")

    def heal(self, number: int, far: Far) -> None:
        if far == "peers":
            self._alone.pop(number, None)
            self._apply_alone()
        else:
            self._modes.pop(f"{far}-{number}", None)
            self._apply(f"{far}-{number}")

    def delay_redis(self, seconds: float) -> None:
        """Each direction's bytes take half as long."""
        for number in self._nodes:
            self._delays[f"redis-{number}"] = seconds / 2
            self._apply(f"redis-{number}")

    def _apply(self, name: str, owners: Iterable[int] | None = None) -> None:
        assert self._relays is not None
        self._relays.set(
            name,
            self._modes.get(name, "open"),
            delay_seconds=self._delays.get(name, 0.0),
            owners=None if owners is None else list(owners),
        )

    def _apply_alone(self) -> None:
        """Who is alone is asked by nobody, and its own questions get nowhere."""
        if self._relays is None:
            return
        alone = {pid for number in self._alone for pid in self._family(number)}
        for number in self._nodes:
            name = f"peers-{number}"
            if number in self._alone:
                self._relays.set(name, self._alone[number])
            elif alone:
                mode = next(iter(self._alone.values()))
                self._relays.set(name, mode, owners=sorted(alone))
            else:
                self._relays.set(name)

    def _family(self, number: int) -> list[int]:
        found = list(self._pids.get(number, ()))
        for pid in tuple(found):
            if psutil.pid_exists(pid):
                found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return found
