"""Which bytes of the cache's open files may be sent as they lie there (`FileRegion`).

Those that this process has verified since they came into the page cache and that are there now: so
no checksum is skipped and the event loop does not wait for the disk. A look costs a few
microseconds: one fstat, one question for the pages.

What remains: a page that was verified, was evicted, went bad on the disk and came back behind
another read between two looks is sent as it is. Within this process such a read forgets what
lies behind it (`missed`); another process's is not seen.
"""

import os
from collections.abc import Hashable

from gateway.index.records import BLOCK_BYTES
from gateway.tiers.kernel import Residency
from gateway.tiers.open_files import OpenFile
from gateway.tiers.protocol import FileRegion
from gateway.tiers.verified import Stamp, Verified, stamp_of


class Regions:
    """Marks by file and block of `BLOCK_BYTES`. In a chunk's file every block is marked by itself;
    in a shard's, the block in which an object of at least a block begins stands for the object."""

    def __init__(self) -> None:
        self._verified = Verified()
        self._residency = Residency()

    def seen(self, name: Hashable, first: int, count: int = 1) -> bool:
        """Whether the blocks were verified once."""
        return self._verified.seen(name, first, count)

    def before(self, file: OpenFile, name: Hashable, first: int, count: int = 1) -> Stamp | None:
        """To be asked before blocks are read that will be verified, and handed to `verified`; None
        where there is nothing new to tell."""
        return None if self._verified.seen(name, first, count) else _stamp(file)

    def verified(self, name: Hashable, stamp: Stamp | None, first: int, count: int = 1) -> None:
        """The blocks read since the file had that stamp match their checksums."""
        if stamp is not None:
            self._verified.tell(name, stamp, first, count)

    def written(self, file: OpenFile, name: Hashable, size_bytes: int) -> None:
        """This process has just written the whole file from bytes whose checksums it took."""
        stamp = _stamp(file)
        if stamp is None or stamp[1] != size_bytes:
            return
        if self._residency.holds(file.descriptor, 0, size_bytes):
            self._verified.tell(name, stamp, 0, -(-size_bytes // BLOCK_BYTES))

    def missed(self, name: Hashable, first: int) -> None:
        """Block `first` must be read from the disk, and what lies behind it comes along."""
        self._verified.left(name, first)

    def forget(self, name: Hashable) -> None:
        """The file is gone, or not what it should be."""
        self._verified.forget(name)

    def of_blocks(
        self, file: OpenFile, name: Hashable, offset: int, size_bytes: int
    ) -> FileRegion | None:
        """The bytes from `offset` on, as far as the blocks they touch are verified."""
        first = offset // BLOCK_BYTES
        count = (offset + size_bytes - 1) // BLOCK_BYTES - first + 1
        stamp = _stamp(file)
        run = self._verified.run(name, stamp, first, count) if stamp is not None else 0
        if not run:
            return None
        size_bytes = min(size_bytes, (first + run) * BLOCK_BYTES - offset)
        return self._here(file, name, first, offset, size_bytes)

    def of_object(
        self, file: OpenFile, name: Hashable, start: int, offset: int, size_bytes: int
    ) -> FileRegion | None:
        """The bytes from `offset` on of the object that begins at `start` of a shard."""
        stamp = _stamp(file)
        first = start // BLOCK_BYTES
        if stamp is None or not self._verified.run(name, stamp, first, 1):
            return None
        return self._here(file, name, first, start + offset, size_bytes)

    def _here(
        self, file: OpenFile, name: Hashable, first: int, offset: int, size_bytes: int
    ) -> FileRegion | None:
        if not self._residency.holds(file.descriptor, offset, size_bytes):
            self._verified.left(name, first)
            return None
        return FileRegion(file.descriptor, offset, size_bytes)


def _stamp(file: OpenFile) -> Stamp | None:
    """The file's stamp; None where it was removed: its name may be another file's by now."""
    status = os.fstat(file.descriptor)
    return stamp_of(status) if status.st_nlink else None
