"""Batches for the dataset reader: into registered memory of this process's own, and out of it as
bytes. They come as frames do, so that the reader need not know which way they took.

Memory is registered once and used again: an arena a thread, of a size that grows with what batches
turn out to need. All of them together are bounded.
"""

import io
import logging
import mmap
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from feedrack import frames
from feedrack.client import TROUBLE, Streamed
from feedrack.client import Client as HttpClient
from feedrack.errors import MemoryLost, Unavailable
from feedrack.rdma.batches import BATCH, JSON, read_table
from feedrack.rdma.link import Link
from feedrack.rdma.memory import Memory, of_buffer
from feedrack.rdma.moving import Counts, Mover
from feedrack.rdma.opening import NoRdma, Wanted, keep_for_ever, tell_of_forks
from gateway.rdma.device import VerbFailed
from gateway.rdma.wire import MEMORY_FULL_STATUS, Row

log = logging.getLogger("feedrack.rdma")

FIRST_BYTES = 32 * 1024**2
LARGEST_BYTES = 256 * 1024**2
# More threads than that wait for each other; and fewer where they are large: all of them together
# are never more than so many of the largest.
_ARENAS = 4
_LARGEST_ARENAS = 2
_BUFFER_BYTES = 256 * 1024


class Arena:
    """Memory for one batch at a time. NoRdma where there is none."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._process = os.getpid()
        try:
            self.mapped = mmap.mmap(-1, size_bytes)
        except (OSError, OverflowError) as error:
            raise NoRdma("memory", f"{size_bytes} bytes: {error}") from error
        self.memory: Memory = of_buffer(self.mapped)

    def register(self, link: Link) -> None:
        """Has it registered. NoRdma."""
        # Before its children lack it.
        tell_of_forks(self)
        try:
            self.memory.locate(link.opened())
            # A child has no use for it, and before Linux 5.12 a parent that writes to its memory
            # after a fork would write to another page than the device knows.
            self.mapped.madvise(mmap.MADV_DONTFORK)
        except (VerbFailed, OSError) as error:
            raise NoRdma("memory", f"{self.size_bytes} bytes: {error}") from error

    def forked(self) -> None:
        """Called in a child, where something else may come to lie where it lay: to let go of it
        would unmap that."""
        keep_for_ever(self.mapped)

    def take(self, row: Row) -> bytes:
        """A copy of an object. NoRdma in a child, which lacks it."""
        if self._process != os.getpid():
            raise NoRdma("memory", "the memory is the parent's")
        return self.mapped[row.offset : row.offset + row.length]

    def close(self) -> None:
        """Ends its registration; the memory goes with whoever holds it last."""
        try:
            self.memory.close()
        except MemoryLost as error:
            self.keep(error)

    def keep(self, why: MemoryLost) -> None:
        """Never gives the memory back: it may still be written to."""
        log.warning("%d bytes of memory are kept for good: %s", self.size_bytes, why)
        keep_for_ever(self.mapped)


class Arenas:
    """All arenas of one reader in one process, for its threads."""

    def __init__(self, first_bytes: int, largest_bytes: int) -> None:
        self.largest_bytes = largest_bytes
        self.free: list[Arena] = []
        self.locked_bytes = 0
        self._size_bytes = first_bytes
        self._count = 0
        self._process = os.getpid()
        self._changed = threading.Condition()

    def take(self) -> Arena:
        """One that is free, or a new one where there may be more. Else waits. NoRdma."""
        most_bytes = _LARGEST_ARENAS * self.largest_bytes
        with self._changed:
            while True:
                for arena in [one for one in self.free if one.size_bytes < self._size_bytes]:
                    self.free.remove(arena)
                    self._end(arena)
                    # There is room for others, should this thread find none for itself.
                    self._changed.notify_all()
                if self.free:
                    return self.free.pop()
                if self._count < _ARENAS and self.locked_bytes + self._size_bytes <= most_bytes:
                    arena = Arena(self._size_bytes)
                    self._count += 1
                    self.locked_bytes += arena.size_bytes
                    return arena
                self._changed.wait()

    def give_back(self, arena: Arena) -> None:
        """Leaves it to the next. In a child, which has neither it nor a lock that is sure to be
        free, nothing."""
        if self._process == os.getpid():
            with self._changed:
                self.free.append(arena)
                # All of them: where sizes differ, what one cannot use another may.
                self._changed.notify_all()

    def lose(self, arena: Arena, why: MemoryLost) -> None:
        """Has it be nobody's any more."""
        with self._changed:
            arena.keep(why)
            self._count -= 1
            self.locked_bytes -= arena.size_bytes
            self._changed.notify_all()

    def grow(self, size_bytes: int) -> None:
        """What did not fit in so much is to have more next time."""
        with self._changed:
            self._size_bytes = max(self._size_bytes, min(self.largest_bytes, 2 * size_bytes))

    def close(self) -> None:
        """Ends those that are free."""
        with self._changed:
            while self.free:
                self._end(self.free.pop())
            self._changed.notify_all()

    def _end(self, arena: Arena) -> None:
        arena.close()
        self._count -= 1
        self.locked_bytes -= arena.size_bytes


