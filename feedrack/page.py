"""One page of shared memory: as of when, and until when, what a reader has mapped is believed.

Written by the gateway that handed the shards out, read by any number of readers before each read,
without a system call. Four numbers of 8 bytes:

| word | |
| --- | --- |
| 0 | what this is, and its version |
| 1 | generation of the pack in use; 0: none |
| 2 | last record of the log of overrides that is in force |
| 3 | until when all that holds, nanoseconds of CLOCK_MONOTONIC (one clock for all of a machine) |

Every word is stored and loaded whole, and words 1 and 2 never come back to a value they had: a
reader that finds all three as it expects, each looked at after its read began, knows that nothing
had been answered by then that it does not know of. So there is no lock, and none to be left behind.
"""

import fcntl
import mmap
import os

_KIND = int.from_bytes(b"frpage\x00\x01", "little")
_GENERATION, _THROUGH, _UNTIL = 1, 2, 3
# <linux/fcntl.h>, since Linux 5.1; the module has no name for it in Python 3.11.
_F_SEAL_FUTURE_WRITE = 0x0010


class PageLost(Exception):  # noqa: N818 - said of a descriptor, not of a call
    """What was handed over is no such page."""


class WrittenPage:
    """The gateway's end. Nobody else can write to it, whoever is given the descriptor. OSError."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("feedrack-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, mmap.PAGESIZE)
            self._memory = mmap.mmap(self.descriptor, mmap.PAGESIZE)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(self.descriptor)
            raise
        # A cast view stores eight bytes at once; struct would write them one by one.
        self._words = memoryview(self._memory).cast("Q")
        self._words[0] = _KIND

    def tell(self, generation: int, through: int) -> None:
        """What is in use from now on. Nothing is believed until `believe` says so again, where the
        pack is another."""
        if self._words[_GENERATION] != generation:
            self._words[_UNTIL] = 0
            self._words[_GENERATION] = generation
        self._words[_THROUGH] = through

    def believe(self, until_ns: int) -> None:
        """Until when it holds."""
        self._words[_UNTIL] = until_ns

    def close(self) -> None:
        """Ends it: nobody believes it any more."""
        self._words[_UNTIL] = self._words[_GENERATION] = 0
        self._words.release()
        self._memory.close()
        os.close(self.descriptor)


class ReadPage:
    """The reader's end; the descriptor may be closed afterwards. PageLost."""

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size != mmap.PAGESIZE:
            raise PageLost("not a page")
        # Whoever cut it short would end this process: that is sealed.
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise PageLost("a page that could be cut short")
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ)
        self._words = memoryview(self._memory).cast("Q")
        if self._words[0] != _KIND:
            raise PageLost("a page of another kind")

    def holds(self, generation: int, through: int, now_ns: int) -> bool:
        """Whether exactly that is in use, as of now."""
        words = self._words
        return (
            words[_GENERATION] == generation
            and words[_THROUGH] == through
            and words[_UNTIL] > now_ns
        )
