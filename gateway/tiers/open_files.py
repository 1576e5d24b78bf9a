"""Open files of the cache, shared by their readers, and reads that never stall the event loop.

What lies in the page cache is read at once (`preadv2` with RWF_NOWAIT, a few microseconds), and a
file whose name does is opened at once; the rest is done by a thread. File systems without
RWF_NOWAIT always use threads.
"""

import asyncio
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from gateway.errors import TierUnavailable
from gateway.tiers.kernel import CachedOpen, unset_bytearray

_MAX_KEPT_OPEN = 4096
_READ_THREADS = 16
_WRITE_THREADS = 8
# Looked at in one go, a microsecond each.
_SLICE_FILES = 256
# From here on it costs more to clear a buffer than to get one that is not cleared.
_UNSET_BYTES = 32_768

T = TypeVar("T")


class DiskThreads:
    """Two pools, so that a burst of writes does not queue up before the reads."""

    def __init__(self) -> None:
        self._reading = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="disk-read")
        self._writing = ThreadPoolExecutor(_WRITE_THREADS, thread_name_prefix="disk-write")

    def read(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Runs in a reading thread, to its end even if the waiter is cancelled."""
        return self._submit(self._reading, function, *arguments)

    def write(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """As `read`, in a writing thread."""
        return self._submit(self._writing, function, *arguments)

    def close(self) -> None:
        """Waits for what is running."""
        self._reading.shutdown(wait=True)
        self._writing.shutdown(wait=True)

    def _submit(
        self, pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: object
    ) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def kept_open() -> int:
    """How many files may stay open that nobody uses: a quarter of the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MAX_KEPT_OPEN, soft // 4) if soft > 0 else _MAX_KEPT_OPEN


class OpenFile:
    """A descriptor and who uses it. Use between `OpenFiles.acquire` and `release` only."""

    __slots__ = ("descriptor", "name", "on_closed", "users", "wanted")

    def __init__(self, name: Hashable, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.users = 1
        self.wanted = True
        self.on_closed: list[Callable[[], None]] = []


class OpenFiles:
    """Files by the name their owner gives them; those not in use stay open while they are among
    the last few used."""

    def __init__(self, threads: DiskThreads, *, keep_open: int | None = None) -> None:
        self._threads = threads
        self._keep_open = kept_open() if keep_open is None else keep_open
        self._cached_open = CachedOpen()
        self._files: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._nowait = True

    def cached(self, name: Hashable) -> OpenFile | None:
        """The file if it is open, now used by the caller too."""
        file = self._files.get(name)
        if file is not None:
            file.users += 1
            self._files.move_to_end(name)
        return file

    def open_now(self, name: Hashable, path: Path) -> OpenFile | None:
        """As `acquire`, for reading; None where a thread is needed, or no descriptor is left."""
        try:
            descriptor = self._cached_open.open(str(path))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return None
            raise
        return None if descriptor is None else self._enter(name, descriptor)

    async def acquire(self, name: Hashable, path: Path, flags: int = os.O_RDONLY) -> OpenFile:
        """The file, opened if need be. OSError where it cannot be; TierUnavailable where the
        process has no descriptor left. One name is always opened with the same flags."""
        file = self.cached(name)
        if file is not None:
            return file
        opening = self._threads.read(os.open, path, flags | os.O_CLOEXEC, 0o600)
        try:
            descriptor = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_result)
            raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise TierUnavailable("no file descriptor is left") from error
            raise
        file = self.cached(name)
        if file is not None:
            os.close(descriptor)
            return file
        if not os.fstat(descriptor).st_nlink:
            # Removed, and `drop` told so, while a thread opened it.
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._enter(name, descriptor)

    def release(self, file: OpenFile) -> None:
        """Ends one use."""
        file.users -= 1
        if file.users == 0:
            if not file.wanted:
                self._close(file)
            else:
                self._shrink()

    def rename(self, old: Hashable, new: Hashable) -> None:
        """Tells that a file goes by another name now, which no other file has."""
        file = self._files.pop(old, None)
        if file is not None:
            self.drop(new)
            file.name = new
            self._files[new] = file

    def drop(self, name: Hashable, on_closed: Callable[[], None] | None = None) -> None:
        """Lets go of a file that was removed; `on_closed` once nobody has it open any more."""
        file = self._files.pop(name, None)
        if file is None:
            if on_closed is not None:
                on_closed()
            return
        if on_closed is not None:
            file.on_closed.append(on_closed)
        file.wanted = False
        if file.users == 0:
            self._close(file)

    def close(self) -> None:
        """Closes what is not in use, and the rest as soon as it is not."""
        for name in list(self._files):
            self.drop(name)

    def close_idle(self) -> None:
        """Closes what is not in use: what others removed then leaves the disk."""
        for name in [name for name, file in self._files.items() if file.users == 0]:
            self.drop(name)

    async def drop_removed(self) -> None:
        """Lets go of what another process removed, so that its blocks become free."""
        for number, (name, file) in enumerate(list(self._files.items()), 1):
            if number % _SLICE_FILES == 0:
                await asyncio.sleep(0)
            if self._files.get(name) is file and not os.fstat(file.descriptor).st_nlink:
                self.drop(name, _nothing)

    def read_now(self, file: OpenFile, offset: int, size_bytes: int) -> bytearray | None:
        """`size_bytes` from `offset`, where all of them are in the page cache. OSError."""
        if not self._nowait:
            return None
        block = bytearray(size_bytes) if size_bytes < _UNSET_BYTES else unset_bytearray(size_bytes)
        try:
            if os.preadv(file.descriptor, (block,), offset, os.RWF_NOWAIT) == size_bytes:
                return block
        except BlockingIOError:
            pass  # Not in the page cache.
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._nowait = False
        return None

    async def read(self, file: OpenFile, offset: int, size_bytes: int) -> bytearray | bytes:
        """`size_bytes` from `offset`, fewer only at the file's end. OSError."""
        block = self.read_now(file, offset, size_bytes)
        if block is not None:
            return block
        return await self.read_in_thread(file, offset, size_bytes)

    async def read_in_thread(self, file: OpenFile, offset: int, size_bytes: int) -> bytes:
        """As `read`, of what is known not to be in the page cache."""
        return await self.run(file, _read_fully, file.descriptor, offset, size_bytes)

    async def run(self, file: OpenFile, function: Callable[..., T], *arguments: object) -> T:
        """Runs a reading function in a thread; the file stays open until it is through, even if
        the waiter is cancelled."""
        file.users += 1
        future = self._threads.read(function, *arguments)
        future.add_done_callback(lambda _: self.release(file))
        return await asyncio.shield(future)

    def _enter(self, name: Hashable, descriptor: int) -> OpenFile:
        file = self._files[name] = OpenFile(name, descriptor)
        self._shrink()
        return file

    def _shrink(self) -> None:
        excess = len(self._files) - self._keep_open
        if excess <= 0:
            return
        idle = (name for name, file in self._files.items() if file.users == 0)
        for name in list(islice(idle, excess)):
            self.drop(name)

    def _close(self, file: OpenFile) -> None:
        if not file.on_closed:
            os.close(file.descriptor)
            return
        # The last close of a removed file frees its blocks, which takes a while.
        closing = self._threads.write(os.close, file.descriptor)
        for call in file.on_closed:
            closing.add_done_callback(_then(call))


def _nothing() -> None:
    """For who does not want to hear of it, but must not close a removed file here and now."""


def _then(call: Callable[[], None]) -> Callable[[object], None]:
    return lambda _: call()


def _read_fully(descriptor: int, offset: int, size_bytes: int) -> bytes:
    block = os.pread(descriptor, size_bytes, offset)
    if len(block) == size_bytes or not block:
        return block
    pieces = [block]
    got = len(block)
    while got < size_bytes:
        block = os.pread(descriptor, size_bytes - got, offset + got)
        if not block:
            break
        pieces.append(block)
        got += len(block)
    return b"".join(pieces)


def _close_result(opening: "asyncio.Future[int]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())
