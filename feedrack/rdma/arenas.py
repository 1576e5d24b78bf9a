"""Batches for the dataset reader: into registered memory of this process's own, and out of it as
bytes. They come as frames do, so that the reader need not know which way they took.

Memory is registered once and used again: an arena a thread, of a size that grows with what batches
turn out to need.
"""

import io
import mmap
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from feedrack import frames
from feedrack.client import TROUBLE, Streamed
from feedrack.client import Client as HttpClient
from feedrack.errors import Unavailable
from feedrack.rdma.batches import BATCH, JSON, read_table
from feedrack.rdma.link import Link
from feedrack.rdma.memory import Memory, of_buffer
from feedrack.rdma.moving import Counts, Mover
from feedrack.rdma.opening import NoRdma, Wanted, tell_of_forks
from gateway.rdma.device import VerbFailed
from gateway.rdma.wire import MEMORY_FULL_STATUS, Row

FIRST_BYTES = 32 * 1024**2
LARGEST_BYTES = 256 * 1024**2
# More threads than that wait for each other.
_ARENAS = 4
_BUFFER_BYTES = 256 * 1024


class Arena:
    """Memory for one batch at a time."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.mapped = mmap.mmap(-1, size_bytes)
        self.memory: Memory = of_buffer(self.mapped)

    def register(self, link: Link) -> None:
        """Has it registered. NoRdma."""
        try:
            self.memory.locate(link.opened())
        except VerbFailed as error:
            raise NoRdma("memory", f"{self.size_bytes} bytes: {error}") from error
        # A child has no use for it, and before Linux 5.12 a parent that writes to its memory after
        # a fork would write to another page than the device knows.
        self.mapped.madvise(mmap.MADV_DONTFORK)

    def take(self, row: Row) -> bytes:
        """A copy of an object."""
        return self.mapped[row.offset : row.offset + row.length]

    def close(self) -> None:
        """Ends its registration; the memory goes with whoever holds it last."""
        self.memory.close()


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
        self._size_bytes = self._first_bytes
        self._free: list[Arena] = []
        self._turns = threading.Semaphore(_ARENAS)

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
                self._grow(arena.size_bytes)
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
        while self._free:
            self._free.pop().close()
        self._link.close()

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
            except (*TROUBLE, frames.FramesBroken) as error:
                raise NoRdma("gateway", f"declined, and broken off: {error!r}") from error
            self._mover.fall_back(NoRdma("gateway", "the gateway declined"))
            return []

    @contextmanager
    def _arena(self) -> Iterator[Arena]:
        """Memory that is registered, until the end of the `with`. NoRdma."""
        turns, free = self._turns, self._free
        with turns:
            arena = free.pop() if free else None
            if arena is not None and arena.size_bytes < self._size_bytes:
                arena.close()
                arena = None
            if arena is None:
                arena = Arena(self._size_bytes)
            try:
                arena.register(self._link)
                yield arena
            finally:
                free.append(arena)

    def _grow(self, size_bytes: int) -> None:
        """What did not fit in so much is to have more next time."""
        self._size_bytes = max(self._size_bytes, min(self._largest_bytes, 2 * size_bytes))


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
