"""Memory that fills receive into: pieces of one pool, in it again once nobody looks at them.

A piece may be looked at from many places at once: the disk's thread sums and writes it, readers
send slices of it to their clients. Whoever holds a view keeps the piece; the last one to let go
gives it back, without knowing. So a view can be handed on without a copy, and no piece is ever
filled anew under somebody's eyes.

Pages are worth keeping: a fresh one costs more than what is received into it.
"""

import asyncio
import ctypes
import mmap
from collections import deque
from itertools import count
from typing import Protocol
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

# Private, since shared pages cost a third more; populated by one fault instead of one each.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
# Free pieces kept for the next fills; more go back to the system.
_KEPT_BYTES = 32 * 1024**2


class Piece:
    """A piece in the hands of a fill; `memory` is None once the pool has taken it back."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: memoryview) -> None:
        self.memory: memoryview | None = memory


class Holder(Protocol):
    """Somebody who has pieces that could be spare soon."""

    def hurry(self) -> None:
        """Memory is short: see to it."""
        ...


class Pieces:
    """The pool. Taken from on the event loop; given back to from any thread."""

    def __init__(self, limit_bytes: int, piece_bytes: int) -> None:
        self.piece_bytes = piece_bytes
        self._limit = max(1, limit_bytes // piece_bytes)
        self._kept = max(1, _KEPT_BYTES // piece_bytes)
        self._array = ctypes.c_char * piece_bytes
        self._free: list[mmap.mmap] = []
        # One entry a piece that is out, kept for its callback.
        self._lent: dict[int, ReferenceType[ctypes.Array[ctypes.c_char]]] = {}
        self._numbers = count()
        self._spare: WeakKeyDictionary[Piece, None] = WeakKeyDictionary()
        self._unwanted: WeakKeyDictionary[Piece, None] = WeakKeyDictionary()
        self._lazy: WeakSet[Holder] = WeakSet()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def lent_bytes(self) -> int:
        """What is out now."""
        return len(self._lent) * self.piece_bytes

    @property
    def ample(self) -> bool:
        """Whether a view may be held for as long as its holder likes: at least half is left."""
        return 2 * len(self._lent) <= self._limit

    async def take(self) -> memoryview:
        """A whole piece, page-aligned, of whatever content; waits for one, in turn."""
        if not self._waiting:
            memory = self.take_now()
            if memory is not None:
                return memory
        while self._lazy:
            self._lazy.pop().hurry()
        self._loop = asyncio.get_running_loop()
        turn = self._loop.create_future()
        self._waiting.append(turn)
        while True:
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._call_next()
                raise
            memory = self.take_now()
            if memory is not None:
                # There may be more than this one.
                self._call_next()
                return memory
            turn = self._loop.create_future()
            self._waiting.appendleft(turn)

    def take_now(self) -> memoryview | None:
        """A piece, or None where all are in use."""
        # What nobody reads any more goes first, the last of it first: its pages are the warmest.
        while not self._free and self._unwanted:
            self._take_back(self._unwanted.popitem()[0])
        if not self._free and len(self._lent) < self._limit:
            self._free.append(mmap.mmap(-1, self.piece_bytes, flags=_FLAGS))
        while not self._free and self._spare:
            self._take_back(next(iter(self._spare)))
        return self._lend(self._free.pop()) if self._free else None

    def put_off(self, holder: Holder) -> None:
        """Tells that `holder` takes its time; it hears when memory is short."""
        self._lazy.add(holder)

    def spare(self, piece: Piece, *, wanted: bool = True) -> None:
        """Tells that the piece may be taken back in need: its bytes are elsewhere too. `wanted`
        False: and nobody is going to read them here."""
        if piece.memory is None:
            return
        if wanted:
            self._spare[piece] = None
        else:
            self._spare.pop(piece, None)
            self._unwanted[piece] = None
        if self._waiting:
            self._call_next()

    def _take_back(self, piece: Piece) -> None:
        """It is free once the last view of it is gone, which may be now."""
        self._spare.pop(piece, None)
        piece.memory = None

    def _lend(self, pages: mmap.mmap) -> memoryview:
        number = next(self._numbers)
        lease = self._array.from_buffer(pages)
        # Every view of the memory, and every slice of one, keeps the lease alive.
        self._lent[number] = ref(lease, lambda _: self._back(number, pages))
        return memoryview(lease).cast("B")

    def _back(self, number: int, pages: mmap.mmap) -> None:
        del self._lent[number]
        if len(self._free) < self._kept:
            self._free.append(pages)
        if self._waiting and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call_next)

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
