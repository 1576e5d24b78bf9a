"""Where the objects of a dataset lie in the shards of its packs: a few numbers an object. Pure.

Made once from the packs' indexes, by walking them beside the keys; kept in arrays, 24 bytes an
object, which forks share and pickles carry.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from feedrack.keys import Keys


class Placed(Protocol):
    """What is wanted of a record of an index (`packer.format.Record`)."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def shard(self) -> int | None: ...
    @property
    def offset(self) -> int: ...
    @property
    def checksum(self) -> int: ...


class Walked(Protocol):
    """What is wanted of an index: every key from `start` on, in order."""

    def walk(self, start: bytes = b"") -> Iterator[tuple[bytes, Placed]]: ...


class PackName(NamedTuple):
    """One pack as a catalog has it: a prefix and which of its packs."""

    prefix: str
    generation: int


# Nowhere in a shard: the object is asked for. The last one of the maps, which is none.
NOWHERE = -1
_LONGEST_BYTES = 2**32 - 1


class Catalog:
    """For each position of `keys`: number of the shard, offset in its file, size and XXH3-64."""

    def __init__(self, count: int) -> None:
        self.packs: list[PackName] = []
        self.shards: list[str] = []
        self.sizes_of_shards: list[int] = []
        self.shard = array("i", [NOWHERE]) * count
        self.offset = array("Q", [0]) * count
        self.size = array("I", [0]) * count
        self.checksum = array("Q", [0]) * count

    def take(
        self, keys: Keys, pack: PackName, shards: Iterable[tuple[str, int]], index: Walked
    ) -> int:
        """Takes in a pack, and says of how many objects it has the place.

        Packs come with the shorter prefix first: for a key under two, the longer speaks."""
        first = len(self.shards)
        for sha256, size_bytes in shards:
            self.shards.append(sha256)
            self.sizes_of_shards.append(size_bytes)
        self.packs.append(pack)
        start, stop = under(keys, pack.prefix.encode())
        walk = iter(index.walk(keys.raw(start))) if start < stop else iter(())
        here = next(walk, None)
        found = 0
        for position in range(start, stop):
            key = keys.raw(position)
            while here is not None and here[0] < key:
                here = next(walk, None)
            self.shard[position] = NOWHERE
            if here is None or here[0] != key:
                continue
            record = here[1]
            if record.shard is None or record.size_bytes > _LONGEST_BYTES:
                continue
            end = record.offset + record.size_bytes
            if end > self.sizes_of_shards[first + record.shard]:
                continue
            self.shard[position] = first + record.shard
            self.offset[position] = record.offset
            self.size[position] = record.size_bytes
            self.checksum[position] = record.checksum
            found += 1
        return found

    def hide(self, keys: Keys, overridden: Iterable[str]) -> None:
        """From now on these keys are asked for: the pack does not speak for them any more."""
        for key in overridden:
            position = keys.find(key)
            if position is not None:
                self.shard[position] = NOWHERE


def under(keys: Keys, prefix: bytes) -> tuple[int, int]:
    """The positions from and to which keys begin with a prefix."""
    start = bisect_left(range(len(keys)), prefix, key=keys.raw)
    cut = prefix.rstrip(b"\xff")
    if not cut:
        return start, len(keys)
    beyond = cut[:-1] + bytes([cut[-1] + 1])
    return start, bisect_left(range(len(keys)), beyond, key=keys.raw)
