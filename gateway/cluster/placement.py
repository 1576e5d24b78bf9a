"""Where bytes are at home: rendezvous hashing over the members, weighted by their capacity. Pure.

Each member draws a lot for each chunk, and the best lot wins. A member that joins takes over what
it draws the best lots for, one that leaves gives away what it had, and nothing else moves. The lot
depends on the key and the chunk's number alone, not on the version, so that the head of a key, its
first chunk and a small object are at home in one place.
"""

import math
import struct
from collections.abc import Callable, Sequence

import xxhash

from gateway.cluster.members import Member, Members
from gateway.model.objects import ObjectRef

_LENGTHS = struct.Struct(">3IQ")
_LOTS = 2.0**64


def homes(
    members: Sequence[Member], ref: ObjectRef, number: int, *, count: int = 1
) -> list[Member]:
    """The `count` members where chunk `number` of a key belongs, the best first; fewer where there
    are fewer. Version ids do not matter, nor does the order of `members`."""
    named = _name(ref, number)
    if count == 1:
        best = max(members, key=lambda each: (_lot(each, named), each.id), default=None)
        return [] if best is None else [best]
    return sorted(members, key=lambda each: (_lot(each, named), each.id), reverse=True)[:count]


class Placement:
    """Homes among the members of the moment. `rack_aware` False: all racks are one."""

    def __init__(self, members: Members, *, rack_aware: bool = True) -> None:
        self._members = members
        self._rack_aware = rack_aware
        self._version = -1
        self._serving: tuple[Member, ...] = ()
        self._racks: dict[str, list[Member]] = {}

    @property
    def me(self) -> str:
        """This node's id."""
        return self._members.me

    def rack_home(self, ref: ObjectRef, number: int) -> Member | None:
        """The home in this node's rack, which may be this node; None where nobody serves there."""
        return _first(self.in_this_rack(ref, number))

    def first_home(self, ref: ObjectRef, number: int) -> Member | None:
        """The home of all homes, the one that asks the origin."""
        return _first(self.in_cluster(ref, number))

    def home_in(self, rack: str, ref: ObjectRef, number: int) -> Member | None:
        """The home in a rack."""
        self._look()
        return _first(homes(self._racks.get(rack, ()), ref, number))

    def is_home(self, ref: ObjectRef, number: int) -> bool:
        """Whether this node is its rack's home. A node that is no member is: it has nobody else."""
        home = self.rack_home(ref, number)
        return home is None or home.id == self.me

    def in_this_rack(self, ref: ObjectRef, number: int, *, count: int = 1) -> list[Member]:
        """The best homes in this node's rack, the best first."""
        self._look()
        return homes(self._near(), ref, number, count=count)

    def in_cluster(self, ref: ObjectRef, number: int, *, count: int = 1) -> list[Member]:
        """The best homes of all, the best first."""
        self._look()
        return homes(self._serving, ref, number, count=count)

    def same_rack(self, other: Member) -> bool:
        """Whether a member is in this node's rack, as the operator has named it."""
        here = self._members.here()
        return here is not None and here.rack == other.rack

    def _near(self) -> Sequence[Member]:
        if not self._rack_aware:
            return self._serving
        here = self._members.here()
        return () if here is None else self._racks.get(here.rack, ())

    def _look(self) -> None:
        if self._version == self._members.version:
            return
        self._version = self._members.version
        self._serving = self._members.serving()
        self._racks = {}
        for each in self._serving:
            self._racks.setdefault(each.rack, []).append(each)


def _first(found: Sequence[Member]) -> Member | None:
    return found[0] if found else None


def _name(ref: ObjectRef, number: int) -> bytes:
    parts = [each.encode("utf-8", "surrogatepass") for each in (ref.origin, ref.bucket, ref.key)]
    return _LENGTHS.pack(*map(len, parts), number) + b"".join(parts)


def _lot(member: Member, named: bytes) -> float:
    """A member's lot: of several, one wins as often as its share of all capacity."""
    drawn = xxhash.xxh3_64_intdigest(named, seed=_seed(member.id))
    # Exponential with the capacity as its rate, and the earliest wins; never the log of 0 or 1.
    return max(1, member.capacity_bytes) / -math.log((drawn + 0.5) / _LOTS)


def _seeds() -> Callable[[str], int]:
    known: dict[str, int] = {}

    def seed(id_: str) -> int:
        found = known.get(id_)
        if found is None:
            if len(known) > 65_536:
                known.clear()
            found = known[id_] = xxhash.xxh3_64_intdigest(id_.encode("utf-8", "surrogatepass"))
        return found

    return seed


_seed = _seeds()
