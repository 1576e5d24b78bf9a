"""What is known of the datasets: who holds how much, what is being lost, and which names are live.
Pure: observations in, what is held out.

The gateways count by folder, two components deep. A dataset that is a folder above is the sum of
those below it; one that lies deeper has to be asked for by its name, and is once a job has named it
or the configuration does.
"""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from scheduler_plugin.dataset import BadHint, Dataset, parse_dataset
from scheduler_plugin.ranking import Held
from scheduler_plugin.told import Counted, GatewayNode

EVERYBODY = "*"
MOST_DATASETS = 20_000
# Over how long a rate of losing is averaged: the life of an epoch's worth of reads, not of one.
_AVERAGED_SECONDS = 300.0
# Below this, in bytes a second, nothing is being lost.
_LEAST_RATE = 0.01


class Holding(Struct, frozen=True):
    """Bytes held of a dataset by gateway node. `readers`: the tenants that may read all of it."""

    nodes: Mapping[str, int]
    readers: frozenset[str]


def live(counted: Iterable[Counted]) -> dict[Dataset, Holding]:
    """The datasets there are, at most MOST_DATASETS, the largest: those counted, and every folder
    above them. Names that no hint can hold are left out."""
    nodes: dict[Dataset, dict[str, int]] = {}
    readers: dict[Dataset, frozenset[str]] = {}
    for each in counted:
        try:
            dataset = parse_dataset(each.dataset)
        except BadHint:
            continue
        said = frozenset(each.readers)
        for name in _above(dataset):
            sums = nodes.setdefault(name, {})
            for node, size in each.nodes.items():
                sums[node] = sums.get(node, 0) + size
            readers[name] = _both(readers[name], said) if name in readers else said
    largest = sorted(nodes, key=lambda name: (-sum(nodes[name].values()), name))
    return {name: Holding(nodes[name], readers[name]) for name in largest[:MOST_DATASETS]}


def holding_of(counted: Counted) -> Holding:
    """What was asked for by name."""
    return Holding(dict(counted.nodes), frozenset(counted.readers))


class Places(Struct, frozen=True):
    """Slurm's names for the place of each member that can be sent jobs to: host and rack."""

    members: Mapping[str, tuple[str, str]]

    @staticmethod
    def of(
        members: Iterable[GatewayNode], *, nodes: Mapping[str, str], racks: Mapping[str, str]
    ) -> "Places":
        """`nodes` and `racks`: the names that differ. One that is leaving is no place."""
        return Places(
            {
                each.id: (nodes.get(each.id, each.id), racks.get(each.rack, each.rack))
                for each in members
                if each.state != "draining"
            }
        )

    def held(self, holding: Holding, losses: Mapping[str, float]) -> list[Held]:
        """Who holds it, in those names. What nodes hold that are no members is of no use."""
        return [
            Held(*self.members[id_], size, losses.get(id_, 0.0))
            for id_, size in holding.nodes.items()
            if size > 0 and id_ in self.members
        ]


class Losses:
    """How fast each node has been losing each dataset, in bytes a second, averaged. What comes back
    makes up for what went shortly before, and counts for nothing else."""

    def __init__(self) -> None:
        self._before: dict[Dataset, Mapping[str, int]] = {}
        self._rates: dict[Dataset, dict[str, float]] = {}
        self._at: float | None = None

    def of(self, dataset: Dataset) -> Mapping[str, float]:
        return self._rates.get(dataset, {})

    def observe(self, holdings: Mapping[Dataset, Holding], now: float) -> None:
        """Takes in what is held at `now`, monotonic seconds. What is not told of this time is
        forgotten."""
        passed = now - self._at if self._at is not None else 0.0
        if passed > 0:
            share = 1.0 - math.exp(-passed / _AVERAGED_SECONDS)
            self._rates = {
                dataset: rates
                for dataset, holding in holdings.items()
                if (rates := self._averaged(dataset, holding, passed, share))
            }
        self._before = {dataset: holding.nodes for dataset, holding in holdings.items()}
        self._at = now

    def _averaged(
        self, dataset: Dataset, holding: Holding, passed: float, share: float
    ) -> dict[str, float]:
        before = self._before.get(dataset)
        if before is None:
            return {}
        rates = self._rates.get(dataset, {})
        found = {}
        # One that has lost all may be in neither but the rates.
        for node in {**before, **rates} if rates else before:
            # What comes back at once was never evicted: Redis was emptied, or a node restarted.
            lost = (before.get(node, 0) - holding.nodes.get(node, 0)) / passed
            rate = rates.get(node, 0.0) + share * (lost - rates.get(node, 0.0))
            if rate >= _LEAST_RATE:
                found[node] = rate
        return found


def _above(dataset: Dataset) -> Iterable[Dataset]:
    """The dataset and every folder that it lies in, the bucket last."""
    folder = dataset.folder
    while True:
        yield Dataset(dataset.bucket, folder)
        if not folder:
            return
        folder = folder.rpartition("/")[0]


def _both(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    if EVERYBODY in left:
        return right
    if EVERYBODY in right:
        return left
    return left & right
