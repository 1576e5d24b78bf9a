"""This node as a member: it joins, renews its lease, follows the stream of changes, and leaves.

docs/coherence.md says why it holds. In short: what a node remembers it may trust until
`trusted_until()`, a moment on its own monotonic clock, counted from before its last renewal was
sent. Nothing here compares two nodes' clocks, and Redis's own is not asked.

A *session* is one membership: one incarnation, in one process of Redis. If Redis is another process
than it was (restarted, failed over), every session ends, and a new one begins with waiting until no
lease of the old ones can stand: `quiet_until`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from msgspec.structs import replace

from gateway.cluster.changes import Run, Watch
from gateway.cluster.entering import Joined, join
from gateway.cluster.following import Following
from gateway.cluster.members import Member, Members, encode_member
from gateway.cluster.scripts import LEAVE, RENEW, UPDATE
from gateway.cluster.session import (
    DOUBT_SECONDS,
    MARGIN,
    Claimed,
    Expelled,
    Hindered,
    Mark,
    Memory,
    Session,
    keys,
)
from gateway.config import ClusterConfig
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link, Word

_PAUSE_SECONDS = 0.2
# How long a node stays away that could not take note of changes in time.
_HINDERED_SECONDS = 10.0
# How often those are looked after that a write waits for.
_HASTE_SECONDS = 0.25
# How many others each member keeps an eye on: those next to it by id.
_WATCHED = 2

log = structlog.get_logger()


class Membership:
    """Keeps this node a member for as long as it runs. `on_trust` hears until when what is
    remembered may be believed, each time that changes; 0: not at all. `tell` gives what others may
    want to see of this node, as JSON."""

    def __init__(
        self,
        link: Link,
        config: ClusterConfig,
        members: Members,
        memory: Memory,
        *,
        on_trust: Callable[[float], None] = lambda _: None,
        tell: Callable[[], bytes] = lambda: b"{}",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._config = config
        self._member: Member | None = None
        self._members = members
        self._folder_token = ""
        self._mark: Mark | None = None
        self._on_trust = on_trust
        self._tell = tell
        self.now = now
        self.following = Following(link, members, memory, patience_seconds=config.lease_seconds)
        self._watch = Watch(config.lease_seconds * (1 + MARGIN))
        self.session: Session | None = None
        self._joined = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._leaving = False

    # For the rest of the node
    @property
    def mark(self) -> Mark | None:
        """How far this node has followed."""
        return self.following.mark or self._mark

    def trusted_until(self) -> float:
        """Until when what this node remembers may be trusted; in the past while it may not."""
        session = self.session
        if session is None or not session.ready or session.lost:
            return 0.0
        if not session.established and self.now() < session.quiet_until:
            return 0.0
        return session.until

    async def start(
        self, member: Member, *, folder_token: str = "", mark: Mark | None = None
    ) -> None:
        """Joins, and stays. Claimed: another node of this id is alive. Without Redis the node
        serves as it may, and joins once it can.

        `mark`: how far this node had followed when it last ran. `folder_token` names the folder
        that it has to itself: an earlier run with the same is known to be over."""
        self._member, self._folder_token, self._mark = member, folder_token, mark
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay())
        await asyncio.wait((self._first,), timeout=3 * self._config.lease_seconds)
        if self._first.done():
            self._first.result()
        else:
            # The node serves by now: whatever comes of it is not said here any more.
            self._first = None
            log.warning("not a member yet", reason="Redis does not answer")

    async def close(self) -> None:
        """Leaves, so that nobody waits for this node's lease to end."""
        self._leaving = True
        task, self._task = self._task, None
        if task is not None:
            await _ended(task)
        session = self.session
        if session is not None and not session.lost:
            self._lose(session, "left")
            try:
                await self._end_membership(session.run, "")
            except CoordinatorUnavailable as error:
                log.warning("membership not ended", reason=str(error))

    async def joined(self) -> Session:
        """The session, once there is one whose lease stands."""
        while True:
            session = self.session
            if session is not None and not session.lost and self.now() < session.until:
                return session
            self._joined.clear()
            await self._joined.wait()

    async def update(self, **changed: Any) -> None:
        """Tells the others something else of this node. CoordinatorUnavailable."""
        if self._member is not None:
            self._member = replace(self._member, **changed)
        session = self.session
        here = self._members.here()
        if session is None or here is None:
            return
        member = replace(here, **changed)
        await self._link.script(
            UPDATE,
            keys(self._link, session.run),
            [*session.run, encode_member(member), self._config.changes_kept],
        )

    async def told(self) -> dict[str, bytes]:
        """What each member last told of itself, by id. CoordinatorUnavailable."""
        flat = await self._link.command("HGETALL", self._link.key("told"))
        pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
        return {id_.decode(): raw for id_, raw in pairs}

    def hasten(self) -> None:
        """A write waits: those it waits for are looked after sooner."""
        self._hurry.set()

    # Joining
    async def _stay(self) -> None:
        while True:
            try:
                await self._be_member()
            except Hindered as error:
                log.error("not a member", reason=str(error))  # noqa: TRY400
                await self._stand_aside()
            except CoordinatorUnavailable as error:
                log.info("not a member", reason=str(error))
            except Claimed as error:
                if self._first is not None and not self._first.done():
                    self._first.set_exception(error)
                    return
                log.error("not a member", reason=str(error))  # noqa: TRY400
            except asyncio.CancelledError:
                raise
            except Exception:  # a bug must not end the membership for good
                log.exception("membership failed")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _stand_aside(self) -> None:
        """Is no member for a while, so that nobody waits for what this node cannot do."""
        if self.session is not None:
            with suppress(CoordinatorUnavailable):
                await self._end_membership(self.session.run, "")
        await asyncio.sleep(_HINDERED_SECONDS)

    async def _be_member(self) -> None:
        assert self._member is not None  # noqa: S101 - set by `start`
        mark = self.following.mark or self._mark
        joined = await join(self._link, self._config, self._member, self._folder_token, self.now)
        await self._check_shape(joined)
        session = self.session = joined.session
        self._mark = mark
        self.following.begin(joined)
        renewing = asyncio.create_task(self._renew(session))
        try:
            await self.following.catch_up(session, joined, mark)
            session.ready = True
            self._tell_trust()
            self._joined.set()
            log.info("member", node=session.run.id, members=len(joined.members))
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
            following = asyncio.create_task(self.following.follow(session))
            try:
                await asyncio.wait((renewing, following), return_when=asyncio.FIRST_COMPLETED)
                for task in (renewing, following):
                    if task.done():
                        task.result()
            finally:
                await _ended(following)
        finally:
            await _ended(renewing)
            if not self._leaving:
                self._lose(session, "lost")

    async def _check_shape(self, joined: Joined) -> None:
        """What the members hold must be cut alike, or none could have it from another. Claimed."""
        me = joined.session.run
        here = next(each for each in joined.members if each.id == me.id)
        for other in joined.members:
            if other.shape != here.shape:
                await self._end_membership(me, "")
                raise Claimed(
                    f"cache.chunk_size and cache.small_object_limit are {here.shape} bytes here, "
                    f"and {other.shape} on {other.id!r}: all nodes of a cluster need the same"
                )

    # Staying
    async def _renew(self, session: Session) -> None:
        while not session.lost:
            await self._renew_once(session)
            await self._until_due()

    async def _until_due(self) -> None:
        """Returns when the lease is to be renewed; sooner where a write has been waiting for a
        while: a renewal tells who else renews."""
        due = self.now() + self._config.renew_seconds
        while (left := due - self.now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._hurry.wait()
            except TimeoutError:
                return
            self._hurry.clear()
            await asyncio.sleep(min(_HASTE_SECONDS, left))
            if self.following.missing():
                self._hurry.set()
                return

    async def _renew_once(self, session: Session) -> None:
        watched = self._watched(session.run)
        sent = self.now()
        quiet = session.established or sent >= session.quiet_until
        try:
            answer = await self._link.script(
                RENEW,
                keys(self._link, session.run),
                [*session.run, 1 if quiet else 0, self._tell(), *(run.id for run in watched)],
                replicas=self._config.redis_replicas,
            )
        except CoordinatorUnavailable as error:
            log.info("lease not renewed", reason=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        if answer[0] != b"renewed" or answer[1].decode() != session.process:
            raise Expelled("this membership has been ended")
        session.until = sent + self._config.lease_seconds
        session.established = quiet
        self._tell_trust()
        self._joined.set()
        self._watch.forget_others(set(watched))
        for run, count in zip(watched, answer[2], strict=True):
            if self._watch.saw(run, int(count), self.now()):
                log.warning("member gone", member=run.id)
                await self._end_membership(run, count.decode())

    def _watched(self, me: Run) -> list[Run]:
        """Those that are waited for, and the next ones by id."""
        others = sorted(self.following.picture.runs() - {me})
        if self._watch.suspects(self.now()):
            # Where one is gone, all that share its rack or its switch may be.
            return others
        after = [run for run in others if run.id > me.id]
        ring = (after + others)[:_WATCHED]
        return list(dict.fromkeys([*(self.following.missing() - {me}), *ring]))

    async def _end_membership(self, run: Run, renewals: str) -> None:
        kept, prefix = self._config.changes_kept, self._link.key("")
        words: list[Word] = [*run, renewals, kept, prefix, DOUBT_SECONDS]
        await self._link.script(LEAVE, keys(self._link, run), words)

    # Ends
    def _lose(self, session: Session, why: str) -> None:
        """From here on nothing that is remembered is trusted."""
        session.lost = True
        self._on_trust(0.0)
        self.following.end()
        log.info("membership over", node=session.run.id, why=why)

    def _tell_trust(self) -> None:
        self._on_trust(self.trusted_until())


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels a task until it has ended, whatever it ends with. Once is not enough: the client of
    Redis sends by `asyncio.wait_for`, which in Python 3.11 loses a cancellation now and then."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_PAUSE_SECONDS)
    await asyncio.gather(task, return_exceptions=True)
