"""Which bytes of the cache's files this process has verified since they came into the page cache.

Pure: what is seen is told, nothing is looked up. A file is known by its name and by its *stamp*
(inode, size, times of change): with another stamp it is another file, of which nothing is known.
What is verified of it is a set of blocks, told and asked by number. Files beyond the limit are
forgotten, the first told first: then their bytes are verified once more.
"""

from collections.abc import Hashable
from os import stat_result

# A chunk's entry takes about 300 bytes, a shard's about 800.
_LIMIT_FILES = 32_768

Stamp = tuple[int, int, int, int]


def stamp_of(status: stat_result) -> Stamp:
    """What a change of a file changes."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Verified:
    """The blocks verified of each file."""

    def __init__(self, limit_files: int = _LIMIT_FILES) -> None:
        self._limit_files = limit_files
        self._files: dict[Hashable, tuple[Stamp, int]] = {}

    def __len__(self) -> int:
        return len(self._files)

    def seen(self, name: Hashable, first: int, count: int = 1) -> bool:
        """Whether the blocks were verified once, under whatever stamp: then there is nothing new
        to tell."""
        entry = self._files.get(name)
        return entry is not None and (entry[1] >> first) & ((1 << count) - 1) == (1 << count) - 1

    def tell(self, name: Hashable, stamp: Stamp, first: int, count: int = 1) -> None:
        """Blocks were verified, read after the file had that stamp."""
        bits = ((1 << count) - 1) << first
        entry = self._files.get(name)
        if entry is not None and entry[0] == stamp:
            bits |= entry[1]
        elif entry is None and len(self._files) >= self._limit_files:
            del self._files[next(iter(self._files))]
        self._files[name] = stamp, bits

    def run(self, name: Hashable, stamp: Stamp, first: int, limit: int) -> int:
        """How many blocks from `first` on, at most `limit`, are verified one after the other of the
        file as its stamp is now. Of a file that has changed everything is forgotten."""
        entry = self._files.get(name)
        if entry is None:
            return 0
        if entry[0] != stamp:
            del self._files[name]
            return 0
        bits = (entry[1] >> first) & ((1 << limit) - 1)
        # The lowest bit that is not set.
        return (~bits & (bits + 1)).bit_length() - 1

    def left(self, name: Hashable, first: int) -> None:
        """Some block from `first` on left the page cache, and when it comes back the ones behind it
        come along unread (readahead): none of them is known any more."""
        entry = self._files.get(name)
        if entry is None:
            return
        bits = entry[1] & ((1 << first) - 1)
        if bits:
            self._files[name] = entry[0], bits
        else:
            del self._files[name]

    def forget(self, name: Hashable) -> None:
        """The file is gone, or not what it should be."""
        self._files.pop(name, None)
