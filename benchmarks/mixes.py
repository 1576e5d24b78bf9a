"""Mixes of small objects: how many, how large, the same in every run."""

import math
import random

from msgspec import Struct

# Objects of a folder; a folder of a hundred thousand is another benchmark.
_FOLDER_OBJECTS = 1000


class Mix(Struct, frozen=True, kw_only=True):
    """So many objects with sizes that are uniform in their logarithm between the two."""

    label: str
    count: int
    smallest_bytes: int
    largest_bytes: int

    @property
    def prefix(self) -> str:
        """What the keys begin with, up to and with the slash."""
        return f"{self.label.replace(' ', '').replace('..', '-')}/"

    def sizes(self) -> list[int]:
        """The size of each object, in bytes."""
        chance = random.Random(self.count)
        lowest, highest = math.log(self.smallest_bytes), math.log(self.largest_bytes)
        return [
            min(max(round(math.exp(chance.uniform(lowest, highest))), self.smallest_bytes),
                self.largest_bytes)
            for _ in range(self.count)
        ]  # fmt: skip

    def key(self, number: int) -> str:
        """The key of an object; the order of keys is that of numbers."""
        return f"{self.prefix}{number // _FOLDER_OBJECTS:04d}/{number:07d}"


def even(label: str, count: int, size_bytes: int) -> Mix:
    """Objects of one size."""
    return Mix(label=label, count=count, smallest_bytes=size_bytes, largest_bytes=size_bytes)
