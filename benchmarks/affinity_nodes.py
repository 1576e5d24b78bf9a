"""The simulator's nodes: their racks, and which GPUs are free. Pure.

Sets of nodes are whole numbers with one bit a node, so that "a node of this rack with four free
GPUs" is two ands whatever the size of the cluster.

A job of up to eight GPUs runs on one node, and of those that have room it takes the fullest, then
the first: whole nodes are what large jobs wait for. A larger one takes whole nodes, of one rack
where one has enough (the one that has fewest too many), else of as few racks as will do.
"""

from collections.abc import Iterable, Iterator, Sequence

GPUS = 8


def bits(numbers: Iterable[int]) -> int:
    """The set of these nodes."""
    found = 0
    for each in numbers:
        found |= 1 << each
    return found


def members(nodes: int) -> Iterator[int]:
    """The nodes of a set, the first first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def first(nodes: int, count: int) -> int:
    """The first so many of a set."""
    if nodes.bit_count() <= count:
        return nodes
    found = 0
    for _ in range(count):
        lowest = nodes & -nodes
        found |= lowest
        nodes ^= lowest
    return found


class Nodes:
    """`count` nodes of eight GPUs in `racks` racks, as even as they come; the nodes of a rack are
    numbered one after the other."""

    def __init__(self, count: int, racks: int) -> None:
        self.count = count
        self.rack_of = tuple(number * racks // count for number in range(count))
        self.racks: tuple[int, ...] = tuple(
            bits(node for node in range(count) if self.rack_of[node] == rack)
            for rack in range(racks)
        )
        self.sizes = tuple(each.bit_count() for each in self.racks)
        self.free = [GPUS] * count
        # Those whose load is another than whoever keeps an account of it knows; it empties this.
        self.changed: set[int] = set()
        # By a number of GPUs, the nodes that have so many free, or more; of none all have more.
        everything = (1 << count) - 1
        self.with_free = [everything] * (GPUS + 1) + [0]

    def take(self, nodes: int, gpus: int) -> None:
        """So many GPUs of each of these nodes. They must be free."""
        for node in members(nodes):
            before = self.free[node]
            if gpus > before:
                raise ValueError(f"node {node} has {before} GPUs free, not {gpus}")
            self._set(node, before - gpus)

    def give(self, nodes: int, gpus: int) -> None:
        """Back what was taken."""
        for node in members(nodes):
            after = self.free[node] + gpus
            if after > GPUS:
                raise ValueError(f"node {node} would have {after} GPUs free")
            self._set(node, after)

    def _set(self, node: int, free: int) -> None:
        bit, before = 1 << node, self.free[node]
        for each in range(free + 1, before + 1):
            self.with_free[each] &= ~bit
        for each in range(before + 1, free + 1):
            self.with_free[each] |= bit
        self.free[node] = free
        self.changed.add(node)

    def load(self, node: int) -> float:
        """The part of its GPUs that is taken."""
        return 1.0 - self.free[node] / GPUS

    def racks_of(self, nodes: int) -> list[int]:
        """The racks that these are in."""
        return sorted({self.rack_of[each] for each in members(nodes)})

    def find(self, gpus: int, among: int, wanted: Sequence[int]) -> int:
        """The nodes for a job, out of `among`: within the first of the sets `wanted` that can hold
        all of it, else wherever it fits; 0 where nowhere."""
        found = self.find_within(gpus, among, wanted)
        if found:
            return found
        if gpus <= GPUS:
            return self._fullest(gpus, among & self.with_free[gpus])
        return self._spread(gpus // GPUS, among & self.with_free[GPUS])

    def find_within(self, gpus: int, among: int, wanted: Sequence[int]) -> int:
        """The nodes for a job within one of the sets `wanted`; 0 where none has room."""
        single = gpus <= GPUS
        room = among & self.with_free[gpus if single else GPUS]
        for each in wanted:
            there = room & each
            if single:
                if there:
                    return self._fullest(gpus, there)
            elif there.bit_count() >= gpus // GPUS:
                return first(there, gpus // GPUS)
        return 0

    def _fullest(self, gpus: int, room: int) -> int:
        for free in range(gpus, GPUS + 1):
            exactly = room & ~self.with_free[free + 1]
            if exactly:
                return exactly & -exactly
        return 0

    def _spread(self, count: int, room: int) -> int:
        if room.bit_count() < count:
            return 0
        by_rack = [room & each for each in self.racks]
        enough = [each for each in by_rack if each.bit_count() >= count]
        if enough:
            return first(min(enough, key=int.bit_count), count)
        found = 0
        for each in sorted(by_rack, key=int.bit_count, reverse=True):
            found |= first(each, count - found.bit_count())
            if found.bit_count() == count:
                break
        return found
