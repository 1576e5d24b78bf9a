"""The simulator's caches: which parts of which datasets each rack holds. Pure.

As in feedrack, a chunk has a home in every rack and one of these homes is its first
(docs/cluster.md). So a rack is one cache as large as those of its nodes together, and a dataset it
holds lies on all of its nodes evenly; and what comes from the origin stays at its first home too,
which is a rack as good as drawn by lot. What hot objects have besides (replicas on the readers'
own nodes) is left out.

A rack that is full evicts what nobody there reads at the moment, the longest unread first. Where
all of it is being read, what comes passes through and is not kept.

What is being fetched counts as held from then on: whoever wants it meanwhile follows the fetch
that is on its way (store/fill.py).
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from benchmarks.affinity_workload import PARTS, Data
from scheduler_plugin.ranking import WORTH_NAMING, Held

ALL_PARTS = (1 << PARTS) - 1
# How long evictions are remembered for the rate at which a rack loses what it has.
_MEMORY_SECONDS = 1800.0
# `rank` names no place that saves less than a tenth of the best, whatever is nearer or busier.
_NOT_WORTH = WORTH_NAMING / 2


class Found(Struct, frozen=True):
    """Where the parts that a job wants in one rack are when it comes: sets of parts. `passing`:
    those that will not be kept, and so come again in every pass. `own`: those on its own nodes."""

    own: int
    rack: int
    remote: int
    origin: int
    passing: int


class Caches:
    """What racks hold. `capacities`: bytes by rack; `nodes`: how many each has."""

    def __init__(self, capacities: Sequence[float], nodes: Sequence[int]) -> None:
        self.capacities = tuple(capacities)
        self.used = [0.0] * len(capacities)
        self.evicted = [0.0] * len(capacities)
        self._nodes = tuple(nodes)
        # By rack, the parts of each dataset, the longest unread first.
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in capacities]
        self._where: dict[int, dict[int, int]] = {}
        self._data: dict[int, Data] = {}
        self._readers: list[dict[int, int]] = [{} for _ in capacities]
        self._losing = [(0.0, 0.0)] * len(capacities)

    def parts(self, rack: int, data: Data) -> int:
        """The parts of it that a rack holds."""
        return self._where.get(data.number, {}).get(rack, 0)

    def anywhere(self, data: Data) -> int:
        """The parts of it that any rack holds."""
        found = 0
        for each in self._where.get(data.number, {}).values():
            found |= each
        return found

    def read(
        self, data: Data, wanted: int, places: Sequence[tuple[int, Sequence[int]]], now: float
    ) -> list[Found]:
        """A job begins to read these parts in each of its racks, `places` being these with the
        nodes it has there, by their place in the rack. One rack fetches for all what none has."""
        found = []
        for rack, own in places:
            self._data[data.number] = data
            readers = self._readers[rack]
            readers[data.number] = readers.get(data.number, 0) + 1
            here = self.parts(rack, data) & wanted
            if here:
                self._held[rack].move_to_end(data.number)
            elsewhere = self.anywhere(data) & wanted & ~here
            cold = wanted & ~here & ~elsewhere
            kept = self.put(rack, data, elsewhere | cold, now)
            for part, home in _first_homes(data, cold, len(self.capacities)):
                if home != rack:
                    self.put(home, data, part, now)
            mine = here & _homes(data, self._nodes[rack], own)
            found.append(
                Found(mine, here & ~mine, elsewhere, cold, (elsewhere | cold) & ~kept),
            )
        return found

    def done(self, data: Data, racks: Sequence[int]) -> None:
        """A job that read it there has ended."""
        for rack in racks:
            readers = self._readers[rack]
            readers[data.number] -= 1
            if not readers[data.number]:
                del readers[data.number]

    def put(self, rack: int, data: Data, parts: int, now: float) -> int:
        """Brings parts in; those that could be kept."""
        self._data[data.number] = data
        here = self.parts(rack, data)
        new = parts & ~here
        if not new:
            return parts
        room = self._make_room(rack, data, new.bit_count() * data.part_bytes, now)
        fitting = int(room / data.part_bytes + 1e-9)
        kept = new if fitting >= new.bit_count() else _lowest(new, fitting)
        if kept:
            self.used[rack] += kept.bit_count() * data.part_bytes
            self._set(rack, data, here | kept)
            self._held[rack].move_to_end(data.number)
        return kept | parts & here

    def held(self, data: Data, now: float, *, by_node: bool = True) -> list[Held]:
        """What the ranking is told: each node of each rack with its share. Left out are racks that
        hold so little beside the best that no ranking names them. `by_node` false: racks in one
        word where no node can hold more than a fifth of what its rack does, and so is not named."""
        where = self._where.get(data.number, {})
        least = max((each.bit_count() for each in where.values()), default=0) * _NOT_WORTH
        found: list[Held] = []
        for rack, parts in where.items():
            if parts.bit_count() < least:
                continue
            losing = self.losing(rack, now) / max(self.used[rack], 1.0)
            shares = [("", parts)]
            if by_node or parts.bit_count() < 5 * math.ceil(PARTS / self._nodes[rack]):
                shares = self._shares(rack, data, parts)
            for host, share in shares:
                size = share.bit_count() * data.part_bytes
                found.append(Held(host, f"r{rack}", int(size), losing * size))
        return found

    def _shares(self, rack: int, data: Data, parts: int) -> list[tuple[str, int]]:
        """The nodes of a rack that hold something of it, each with its parts."""
        count = self._nodes[rack]
        shares = [
            (node_name(rack, place), parts & _homes(data, count, (place,)))
            for place in range(count)
        ]
        return [(host, share) for host, share in shares if share]

    def losing(self, rack: int, now: float) -> float:
        """Bytes a second that the rack has been evicting of late."""
        amount, at = self._losing[rack]
        return amount * math.exp((at - now) / _MEMORY_SECONDS) / _MEMORY_SECONDS

    def _make_room(self, rack: int, data: Data, size: float, now: float) -> float:
        """Evicts until there is room for so much, as far as that goes; the room that there is."""
        room = self.capacities[rack] - self.used[rack]
        if room >= size:
            return room
        readers = self._readers[rack]
        victims = [each for each in self._held[rack] if each not in readers and each != data.number]
        for number in victims:
            if room >= size:
                break
            victim = self._data[number]
            parts = self.parts(rack, victim)
            count = min(parts.bit_count(), math.ceil((size - room) / victim.part_bytes - 1e-9))
            lost = count * victim.part_bytes
            self._set(rack, victim, parts & ~_lowest(parts, count))
            self.used[rack] -= lost
            self.evicted[rack] += lost
            self._losing[rack] = (self.losing(rack, now) * _MEMORY_SECONDS + lost, now)
            room += lost
        return room

    def _set(self, rack: int, data: Data, parts: int) -> None:
        if parts:
            self._held[rack][data.number] = parts
            self._where.setdefault(data.number, {})[rack] = parts
        else:
            del self._held[rack][data.number]
            del self._where[data.number][rack]


def node_name(rack: int, place: int) -> str:
    """A node's name, by its rack and its place there."""
    return f"r{rack}n{place}"


def _lowest(parts: int, count: int) -> int:
    found = 0
    for _ in range(count):
        lowest = parts & -parts
        found |= lowest
        parts ^= lowest
    return found


@cache
def _homes_in(count: int) -> tuple[int, ...]:
    """The parts whose home is each node of a rack of so many, of a dataset whose first part is at
    the first."""
    return tuple(sum(1 << part for part in range(place, PARTS, count)) for place in range(count))


def _homes(data: Data, count: int, places: Sequence[int]) -> int:
    """The parts whose home in a rack of so many nodes is one of these."""
    homes = _homes_in(count)
    found = 0
    for place in places:
        found |= homes[(place - data.number) % count]
    return found


def _first_homes(data: Data, parts: int, racks: int) -> list[tuple[int, int]]:
    """Each of these parts with the rack of its first home."""
    found = []
    while parts:
        lowest = parts & -parts
        parts ^= lowest
        # Spread as by a hash, the same in every run.
        mixed = (data.number * 2_654_435_761 + lowest.bit_length() * 40_503 * 65_537) >> 7
        found.append((lowest, mixed % racks))
    return found
