"""A queue pair with what is under way on it, and the promise that makes it safe: memory handed to a
line comes back once, and only when the device is through with it.

A piece is given back when its completion has come, whether it succeeded or not. A line fails as a
whole: the first piece that goes wrong, or a word from above, moves the queue pair to the error
state, in which the device gives up what is left. What has not come back then after a while comes
back when the queue pair is destroyed.
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
    """Hands a device's completions to whoever waits for them, on the event loop."""

    def __init__(self, device: Device) -> None:
        self._device = device
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
            # Each transfer ends by its own time.
            log.exception("no completions", device=self._device.name, reason=str(error))
            self.close()
            return
        for completion in found:
            done = self._expected.pop(completion.work, None)
            if done is not None:
                done(completion.status)


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
        self._under_way: dict[int, Callable[[int], None]] = {}
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
    ) -> asyncio.Future[str | None]:
        """Begins to WRITE local memory to the peer's at `to`. The future tells when it is there:
        None, or what went wrong. LineFailed, with the memory released, where it cannot begin."""
        return await self._begin(
            lambda work: self._pair.write(work, address, size_bytes, lkey, to=to, rkey=rkey),
            release,
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
    ) -> asyncio.Future[str | None]:
        """Begins to READ the peer's memory at `source` into local memory, as `write`. `release`
        comes with the failure; what was read is its caller's to release, unless the future was
        cancelled before."""
        return await self._begin(
            lambda work: self._pair.read(work, address, size_bytes, lkey, source=source, rkey=rkey),
            release,
            keeps=True,
        )

    async def knock(self) -> asyncio.Future[str | None]:
        """Sends an empty WRITE, which tells whether the peer is still there. LineFailed."""
        return await self._begin(
            lambda work: self._pair.write(work, 0, 0, 0, to=0, rkey=0), lambda: None
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

    async def _begin(
        self, post: Callable[[int], None], release: Callable[[], None], *, keeps: bool = False
    ) -> asyncio.Future[str | None]:
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            release()
            raise
        if self.failure is not None:
            self._slots.release()
            release()
            raise LineFailed(self.failure)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(status: int) -> None:
            self._under_way.pop(number, None)
            if not self._under_way:
                self._empty.set()
            self._slots.release()
            if not keeps or status or future.done():
                release()
            trouble = _trouble(status)
            if trouble is not None:
                self.fail(trouble)
            if not future.done():
                # What a flushed piece has to say is why the line failed.
                future.set_result(self.failure if trouble is not None else None)

        number = self._completions.expect(done)
        self._under_way[number] = done
        self._empty.clear()
        try:
            post(number)
        except VerbFailed as error:
            self._completions.forget(number)
            done(FLUSHED)
            raise LineFailed(str(error)) from error
        return future

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(self._settle_seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("a device held on to memory until its queue pair was destroyed")
        finally:
            self._pair.close()
            for number, done in list(self._under_way.items()):
                self._completions.forget(number)
                done(FLUSHED)


def _trouble(status: int) -> str | None:
    if status == 0:
        return None
    return f"{_MEANINGS.get(status, 'the device refused')} (status {status})"