class BatchReader:
    """Batches of one client by RDMA. For any number of threads; after a fork a child begins anew.

    Hosts without a device are no surprise here, and are not told of. `Trouble`: why a batch does
    not come this way."""

    Trouble = NoRdma

    def __init__(
        self,
        http: HttpClient,
        *,
        first_bytes: int = FIRST_BYTES,
        largest_bytes: int = LARGEST_BYTES,
    ) -> None:
        self._first_bytes = first_bytes
        self._largest_bytes = largest_bytes
        self._link = Link(http, Wanted())
        self._mover = Mover(http, self._link, quiet=frozenset(("no-verbs", "no-device")))
        self._begin()
        tell_of_forks(self)

    def forked(self) -> None:
        """Called in a child, whose parent keeps device and memory."""
        self._link.forked()
        self._mover.forked()
        self._begin()

    def _begin(self) -> None:
        self._arenas = Arenas(self._first_bytes, self._largest_bytes)

    @property
    def counts(self) -> Counts:
        """What was done in this process until now."""
        return self._mover.counts

    def read(
        self, keys: Sequence[str], ranges: Sequence[str | None] | None
    ) -> Iterator[frames.Frame]:
        """A frame for each object that comes by RDMA, or in the answer that declines it, in any
        number of requests; what does not is the caller's to ask for.

        Raises NoRdma, whose reason the next request is to tell (`fall_back`), and what is wrong
        with all of them."""
        # Before memory is made for it.
        self._link.opened()
        left: Sequence[int] = range(len(keys))
        while left:
            with self._arena() as arena:
                rows = yield from self._ask(arena, keys, ranges, left)
                for index, row in zip(left, rows, strict=False):
                    if row.status != MEMORY_FULL_STATUS:
                        yield _frame(index, row, arena)
            still = [
                index
                for index, row in zip(left, rows, strict=False)
                if row.status == MEMORY_FULL_STATUS
            ]
            if still:
                self._arenas.grow(arena.size_bytes)
            if len(still) == len(left) and arena.size_bytes >= self._largest_bytes:
                raise NoRdma("memory", f"an object is larger than {arena.size_bytes} bytes")
            left = still

    def fall_back(self, trouble: NoRdma) -> dict[str, str]:
        """Counts a request that goes over HTTP; the headers that tell the gateway, where this host
        has RDMA at all."""
        told = self._mover.fall_back(trouble)
        return {} if trouble.reason in ("no-verbs", "no-device") else told

    def close(self) -> None:
        """Ends session, device and memory; the next batch makes new ones."""
        self._arenas.close()
        try:
            self._link.close()
        except MemoryLost as error:
            # Of the memory here nothing is registered any more, or it is kept for good.
            log.warning("not closed as it should be: %s", error)

    def _ask(
        self,
        arena: Arena,
        keys: Sequence[str],
        ranges: Sequence[str | None] | None,
        asked: Sequence[int],
    ) -> Generator[frames.Frame, None, list[Row]]:
        """The rows of one batch; or, declined, its frames, and no rows."""
        document = frames.encode_request(
            [keys[index] for index in asked],
            None if ranges is None else [ranges[index] for index in asked],
        )
        with self._mover.ask(
            "POST", None, arena.memory, query=BATCH, headers=JSON, body=document
        ) as moved:
            if moved.size_bytes is not None:
                return read_table(moved.streamed, len(asked), moved.size_bytes)
            try:
                for frame in _declined(moved.streamed, len(asked)):
                    yield frame._replace(position=asked[frame.position])
            except (*TROUBLE, frames.FramesBroken, Unavailable) as error:
                raise NoRdma("gateway", f"declined, and not to be had: {error!r}") from error
            self._mover.fall_back(NoRdma("gateway", "the gateway declined"))
            return []

    @contextmanager
    def _arena(self) -> Iterator[Arena]:
        """Memory that is registered, until the end of the `with`. NoRdma."""
        arenas = self._arenas
        arena = arenas.take()
        try:
            arena.register(self._link)
            yield arena
        except MemoryLost as error:
            arenas.lose(arena, error)
            raise NoRdma("transfer", f"the memory is lost: {error}") from error
        except BaseException:
            arenas.give_back(arena)
            raise
        else:
            arenas.give_back(arena)


def _declined(streamed: Streamed, count: int) -> Iterator[frames.Frame]:
    if streamed.headers.get("content-type") != frames.CONTENT_TYPE:
        raise Unavailable("the endpoint answers no batches")
    body = io.BufferedReader(streamed.body, _BUFFER_BYTES)
    yield from frames.read_frames(body.read, count)
    # The end of the body too, so that the connection can be used again.
    if body.read(1):
        raise frames.FramesBroken("more after the last frame")


def _frame(position: int, row: Row, arena: Arena) -> frames.Frame:
    about = b""
    if row.status >= 300:
        about = msgspec.json.encode({"code": row.code, "message": row.message})
    return frames.Frame(position, row.status, about, arena.take(row))
