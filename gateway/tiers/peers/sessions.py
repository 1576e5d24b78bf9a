"""Queue pairs into which other nodes write what this one asks them for: one for each node.

Nobody waits for one: it is connected behind the first request that would have had use of it, kept
as long as the node is a member, and connected anew after a while when it broke.
"""

import asyncio
import itertools
import time
from collections.abc import Callable

import msgspec
import structlog

from gateway.cluster.members import Member, Members
from gateway.errors import TierUnavailable
from gateway.rdma.device import Pair, VerbFailed, end_pair
from gateway.rdma.targets import Target, TargetMemory
from gateway.rdma.token import Token, render_token
from gateway.rdma.wire import DOCUMENT_BYTES, Prepare, Prepared
from gateway.rdma.wire import Session as Named
from gateway.tiers.peers.asking import RDMA_PATH
from gateway.tiers.peers.client import PeerClient

_WHAT = "rdma"
# How long a node whose session broke is asked over HTTP alone; doubled each time it breaks again.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_CANCEL_SECONDS = 1.0

log = structlog.get_logger()


class PeerSession:
    """This node's end of a connection to one run of another."""

    def __init__(self, member: Member, pair: Pair, id_: str) -> None:
        self.member = member
        self.id = id_
        self.over = False
        self._ended = False
        self._pair = pair
        self._numbers = itertools.count()

    def token(self, target: Target, size_bytes: int) -> str:
        """The right to write so many bytes into a buffer, once."""
        region = target.region
        return render_token(
            Token(self.id, next(self._numbers), region.address, size_bytes, region.rkey)
        )

    def end(self) -> bool:
        """Whether from here on nothing of the other's comes in. Safe twice."""
        if not self.over:
            self.over = True
            self._ended = _ended(self._pair)
        return self._ended


class PeerSessions:
    """The sessions with all nodes. `now` is a monotonic clock in seconds."""

    def __init__(
        self,
        client: PeerClient,
        members: Members,
        *,
        now: Callable[[], float] = time.monotonic,
        first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
    ) -> None:
        self._client = client
        self._members = members
        self._now = now
        self._first_pause_seconds = first_pause_seconds
        self._sessions: dict[str, PeerSession] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        # How often in a row a node's session broke, and until when it is left alone.
        self._broken: dict[str, tuple[int, float]] = {}
        self._closed = False
        members.on_change.append(self._end_leavers)

    def of(self, member: Member, memory: TargetMemory) -> PeerSession | None:
        """The session with a member, if there is one by now; else it may come to be."""
        session = self._sessions.get(member.id)
        if session is not None and _same_run(session.member, member):
            return session
        if not self._closed and member.id not in self._connecting and not self.pausing(member):
            task = asyncio.create_task(self._connect(member, memory))
            self._connecting[member.id] = task
            task.add_done_callback(lambda _: self._connecting.pop(member.id, None))
        return None

    def pausing(self, member: Member) -> bool:
        """Whether it is left alone, since its session broke or could not be had."""
        return self._now() < self._broken.get(member.id, (0, 0.0))[1]

    def proved(self, session: PeerSession) -> None:
        """Bytes came through it as they should."""
        self._broken.pop(session.member.id, None)

    def broke(self, session: PeerSession) -> bool:
        """It is of no use any more. Whether from here on nothing comes in by it. Safe twice."""
        if not session.over:
            self._forget(session)
            self._pause(session.member)
            log.info("rdma session with a peer ended", peer=session.member.id)
        return session.end()

    async def close(self) -> None:
        """Ends all, and tells the other nodes, who need not answer."""
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        sessions = list(self._sessions.values())
        # They are to let go of it first; but whatever they do, it ends here.
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await asyncio.gather(*(self._cancel(each) for each in sessions))
        except TimeoutError:
            log.debug("not every node was told of the end of its session")
        finally:
            for session in sessions:
                self._forget(session)

    async def _connect(self, member: Member, memory: TargetMemory) -> None:
        old = self._sessions.get(member.id)
        if old is not None:
            self._forget(old)
        try:
            pair = memory.pair()
        except VerbFailed as error:
            self._not_connected(member, error)
            return
        try:
            prepared = await self._prepare(member, pair)
            await memory.reach(prepared.address)
            pair.connect(prepared.address)
            await self._ready(member, prepared)
        except (TierUnavailable, VerbFailed, _NotConnected) as error:
            _ended(pair)
            self._not_connected(member, error)
        except Exception as error:  # a bug must not be met again with every request
            _ended(pair)
            self._not_connected(member, error)
            log.exception("connecting to a peer failed", peer=member.id)
        except BaseException:
            _ended(pair)
            raise
        else:
            session = PeerSession(member, pair, prepared.session)
            self._sessions[member.id] = session
            # It may have left meanwhile.
            self._end_leavers()
            log.info("rdma session with a peer", peer=member.id)

    async def _prepare(self, member: Member, pair: Pair) -> Prepared:
        status, body = await self._step(member, "prepare", Prepare(pair.address))
        if status != 200:
            raise _NotConnected(f"it has answered {status}")
        try:
            return msgspec.json.decode(body, type=Prepared)
        except (msgspec.MsgspecError, ValueError) as error:
            raise _NotConnected("its answer cannot be read") from error

    async def _ready(self, member: Member, prepared: Prepared) -> None:
        status, _ = await self._step(member, "ready", Named(prepared.session))
        if status != 200:
            raise _NotConnected(f"it has answered {status}")

    async def _step(
        self, member: Member, step: str, document: Prepare | Named
    ) -> tuple[int, bytes]:
        return await self._client.ask_whole(
            member,
            f"{RDMA_PATH}{step}",
            what=_WHAT,
            method="POST",
            body=msgspec.json.encode(document),
            limit_bytes=DOCUMENT_BYTES * 4,
        )

    async def _cancel(self, session: PeerSession) -> None:
        try:
            await self._step(session.member, "cancel", Named(session.id))
        except TierUnavailable as error:
            log.debug("a node was not told of the end of its session", reason=str(error))

    def _not_connected(self, member: Member, why: Exception) -> None:
        self._pause(member)
        log.info("no rdma session with a peer", peer=member.id, reason=str(why))

    def _pause(self, member: Member) -> None:
        times, _ = self._broken.get(member.id, (0, 0.0))
        pause = min(self._first_pause_seconds * 2.0 ** min(times, 32), _LONGEST_PAUSE_SECONDS)
        self._broken[member.id] = (times + 1, self._now() + pause)

    def _forget(self, session: PeerSession) -> None:
        if self._sessions.get(session.member.id) is session:
            del self._sessions[session.member.id]
        session.end()

    def _end_leavers(self) -> None:
        for session in list(self._sessions.values()):
            member = self._members.get(session.member.id)
            if member is None or not _same_run(session.member, member):
                self._forget(session)
        for id_ in [id_ for id_ in self._broken if self._members.get(id_) is None]:
            del self._broken[id_]


class _NotConnected(Exception):  # noqa: N818 - named as the other refusals are
    """The other node does not take part; the message says how."""


def _ended(pair: Pair) -> bool:
    """Whether a queue pair lets nothing in from here on."""
    try:
        end_pair(pair)
    except VerbFailed as error:
        log.error("a queue pair cannot be ended", reason=str(error))  # noqa: TRY400
        return False
    return True


def _same_run(one: Member, other: Member) -> bool:
    return one.incarnation == other.incarnation and one.peers == other.peers
