"""Many objects in the order they were asked for, fetched ahead of whoever takes them.

What this node holds is read when its turn is near, without waiting; everything else is asked for
while earlier objects are still on their way, so that a batch of cold objects takes as long as the
slowest of a window, not as all of them one after the other. What lies ready is bounded: by objects
and bytes for one batch, and by a budget that all batches of the node share.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.model.ranges import RangeSpec
from gateway.store.buckets import Bucket
from gateway.store.lanes import Budget
from gateway.store.reading import ReadAnswer
from gateway.store.reads import Reads

# How far ahead of the one that is taken next a batch looks.
_WINDOW_OBJECTS = 32
_WINDOW_BYTES = 16 * 1024**2
# Up to here an object is taken in whole before its turn, so that its failure can still be told.
_WHOLE_BYTES = 256 * 1024
# What an object counts for until its size is known, unless this batch has met another one.
_ASSUMED_BYTES = 512 * 1024
_LEAST_BYTES = 64 * 1024


class WantedObject(Struct, frozen=True, gc=False):
    """One object of a batch, or a range of it."""

    key: str
    range: RangeSpec | None = None


class BatchReads:
    """The answers to `wanted`, one after the other.

    `admit` raises what speaks against reading a key, before anything is looked up. `budget` is
    shared by all batches. Up to `ready_bytes` of held objects lie in memory before their turn; what
    is held further on is left where it is, and looked up once more. One taker; `close` must be
    called, and ends what is still being fetched.
    """

    def __init__(
        self,
        service: Reads,
        bucket: Bucket,
        wanted: Sequence[WantedObject],
        *,
        admit: Callable[[str], None],
        budget: Budget,
        ready_bytes: int,
        chunk_size_bytes: int,
    ) -> None:
        self._service = service
        self._held = service.held
        self._bucket = bucket
        self._wanted = wanted
        self._admit = admit
        self._budget = budget
        self._may_lie_ready_bytes = ready_bytes
        self._chunk_size_bytes = chunk_size_bytes
        # What is known of the next objects: an answer, what speaks against one, one to come, or
        # (None) that this node holds it.
        self._slots: deque[ReadAnswer | Exception | _Fetch | None] = deque()
        self._looked_at = 0
        self._ready_bytes = 0
        self._fetching_bytes = 0
        self._assumed_bytes = _ASSUMED_BYTES

    def take_now(self) -> ReadAnswer | Exception | None:
        """The next object's answer, or what speaks against one; None where it is to be waited for.

        An answer of up to 256 KiB has all its bytes (`ReadAnswer.whole`) and needs no closing; a
        larger one has begun, and is the caller's to close. IndexError after the last.
        """
        self._look_ahead()
        slots = self._slots
        slot = slots[0]
        if slot is None:
            # Held, and left where it was until its turn has come.
            slot = slots[0] = self._look(self._wanted[self._looked_at - len(slots)], due=True)
        if isinstance(slot, _Fetch):
            if not slot.task.done():
                return None
            slots.popleft()
            self._charge(slot, 0)
            return slot.task.result()
        slots.popleft()
        if isinstance(slot, ReadAnswer):
            self._ready_bytes -= slot.range.size_bytes
        return slot

    async def take(self) -> ReadAnswer | Exception:
        """As `take_now`, waiting where that has to be."""
        while (taken := self.take_now()) is None:
            fetch = self._slots[0]
            assert isinstance(fetch, _Fetch)  # noqa: S101 - all others are at hand
            # Not awaited itself: it is ended by `close`, with all others.
            await asyncio.wait((fetch.task,))
        return taken

    async def close(self) -> None:
        """Ends what is being fetched and lets go of what lies ready."""
        fetches = [slot for slot in self._slots if isinstance(slot, _Fetch)]
        self._slots.clear()
        self._looked_at = len(self._wanted)
        for fetch in fetches:
            fetch.task.cancel()
        ended = await asyncio.gather(*(each.task for each in fetches), return_exceptions=True)
        for fetch, answer in zip(fetches, ended, strict=True):
            self._charge(fetch, 0)
            if isinstance(answer, ReadAnswer):
                await answer.close()

    def _look_ahead(self) -> None:
        wanted, slots = self._wanted, self._slots
        while len(slots) < _WINDOW_OBJECTS and self._looked_at < len(wanted):
            if self._fetching_bytes and slots and not self._has_room():
                return
            slots.append(self._look(wanted[self._looked_at], due=not slots))
            self._looked_at += 1

    def _has_room(self) -> bool:
        """Whether one more may be on its way before its turn."""
        assumed = self._assumed_bytes
        return self._fetching_bytes + assumed <= _WINDOW_BYTES and self._budget.fits(assumed)

    def _look(self, wanted: WantedObject, *, due: bool) -> "ReadAnswer | Exception | _Fetch | None":
        """What comes of an object at first sight; never None where it is `due`."""
        answer = None
        try:
            self._admit(wanted.key)
            if due or self._ready_bytes < self._may_lie_ready_bytes:
                answer = self._held.get(self._bucket, wanted.key, wanted=wanted.range)
            elif self._held.holds(self._bucket, wanted.key, wanted=wanted.range):
                return None
        except Exception as error:
            return error
        if answer is None or answer.whole is None:
            return self._fetch(wanted, answer)
        answer.release()
        self._ready_bytes += answer.range.size_bytes
        return answer

    def _fetch(self, wanted: WantedObject, begun: ReadAnswer | None) -> "_Fetch":
        fetch = _Fetch()
        self._charge(fetch, self._assumed_bytes)
        fetch.task = asyncio.create_task(self._bring(fetch, wanted, begun))
        return fetch

    async def _bring(
        self, fetch: "_Fetch", wanted: WantedObject, answer: ReadAnswer | None
    ) -> ReadAnswer | Exception:
        """The answer for one object; what this node has begun to give is gone on with."""
        try:
            if answer is None:
                answer = await self._service.get(self._bucket.name, wanted.key, wanted=wanted.range)
            else:
                await answer.begin(files=False)
            size_bytes = answer.range.size_bytes
            self._assumed_bytes = max(_LEAST_BYTES, min(size_bytes, self._chunk_size_bytes))
            if fetch.charged_bytes:
                self._charge(fetch, self._assumed_bytes)
            if answer.whole is None and size_bytes <= _WHOLE_BYTES:
                # Copied: what comes in passes through memory that others use next.
                answer.whole = b"".join([bytes(block) async for block in answer.blocks()])
                await answer.close()
        except BaseException as error:
            if answer is not None:
                await answer.close()
            if isinstance(error, Exception):
                return error
            raise
        return answer

    def _charge(self, fetch: "_Fetch", size_bytes: int) -> None:
        """Counts a fetch for that much, in place of what it counted for until now."""
        before, fetch.charged_bytes = fetch.charged_bytes, size_bytes
        self._fetching_bytes += size_bytes - before
        if before:
            self._budget.ended(before)
        if size_bytes:
            self._budget.begun(size_bytes)


class _Fetch:
    """An object on its way, and what it counts for."""

    __slots__ = ("charged_bytes", "task")

    task: asyncio.Task[ReadAnswer | Exception]

    def __init__(self) -> None:
        self.charged_bytes = 0
