"""Who reads what: an order split among ranks, and a rank's share among its workers. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """One rank's share: every `world_size`-th position, so that ranks stay near one another in the
    order. `even`: as many for each, the remainder left out."""

    rank: int
    world_size: int
    even: bool

    def of(self, positions: Sequence[int]) -> Sequence[int]:
        """This rank's positions, in order."""
        end = len(positions)
        if self.even:
            end -= end % self.world_size
        return positions[self.rank : end : self.world_size]


def blocks(
    positions: Sequence[int], batch_size: int, worker: int, workers: int
) -> Iterator[Sequence[int]]:
    """A worker's blocks of `batch_size`: each `workers`-th, so that a DataLoader, which asks its
    workers in turn, puts them together in order."""
    for start in range(worker * batch_size, len(positions), workers * batch_size):
        yield positions[start : start + batch_size]
