"""Mixes of small objects: how many, how large, the same in every run."""

import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks import objects

_AGE_SECONDS = 3600
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


def write_files(bucket: Path, mix: Mix, sizes: Sequence[int]) -> None:
    """The objects of a mix as files of a bucket's folder, an hour old."""
    changed = time.time() - _AGE_SECONDS
    made: set[Path] = set()
    for number, size_bytes in enumerate(sizes):
        path = bucket / mix.key(number)
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        with path.open("wb") as file:
            file.writelines(objects.parts(number, size_bytes))
        os.utime(path, (changed, changed))
