"""Indexes of packs on this node's disk: brought here once, checked, opened.

An index is read through LMDB's map, and a file that is cut short kills the process that maps it:
so its size and SHA-256 are checked before it is opened, also when it was here already at the start,
and it gets its name by a rename. Nothing changes it afterwards. What it takes counts as part of the
cache (`taken`). Where the cache's disk does not take it, it goes where temporary files go: an index
is needed to answer at all, not only to answer fast. One that is not what its manifest names is not
fetched again for a while.
"""

import asyncio
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from gateway.errors import NoSuchKey, TierUnavailable, VersionChanged
from gateway.model.objects import ObjectRef
from gateway.tiers.protocol import Origin
from packer.format import Index, IndexDamaged, IndexFile

# An index that nobody has asked for so long goes at the next start.
_KEEP_SECONDS = 86_400.0
_DAMAGED_SECONDS = 10.0

log = structlog.get_logger()


class OpenIndex:
    """An index in use, and the file it lies in. LMDB opens a file once a process: successive
    generations of a pack that have one index share it."""

    def __init__(self, index: Index, path: Path, size_bytes: int) -> None:
        self.index = index
        self.path = path
        self.size_bytes = size_bytes
        self.users = 1


class IndexFiles:
    """The folder of indexes. `taken` hears of the bytes that are there in all."""

    def __init__(self, folder: Path, taken: Callable[[int], None]) -> None:
        self._folder = folder
        self._taken = taken
        self._taken_bytes = 0
        self._open: dict[str, OpenIndex] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._damaged: dict[str, float] = {}
        self._elsewhere: Path | None = None

    async def start(self) -> None:
        """Counts what is here, and removes what has long been of no use."""
        self._count(await asyncio.to_thread(_tidy, self._folder))

    async def open(self, origin: Origin, ref: ObjectRef, file: IndexFile) -> OpenIndex:
        """The index that lies at `ref`, opened. TierUnavailable where it is not what its manifest
        names, VersionChanged where it is gone, and whatever reading it raises."""
        # Two buckets may have the same pack.
        async with self._turns.setdefault(file.sha256, asyncio.Lock()):
            path = self._folder / f"{file.sha256}.lmdb"
            if file.sha256 in self._open:
                return self._opened(path, file)
            here, removed_bytes = await asyncio.to_thread(_look, path, file)
            if here:
                return self._opened(path, file)
            if removed_bytes:
                self._count(-removed_bytes)
            if time.monotonic() - self._damaged.get(file.sha256, -_DAMAGED_SECONDS) < (
                _DAMAGED_SECONDS
            ):
                raise TierUnavailable(f"{ref.key} was not the index its manifest names")
            return self._opened(await self._bring(origin, ref, file), file)

    async def remove_temporary(self) -> None:
        """Removes what lies outside of the cache; call when all are closed."""
        folder, self._elsewhere = self._elsewhere, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def close(self, opened: OpenIndex, *, forget: bool) -> None:
        """Ends one use of an index; `forget`: no pack names it any more, as far as its user
        knows."""
        opened.users -= 1
        if opened.users:
            return
        del self._open[opened.path.stem]
        opened.index.close()
        if forget:
            await asyncio.to_thread(opened.path.unlink, True)
            if opened.path.parent == self._folder:
                self._count(-opened.size_bytes)

    def _opened(self, path: Path, file: IndexFile) -> OpenIndex:
        shared = self._open.get(file.sha256)
        if shared is not None:
            shared.users += 1
            return shared
        try:
            opened = self._open[file.sha256] = OpenIndex(Index(path), path, file.size_bytes)
        except IndexDamaged as error:
            raise TierUnavailable(f"a pack's index cannot be used: {error}") from error
        return opened

    async def _bring(self, origin: Origin, ref: ObjectRef, file: IndexFile) -> Path:
        try:
            path = await self._fetch(origin, ref, file, self._folder)
        except OSError as error:
            log.warning("index not kept in the cache", reason=str(error))
            try:
                if self._elsewhere is None:
                    made = await asyncio.to_thread(tempfile.mkdtemp, prefix="feedrack-indexes-")
                    self._elsewhere = Path(made)
                return await self._fetch(origin, ref, file, self._elsewhere)
            except OSError as worse:
                raise TierUnavailable(f"no disk takes a pack's index: {worse}") from worse
        self._count(file.size_bytes)
        return path

    async def _fetch(self, origin: Origin, ref: ObjectRef, file: IndexFile, folder: Path) -> Path:
        """Brings the index into `folder`, checked before it has its name there."""
        await asyncio.to_thread(folder.mkdir, 0o700, True, True)
        coming = folder / f"{file.sha256}.{os.getpid()}.coming"
        path = folder / f"{file.sha256}.lmdb"
        try:
            # Not in a thread: a file that is opened behind a cancelled wait is nobody's to close.
            with _new(coming) as target:
                await self._receive(origin, ref, file, target)
            await asyncio.to_thread(coming.replace, path)
        except BaseException:
            coming.unlink(missing_ok=True)
            raise
        return path

    async def _receive(
        self, origin: Origin, ref: ObjectRef, file: IndexFile, target: BinaryIO
    ) -> None:
        """Writes the object to `target`. TierUnavailable where it is not what it should be."""
        try:
            opened = await origin.open(ref)
        except NoSuchKey as error:
            raise VersionChanged(f"{ref.key} is gone") from error
        digest = hashlib.sha256()
        received_bytes = 0
        try:
            async for block in opened.blocks():
                received_bytes += len(block)
                if received_bytes > file.size_bytes:
                    break
                await asyncio.to_thread(_take, target, digest.update, block)
        finally:
            await opened.close()
        if (received_bytes, digest.hexdigest()) != (file.size_bytes, file.sha256):
            self._damaged[file.sha256] = time.monotonic()
            raise TierUnavailable(f"{ref.key} is not the index its manifest names")

    def _count(self, size_bytes: int) -> None:
        self._taken_bytes += size_bytes
        self._taken(self._taken_bytes)


def _new(path: Path) -> BinaryIO:
    return path.open("wb")


def _take(target: BinaryIO, hashed: Callable[[bytes], None], block: bytes) -> None:
    hashed(block)
    target.write(block)


def _look(path: Path, file: IndexFile) -> tuple[bool, int]:
    """Whether the file is here and what it should be; what is not is removed: its bytes."""
    try:
        with path.open("rb") as found:
            digest = hashlib.file_digest(found, "sha256")
            size_bytes = os.fstat(found.fileno()).st_size
        if (size_bytes, digest.hexdigest()) == (file.size_bytes, file.sha256):
            # Of use: not to be removed at the next start.
            with suppress(OSError):
                os.utime(path)
            return True, 0
        log.error("damaged index removed", path=str(path))
        path.unlink()
    except OSError:
        return False, 0
    return False, size_bytes


def _tidy(folder: Path) -> int:
    """Bytes of the indexes that stay."""
    total = 0
    try:
        for path in folder.iterdir():
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if path.suffix != ".lmdb" or time.time() - status.st_mtime > _KEEP_SECONDS:
                path.unlink()
            else:
                total += status.st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        log.warning("the folder of indexes cannot be tidied", reason=str(error))
    return total
