"""A queue pair with what is under way on it, and the promise that makes it safe: memory handed to a
line comes back once, and only when the device is through with it.

A piece is given back when its completion has come, whether it succeeded or not. A line fails as a
whole: the first piece that goes wrong, or a word from above, moves the queue pair to the error
state, in which the device gives up what is left. What has not come back then after a while comes
back when the queue pair is destroyed; where even that fails its memory is lost, and nobody else's.
"""

import asyncio
import itertools
from collections.abc import Callable

import structlog

from gateway.rdma.device import Device, Pair, VerbFailed

log = structlog.get_logger()

# ibv_wc_status: IBV_WC_WR_FLUSH_ERR, given up because of another one's failure.
FLUSHED = 5
# How long a failed queue pair may take to give up what is under way.
_SETTLE_SECONDS = 5.0
_MEANINGS = {
    FLUSHED: "given up",
    4: "local protection",
    9: "the peer's queue pair lets nobody in",
    10: "the peer's memory is not what the token says",
    12: "the peer does not answer",
    13: "the peer is not ready",
}


class LineFailed(Exception):  # noqa: N818 - named as the other refusals are
    """The queue pair is of no use any more; the message says why."""


class Completions:
    """Hands a device's completions to whoever waits for them, on the event loop. `on_failure` is
    told once that none will come any more."""

    def __init__(self, device: Device, *, on_failure: Callable[[str], None]) -> None:
        self._device = device
        self._on_failure = on_failure
        self._numbers = itertools.count(1)
        self._expected: dict[int, Callable[[int], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(device.descriptor, self._take)

    def expect(self, done: Callable[[int], None]) -> int:
        """The number for a work request whose status `done` is to hear."""
        number = next(self._numbers)
        self._expected[number] = done
        return number

    def forget(self, number: int) -> None:
        """Whatever becomes of it, nobody is told."""
        self._expected.pop(number, None)

    def close(self) -> None:
        self._loop.remove_reader(self._device.descriptor)

    def _take(self) -> None:
        try:
            found = self._device.completions()
        except VerbFailed as error:
            log.exception("no completions", device=self._device.name)
            self.close()
            self._on_failure(str(error))
            return
        for completion in found:
            done = self._expected.pop(completion.work, None)
            if done is not None:
                done(completion.status)


class Piece:
    """One work request under way. `over` tells how it ended: None, or what went wrong."""

    __slots__ = ("_keeps", "_kept", "_release", "over")

    def __init__(self, release: Callable[[], None], *, keeps: bool) -> None:
        self._release = release
        # Whether its memory is the caller's to release once it has succeeded.
        self._keeps = keeps
        self._kept = False
        self.over: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def abandon(self) -> None:
        """Nobody wants what it reads: its memory is released as soon as that is possible."""
        self._keeps = False
        if self._kept:
            self._kept = False
            self._release()

    def end(self, trouble: str | None, *, lost: bool = False) -> None:
        """It is over. `lost`: the device may still touch its memory, so nobody ever has it."""
        if self._keeps and trouble is None:
            self._kept = True
        elif not lost:
            self._release()
        self.over.set_result(trouble)


class Line:
    """One connected queue pair. `depth` pieces may be under way; `on_failure` is told why it ended.

    `release` of a piece is called once, as soon as its memory is the caller's again.
    """

    def __init__(
        self,
        completions: Completions,
        pair: Pair,
        depth: int,
        *,
        on_failure: Callable[[str], None],
        settle_seconds: float = _SETTLE_SECONDS,
    ) -> None:
        self._completions = completions
        self._pair = pair
        self._slots = asyncio.Semaphore(depth)
        self._on_failure = on_failure
        self._settle_seconds = settle_seconds
        self._under_way: dict[int, Piece] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._settling: asyncio.Task[None] | None = None
        # Why it is over; None while it is not.
        self.failure: str | None = None

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    @property
    def over(self) -> bool:
        """Whether it has failed and everything has come back."""
        return self._settling is not None and self._settling.done()

    async def write(
        self,
        address: int,
        size_bytes: int,
        lkey: int,
        *,
        to: int,
        rkey: int,
        release: Callable[[], None],
    ) -> Piece:
        """Begins to WRITE local memory to the peer's at `to`. LineFailed, with the memory released,
        where it cannot begin."""
        return await self._begin(
            lambda work: self._pair.write(work, address, size_bytes, lkey, to=to, rkey=rkey),
            Piece(release, keeps=False),
        )

    async def read(
        self,
        address: int,
        size_bytes: int,
        lkey: int,
        *,
        source: int,
        rkey: int,
        release: Callable[[], None],
    ) -> Piece:
        """Begins to READ the peer's memory at `source` into local memory, as `write`. Where it
        succeeds the memory is its caller's to release, or to `abandon`."""
        return await self._begin(
            lambda work: self._pair.read(work, address, size_bytes, lkey, source=source, rkey=rkey),
            Piece(release, keeps=True),
        )

    async def knock(self) -> Piece:
        """Sends an empty WRITE, which tells whether the peer is still there. LineFailed."""
        return await self._begin(
            lambda work: self._pair.write(work, 0, 0, 0, to=0, rkey=0),
            Piece(lambda: None, keeps=False),
        )

    def fail(self, reason: str) -> None:
        """Ends it for this reason; all that is under way comes back. Once is enough."""
        if self.failure is not None:
            return
        self.failure = reason
        try:
            self._pair.fail()
        except VerbFailed as error:
            log.warning("a queue pair stays as it is until it is destroyed", reason=str(error))
        self._settling = asyncio.create_task(self._settle())
        self._on_failure(reason)

    async def close(self) -> None:
        """Ends it, and returns once nothing is under way."""
        self.fail("closed")
        await self.settled()

    async def settled(self) -> None:
        """Returns once everything has come back after a failure; at once while there is none."""
        if self._settling is not None:
            await asyncio.shield(self._settling)

    async def _begin(self, post: Callable[[int], None], piece: Piece) -> Piece:
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            piece.end("cancelled")
            raise
        if self.failure is not None:
            self._slots.release()
            piece.end(self.failure)
            raise LineFailed(self.failure)
        number = self._completions.expect(lambda status: self._done(number, status))
        self._under_way[number] = piece
        self._empty.clear()
        try:
            post(number)
        except VerbFailed as error:
            self._completions.forget(number)
            self.fail(str(error))
            self._end(number, self.failure)
            raise LineFailed(str(error)) from error
        return piece

    def _done(self, number: int, status: int) -> None:
        if status:
            self.fail(f"{_MEANINGS.get(status, 'the device refused')} (status {status})")
        # What was given up with another one has to say why that one failed.
        self._end(number, self.failure if status else None)

    def _end(self, number: int, trouble: str | None, *, lost: bool = False) -> None:
        piece = self._under_way.pop(number)
        if not self._under_way:
            self._empty.set()
        self._slots.release()
        piece.end(trouble, lost=lost)

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(self._settle_seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("a device held on to memory until its queue pair was destroyed")
        finally:
            lost = False
            try:
                self._pair.close()
            except VerbFailed as error:
                lost = True
                log.error("a queue pair cannot be destroyed", reason=str(error))  # noqa: TRY400
            for number in list(self._under_way):
                self._completions.forget(number)
                self._end(number, self.failure, lost=lost)
