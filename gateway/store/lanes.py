"""What may be on its way from the origins at one time, lane by lane, for the whole node.

A reader who has come to a chunk gets its fill whatever is on its way: the pool of memory and the
origin's connections bound those. What a lane brings in before anybody asks must fit its budget
beside them.
"""

from collections.abc import Mapping
from typing import Literal

Lane = Literal["read", "checkpoint", "prefetch", "background"]


class Budget:
    """One lane's share: how many fills, and of how many bytes together."""

    def __init__(self, *, fills: int, size_bytes: int) -> None:
        self._most_fills = fills
        self._most_bytes = size_bytes
        self.fills = 0
        self.in_flight_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """Whether one more fill of that size may begin before it is asked for."""
        return (
            self.fills < self._most_fills and self.in_flight_bytes + size_bytes <= self._most_bytes
        )

    def begun(self, size_bytes: int) -> None:
        self.fills += 1
        self.in_flight_bytes += size_bytes

    def ended(self, size_bytes: int) -> None:
        self.fills -= 1
        self.in_flight_bytes -= size_bytes


def budgets() -> Mapping[Lane, Budget]:
    """The budgets of a node."""
    return {
        # As many bytes as there is memory for fills to land in (tiers/disk.py).
        "read": Budget(fills=32, size_bytes=256 * 1024**2),
        # Little enough to be out of the way at once, enough to keep an origin's streams busy.
        "prefetch": Budget(fills=8, size_bytes=64 * 1024**2),
        "background": Budget(fills=8, size_bytes=64 * 1024**2),
    }
