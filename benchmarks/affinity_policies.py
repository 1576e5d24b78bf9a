"""How the simulator's jobs choose their places, and what the daemon would tell them. Pure.

The ranking is the plugin's own (`scheduler_plugin.ranking.rank`), and what is made of it is what
`site/job_submit.lua` makes: the first sixteen places that can hold the whole job, fixed when the
job is submitted, whatever happens while it waits.
"""

from msgspec import Struct

from benchmarks.affinity_caches import Caches, node_name
from benchmarks.affinity_nodes import GPUS, Nodes
from benchmarks.affinity_workload import Data, Work
from scheduler_plugin.ranking import ALL_PARTITIONS, NODE_GAIN, Layout, Place, rank
from scheduler_plugin.slurm.model import Host

MOST_PLACES = 16
# How old a ranking may be. The daemon's is younger; ranking as often as that would be most of the
# simulator's time, and changes little.
REFRESH_SECONDS = 300.0


class Policy(Struct, frozen=True):
    """What is preferred. `node_gain`: how many times what the best rack saves a node must save to
    be named. `wait_seconds`: how long after its submission a job starts nowhere but at
    its preferred places. `warms`: whether what the best rack lacks is fetched while a job waits."""

    name: str
    nodes: bool = False
    racks: bool = False
    node_gain: float = NODE_GAIN
    wait_seconds: float = 0.0
    warms: bool = False


NONE = Policy("no affinity")
RACK = Policy("racks", racks=True)
NODE = Policy("nodes, racks", nodes=True, racks=True)
ANY_NODE = Policy("any node, racks", nodes=True, racks=True, node_gain=0.0)
NODE_WARM = Policy("nodes, racks; warming", nodes=True, racks=True, warms=True)


def waiting(minutes: float, *, warms: bool = False) -> Policy:
    """Delay scheduling: for so long the preference is a must."""
    name = f"wait {minutes:g} min" + ("; warming" if warms else "")
    return Policy(name, nodes=True, racks=True, wait_seconds=60 * minutes, warms=warms)


class Wish(Struct, frozen=True):
    """Where a job would rather run: sets of nodes, the best first; and the rack that is best."""

    places: tuple[int, ...] = ()
    rack: int | None = None

    @property
    def nodes(self) -> int:
        """All of them."""
        found = 0
        for each in self.places:
            found |= each
        return found


NOTHING = Wish()


class Rankings:
    """The rankings of all datasets as they stand, made when asked for."""

    def __init__(self, policy: Policy, nodes: Nodes, caches: Caches) -> None:
        self._policy = policy
        self._nodes = nodes
        self._caches = caches
        self._features: list[frozenset[str]] = []
        self._names: list[str] = []
        self._sets: dict[str, int] = {}
        self._racks: dict[str, int] = {}
        for rack, members in enumerate(nodes.racks):
            self._sets[f"r{rack}"] = members
            self._racks[f"r{rack}"] = rack
            start = (members & -members).bit_length() - 1
            for place in range(nodes.sizes[rack]):
                name = node_name(rack, place)
                self._names.append(name)
                self._features.append(frozenset({name, f"r{rack}"}))
                self._sets[name] = 1 << (start + place)
        self._layout = Layout.of(
            Host(name, features, (), GPUS)
            for name, features in zip(self._names, self._features, strict=True)
        )
        self._loads = [0.0] * nodes.count
        # A fifth of what a rack holds is not enough to be named.
        self._by_node = policy.node_gain < NODE_GAIN
        self._ranked: dict[int, tuple[float, tuple[Place, ...]]] = {}

    def wish(self, work: Work, now: float) -> Wish:
        """What a job is told that is submitted now."""
        if not self._policy.racks:
            return NOTHING
        needed = max(1, work.gpus // GPUS)
        chosen = [
            each
            for each in self._places(work.data, now)
            if each.hosts >= needed and (self._policy.nodes or each.rack is None)
        ][:MOST_PLACES]
        if not chosen:
            return NOTHING
        best = chosen[0].rack if chosen[0].rack is not None else chosen[0].feature
        return Wish(tuple(self._sets[each.feature] for each in chosen), self._racks[best])

    def _places(self, data: Data, now: float) -> tuple[Place, ...]:
        until, places = self._ranked.get(data.number, (-1.0, ()))
        if now >= until:
            ranking = rank(
                self._caches.held(data, now, by_node=self._by_node),
                self.layout(),
                node_gain=self._policy.node_gain,
            )
            places = tuple(ranking.places.get(ALL_PARTITIONS, ()))
            self._ranked[data.number] = (now + REFRESH_SECONDS, places)
        return places

    def layout(self) -> Layout:
        """The layout, brought up to date: `Layout.of` all hosts again comes to the same."""
        features = self._layout.partitions[ALL_PARTITIONS]
        for node in sorted(self._nodes.changed):
            load = self._nodes.load(node)
            change = load - self._loads[node]
            for name in self._features[node]:
                features[name].load += change
            self._loads[node] = load
        self._nodes.changed.clear()
        return self._layout
