"""Which places a dataset's jobs are best started at. Pure.

A place is a feature of Slurm's: the name of a node, or of a rack. What a place saves is counted in
bytes: those that a job there reads from its own node's disk count whole, those that come from its
rack count less, all others count nothing, since they cross racks wherever it starts. So a node that
holds a little is not put before the rack that holds much.

What is being evicted is counted as it will be when the job reads it, and a place that is busy comes
after one as good that is not.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from scheduler_plugin.slurm.model import Host

# What a byte from another node of the rack saves, beside one from the own disk.
RACK_WORTH = 0.7
# How much of its worth a place that is wholly busy loses: less than lies between node and rack.
LOAD_COST = 0.2
# A node is named where a job there saves so many times what one anywhere in its rack does, and in
# the best. So much does a node of four that hold even shares, but none of sixteen.
NODE_GAIN = 1.1
# How far ahead what is being evicted is looked at: some minutes of waiting, then the first epoch.
HORIZON_SECONDS = 600.0
# Places that save less than this part of what the best one saves are not worth a job's while.
WORTH_NAMING = 0.1
MOST_NODES = 10
MOST_RACKS = 16
ALL_PARTITIONS = "*"
# What `feedrack-affinity install` proposes as the feature of all nodes.
COMMON_FEATURE = "feedrack"


class Held(Struct, frozen=True):
    """What a gateway's node holds of a dataset. `host` is Slurm's name for it, `rack` the feature
    of its rack; `lost_per_second` what it has been losing of it, in bytes."""

    host: str
    rack: str
    size_bytes: int
    lost_per_second: float = 0.0

    def expected_bytes(self, horizon_seconds: float) -> float:
        """What will be left."""
        return max(0.0, self.size_bytes - max(0.0, self.lost_per_second) * horizon_seconds)


class Place(Struct, frozen=True):
    """A feature to be preferred, how many usable hosts of the partition have it, the CPUs of the
    largest of them, and what a job there saves. `rack`: of a node, the feature of its rack, where
    that holds something; of a rack None."""

    feature: str
    hosts: int
    cpus: int
    saved_bytes: float
    rack: str | None = None


class Ranking(Struct, frozen=True):
    """By partition, the nodes and then the racks to be preferred, each the best first."""

    places: Mapping[str, Sequence[Place]]

    @property
    def empty(self) -> bool:
        return not any(self.places.values())


class _Feature(Struct):
    """What the usable hosts of a partition that have a feature come to."""

    hosts: int = 0
    cpus: int = 0
    load: float = 0.0


class Layout(Struct, frozen=True):
    """Slurm's hosts, summed up once for any number of datasets: by partition, what has which
    feature; the features of each host that can be asked for by its own name; and how many usable
    hosts each partition has."""

    partitions: Mapping[str, Mapping[str, _Feature]]
    hosts: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]

    @staticmethod
    def of(hosts: Iterable[Host]) -> "Layout":
        """The layout of these; of those that are not usable nothing."""
        partitions: dict[str, dict[str, _Feature]] = {ALL_PARTITIONS: {}}
        named: dict[str, Sequence[str]] = {}
        sizes: dict[str, int] = {}
        for host in hosts:
            if not host.usable:
                continue
            load = min(1.0, max(0.0, host.load))
            if host.name in host.features:
                named[host.name] = sorted(host.features)
            for partition in (ALL_PARTITIONS, *host.partitions):
                features = partitions.setdefault(partition, {})
                sizes[partition] = sizes.get(partition, 0) + 1
                for name in host.features:
                    each = features.get(name)
                    if each is None:
                        each = features[name] = _Feature()
                    each.hosts += 1
                    if host.cpus > each.cpus:
                        each.cpus = host.cpus
                    each.load += load
        return Layout(partitions, named, sizes)

    def load(self, partition: str, feature: str) -> float:
        """How busy the usable hosts of a partition are that have a feature, 0 to 1."""
        found = self.partitions.get(partition, {}).get(feature)
        return found.load / found.hosts if found is not None else 0.0


def common_feature(hosts: Iterable[Host]) -> str:
    """A feature that every host has, usable or not, the one made for that if there is one; "" where
    there is none."""
    common: frozenset[str] | None = None
    for host in hosts:
        common = host.features if common is None else common & host.features
    if not common:
        return ""
    return COMMON_FEATURE if COMMON_FEATURE in common else min(common)


def rank(
    held: Iterable[Held],
    layout: Layout,
    *,
    horizon_seconds: float = HORIZON_SECONDS,
    node_gain: float = NODE_GAIN,
) -> Ranking:
    """The places for a dataset of which `held` tells who holds it. Of equals the first by name
    comes first, so that the same facts give the same ranking."""
    at_hosts: dict[str, float] = {}
    at_racks: dict[str, float] = {}
    for each in held:
        # Most lose nothing, and the daemon asks for millions.
        losing = each.lost_per_second > 0
        expected = each.expected_bytes(horizon_seconds) if losing else each.size_bytes
        if expected > 0:
            at_hosts[each.host] = at_hosts.get(each.host, 0.0) + expected
            at_racks[each.rack] = at_racks.get(each.rack, 0.0) + expected
    places = {
        partition: _places(features, layout.hosts, at_hosts, at_racks, node_gain)
        for partition, features in layout.partitions.items()
    }
    return Ranking({partition: found for partition, found in places.items() if found})


def _places(
    features: Mapping[str, _Feature],
    names: Mapping[str, Sequence[str]],
    at_hosts: Mapping[str, float],
    at_racks: Mapping[str, float],
    node_gain: float,
) -> tuple[Place, ...]:
    racks = _best(
        [_rack(name, features[name], size) for name, size in at_racks.items() if name in features],
        MOST_RACKS,
    )
    floor = racks[0].saved_bytes if racks else 0.0
    # What a node must save before its load is looked at. That it is idle makes it no better than
    # its rack: with whole nodes broken up for it, the next large job would wait.
    least = node_gain * RACK_WORTH * at_racks[racks[0].feature] if racks else 0.0
    most_beside = RACK_WORTH * max(at_racks.values(), default=0.0)
    nodes: list[Place] = []
    for name, own in at_hosts.items():
        # Large clusters hold a little of everything everywhere: most nodes end here.
        if (1.0 - RACK_WORTH) * own + most_beside <= least:
            continue
        feature, others = features.get(name), names.get(name)
        if feature is None or others is None:
            continue
        rack = next((each for each in others if each in at_racks), None)
        there = at_racks[rack] if rack is not None else 0.0
        whole = own + RACK_WORTH * max(0.0, there - own)
        saved = whole * _worth(feature.load)
        # A node that saves no more than any node of the best rack is not worth waiting for, and
        # where it saves no more than others of its own, that is what is named.
        if whole > least and whole > node_gain * RACK_WORTH * there and saved > floor:
            nodes.append(Place(name, 1, feature.cpus, saved, rack))
    best = _best(nodes, MOST_NODES)
    # A rack may be called as its only node is.
    taken = {each.feature for each in best}
    return (*best, *(each for each in racks if each.feature not in taken))


def _rack(name: str, feature: _Feature, size: float) -> Place:
    worth = _worth(feature.load / feature.hosts)
    return Place(name, feature.hosts, feature.cpus, RACK_WORTH * size * worth)


def _worth(load: float) -> float:
    return 1.0 - LOAD_COST * min(1.0, max(0.0, load))


def _best(places: Sequence[Place], most: int) -> list[Place]:
    ordered = sorted(places, key=lambda each: (-each.saved_bytes, each.feature))
    if not ordered:
        return []
    floor = ordered[0].saved_bytes * WORTH_NAMING
    return [each for each in ordered if each.saved_bytes >= floor][:most]
