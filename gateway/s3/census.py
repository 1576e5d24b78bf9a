"""How many connections each worker of a node has, in memory that all of them see.

Each writes a place of its own and reads the others', so nobody waits. By it the limit on
connections is the node's, and whoever has more of them than another lets that one take the next.
"""

import mmap
import os

PLACES = 256

_WORDS = 2
_SIZE_BYTES = PLACES * _WORDS * 8


def make_memory() -> int:
    """A descriptor of memory for one node's census."""
    descriptor = os.memfd_create("feedrack-census", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _SIZE_BYTES)
    return descriptor


class Census:
    """One worker's view; `place` is its own. The supervisor has one without a place, to `strike`
    those that have died."""

    def __init__(self, descriptor: int, place: int | None = None) -> None:
        self._map = mmap.mmap(descriptor, _SIZE_BYTES)
        self._words = memoryview(self._map).cast("Q")
        self._place = place

    def open(self) -> None:
        """Takes connections from now on."""
        self._write(1, 1)

    def shut(self) -> None:
        """Takes no more: nobody needs to wait for this one to take one."""
        self._write(1, 0)

    def count(self, connections: int) -> None:
        """Tells how many this one has."""
        self._write(0, connections)

    def strike(self, place: int) -> None:
        """The one at that place is gone."""
        self._words[_WORDS * place] = self._words[_WORDS * place + 1] = 0

    def elsewhere(self) -> int:
        """How many all others have."""
        counts = self._words[::_WORDS].tolist()
        if self._place is not None:
            counts[self._place] = 0
        return sum(counts)

    def has_more(self) -> bool:
        """Whether this one has more than some other that takes connections."""
        words = self._words.tolist()
        assert self._place is not None  # noqa: S101 - the supervisor has no connections
        mine = words[_WORDS * self._place]
        return any(
            takes and count < mine
            for count, takes in zip(words[::_WORDS], words[1::_WORDS], strict=True)
        )

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _write(self, word: int, value: int) -> None:
        assert self._place is not None  # noqa: S101 - only the supervisor has none
        self._words[_WORDS * self._place + word] = value
