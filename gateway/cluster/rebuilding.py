"""What this node is building anew, and how far it is: for `/v1/members`, `status` and a metric."""

from collections.abc import Callable, Mapping
from typing import Literal

What = Literal["counting", "directory", "handing-over"]


class Rebuilding:
    """Each piece of work and its part done. `tell` hears of each step: what, and 0 to 1.

    "counting": what the cache disk holds, after a start or once a disk has come back.
    "directory": what the directory says of this node, against what the node holds.
    "handing-over": what only this node holds, on its way to others before it leaves.
    """

    def __init__(self, tell: Callable[[str, float], None] = lambda _, __: None) -> None:
        self._tell = tell
        self._ratios: dict[What, float] = {}

    def step(self, what: What, done: int, total: int) -> None:
        """So much of it is done."""
        self._ratios[what] = ratio = min(1.0, done / total) if total > 0 else 0.0
        self._tell(what, ratio)

    def end(self, what: What) -> None:
        """It is done, or no longer to be done."""
        if self._ratios.pop(what, None) is not None:
            self._tell(what, 1.0)

    @property
    def ratios(self) -> Mapping[str, float]:
        """What is under way, each with its part done."""
        return {what: round(ratio, 4) for what, ratio in self._ratios.items()}
