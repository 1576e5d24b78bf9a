"""Where a cluster under measurement runs: racks as network namespaces whose uplinks are shaped, or
plain loopback where there can be none.

What enters a rack over its uplink is counted by the kernel, whatever any server says of itself.
"""

import json
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.server import HOST
from tests.cluster.netns import Namespaces, obstacle

RACKS = ("r1", "r1", "r2", "r2", "r3", "r3")
RATE_MBIT = 1000


class Place(NamedTuple):
    """Where a process runs: its address, and the words before its command."""

    host: str
    prefix: tuple[str, ...] = ()


class Racks(AbstractContextManager["Racks"]):
    """Places for the nodes of `racks` and for what they share. `shaped` says whether there are
    uplinks, `note` what there is."""

    def __init__(self, racks: Sequence[str] = RACKS, *, rate_mbit: int = RATE_MBIT) -> None:
        self.racks = tuple(racks)
        self._rate_mbit = rate_mbit
        self._why_not = obstacle()
        self._network: Namespaces | None = None

    def __enter__(self) -> Self:
        if self.shaped:
            self._network = Namespaces(rate_mbit=self._rate_mbit, services_mbit=self._rate_mbit)
            try:
                self._network.start(self.racks)
            except BaseException:
                self._network.close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._network is not None:
            self._network.close()
            self._network = None

    @property
    def shaped(self) -> bool:
        return self._why_not is None

    @property
    def note(self) -> str:
        if self._why_not is not None:
            return f"all on the loopback, nothing shaped: {self._why_not}"
        return (
            f"racks are network namespaces; each rack's uplink carries {self._rate_mbit:,} Mbit/s "
            "in each direction (tbf), to the other racks, the origin and Redis alike, and what the "
            "origin and Redis send has as much; readers are in their node's namespace"
        )

    def node(self, number: int) -> Place:
        if self._network is None:
            return Place(HOST)
        return Place(*self._network.node(number))

    @property
    def services(self) -> Place:
        """Where Redis is, and the origin."""
        if self._network is None:
            return Place(HOST)
        return Place(*self._network.services)

    @property
    def entered_bytes(self) -> int | None:
        """Bytes that have come into all racks over their uplinks, headers and all; None where there
        are no uplinks."""
        if self._network is None:
            return None
        return sum(
            received_bytes(
                subprocess.run(
                    [
                        "ip",
                        "-n",
                        self._network.space(rack),
                        "-s",
                        "-j",
                        "link",
                        "show",
                        "dev",
                        "up",
                    ],
                    capture_output=True,
                    check=True,
                ).stdout
            )
            for rack in sorted(set(self.racks))
        )


def received_bytes(said: bytes) -> int:
    """Of the one link that `ip -s -j link show` tells about."""
    [link] = json.loads(said)
    return int(link["stats64"]["rx"]["bytes"])
