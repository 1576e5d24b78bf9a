"""Making a change known before it happens, and over once it has.

    change = changes.begin(refs)     at once; the announcement is on its way
    await change.settled()           every member has stopped trusting these keys
    ... the origin makes it visible ...
    await change.confirm()           that still stands: the client may be answered
    change.end()                     at once; they may be trusted again

What must not become visible before `settled` is the caller's to hold back. If the membership ends
in between, `settled` and `confirm` announce the change again in the next one.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.cluster.changes import encode_refs
from gateway.cluster.membership import Membership
from gateway.cluster.scripts import APPEND
from gateway.cluster.session import Session, keys
from gateway.config import ClusterConfig
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link, Word
from gateway.model.objects import ObjectRef

# Leases that a write waits for, at the most, in all; then it is refused.
_PATIENCE_LEASES = 3.0
_PAUSE_SECONDS = 0.2
_FAREWELL_SECONDS = 1.0
_AT_ONCE = 256

# A session, kind, number and keys; and who waits for it to be appended.
_Waiting = tuple[Session, str, int, bytes, asyncio.Future[None]]

log = structlog.get_logger()


class Change(Protocol):
    """One write of some keys, as the cluster sees it."""

    async def settled(self) -> None:
        """Returns once no member trusts what it remembers of the keys. CoordinatorUnavailable."""
        ...

    async def confirm(self) -> None:
        """Returns once that holds for whoever is a member now. CoordinatorUnavailable."""
        ...

    def end(self, *, after_seconds: float = 0.0) -> None:
        """It is over, or will be by then. Safe to call twice."""
        ...


class Changes(Protocol):
    """Where writes are made known."""

    def begin(self, refs: Sequence[ObjectRef]) -> Change: ...

    async def close(self) -> None:
        """Returns once what has ended is known to be over, as far as that can be told."""
        ...


class Unshared:
    """A node without others: there is nobody to tell."""

    def begin(self, refs: Sequence[ObjectRef]) -> "Unshared":  # noqa: ARG002 - as its protocol has it
        return self

    async def settled(self) -> None:
        pass

    async def confirm(self) -> None:
        pass

    def end(self, *, after_seconds: float = 0.0) -> None:
        pass

    async def close(self) -> None:
        pass


class SharedChanges:
    """Changes over a membership. `took` hears how many seconds each took to settle."""

    def __init__(
        self,
        link: Link,
        config: ClusterConfig,
        membership: Membership,
        *,
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._took = took
        self._link = link
        self._config = config
        self.membership = membership
        self._numbers = itertools.count(1)
        self._queue: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        membership.following.on_stray = lambda session, number: self.end(session, number, 0.0)
        self.patience_seconds = config.lease_seconds * _PATIENCE_LEASES

    def begin(self, refs: Sequence[ObjectRef]) -> "SharedChange":
        return SharedChange(self, encode_refs(refs))

    async def announce(self, raw: bytes) -> tuple[Session, int]:
        """Appends a begin and waits until it has settled: in which session, by which number.
        CoordinatorUnavailable."""
        begun = self.membership.now()
        session = await self.membership.joined()
        number = next(self._numbers)
        settled = self.membership.following.expect(number)
        self.membership.hasten()
        try:
            await self._append(session, "begin", number, raw)
            await settled
            left = 0.0 if session.established else session.quiet_until - self.membership.now()
            if left > 0:
                # Some node may still hold a lease of which this Redis does not know.
                await asyncio.sleep(left)
        except BaseException:
            self.membership.following.give_up(number)
            self.end(session, number, 0.0)
            raise
        self._took(self.membership.now() - begun)
        return session, number

    def stands(self, session: Session) -> bool:
        """Whether a session is still the membership, as far as can be known: none of its changes
        has been taken for abandoned."""
        return not session.lost and self.membership.now() < session.until

    def end(self, session: Session, number: int, after_seconds: float) -> None:
        task = asyncio.create_task(self._end(session, number, after_seconds))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        # What is in doubt stays so for the others: leaving abandons it.
        if self._ending:
            await asyncio.wait(self._ending, timeout=_FAREWELL_SECONDS)
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _end(self, session: Session, number: int, after_seconds: float) -> None:
        if after_seconds:
            await asyncio.sleep(after_seconds)
        while not session.lost:
            try:
                await self._append(session, "end", number, b"")
            except CoordinatorUnavailable as error:
                log.debug("end of a change not told yet", reason=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    async def _append(self, session: Session, kind: str, number: int, raw: bytes) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((session, kind, number, raw, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        await future

    async def _send(self) -> None:
        """Appends what waits, as many at a time as there are, in their order."""
        try:
            while self._queue:
                session = self._queue[0][0]
                taken: list[_Waiting] = []
                while self._queue and len(taken) < _AT_ONCE and self._queue[0][0] is session:
                    taken.append(self._queue.pop(0))
                error = await self._send_these(session, taken)
                for *_, future in taken:
                    if future.done():
                        continue
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)
        finally:
            self._sending = None

    async def _send_these(
        self,
        session: Session,
        taken: Sequence[_Waiting],
    ) -> CoordinatorUnavailable | None:
        words: list[Word] = [*session.run, session.process, self._config.changes_kept]
        for _, kind, number, raw, _ in taken:
            words += [kind, number, raw]
        try:
            answer = await self._link.script(
                APPEND,
                keys(self._link, session.run),
                words,
                replicas=self._config.redis_replicas,
            )
        except CoordinatorUnavailable as error:
            return error
        if answer[0] != b"appended":
            return CoordinatorUnavailable("this membership has been ended")
        return None


class SharedChange:
    """A change that the members are told of."""

    def __init__(self, changes: SharedChanges, raw: bytes) -> None:
        self._changes = changes
        self._raw = raw
        self._over = False
        self._announced: tuple[Session, int] | None = None
        self._task: asyncio.Task[None] | None = self._begin()

    async def settled(self) -> None:
        try:
            async with asyncio.timeout(self._changes.patience_seconds):
                await self._settle()
        except TimeoutError as late:
            raise _late() from late

    async def _settle(self) -> None:
        while True:
            if self._task is None:
                self._task = self._begin()
            task = self._task
            # Several may wait, and one that leaves takes the announcement from nobody.
            await asyncio.shield(task)
            if self._announced is not None and self._changes.stands(self._announced[0]):
                return
            self._task = None

    async def confirm(self) -> None:
        announced = self._announced
        if announced is not None and self._changes.stands(announced[0]):
            return
        try:
            async with asyncio.timeout(self._changes.patience_seconds):
                session = await self._changes.membership.joined()
                if announced is None or session is not announced[0]:
                    self._task = None
                    await self._settle()
        except TimeoutError as late:
            raise _late() from late

    def end(self, *, after_seconds: float = 0.0) -> None:
        if self._over:
            return
        self._over = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
        if self._announced is not None:
            self._changes.end(*self._announced, after_seconds)

    def _begin(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._announce())
        # A write that fails for another reason does not ask what became of it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _announce(self) -> None:
        try:
            async with asyncio.timeout(self._changes.patience_seconds):
                while True:
                    try:
                        before = self._announced
                        self._announced = await self._changes.announce(self._raw)
                    except CoordinatorUnavailable as error:
                        log.info("change not announced", reason=str(error))
                        await asyncio.sleep(_PAUSE_SECONDS)
                    else:
                        if before is not None:
                            self._changes.end(*before, 0.0)
                        return
        except TimeoutError as late:
            raise _late() from late


def _late() -> CoordinatorUnavailable:
    return CoordinatorUnavailable(
        "the other nodes cannot be told of this write now: please try again"
    )
