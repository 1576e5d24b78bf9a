"""Asks other nodes for spans whose bytes are to land in registered memory, by RDMA.

Whether they do is the other node's to say: an answer that carries its bytes is taken as ever. A
buffer that was named in a request is lent until the proven answer says that nothing is under way to
it; where no such answer comes, its session is ended first, since the other node may still write.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from gateway.cluster.members import Member, Members
from gateway.config import RdmaConfig
from gateway.rdma import verbs
from gateway.rdma.device import RdmaUnavailable, VerbFailed
from gateway.rdma.server import OpenDevice
from gateway.rdma.targets import LEAST_BYTES, Target, TargetMemory, target_bytes
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.asking import (
    MOVED,
    NO_SESSION,
    NOT_MOVED,
    RDMA_MOVED_BYTES,
    RDMA_REPLY,
    RDMA_TOKEN,
)
from gateway.tiers.peers.client import PeerAnswer, PeerClient, PeerFailed
from gateway.tiers.peers.sessions import PeerSession, PeerSessions
from gateway.tiers.wire import STRIDE_BYTES

# A reader that takes nothing for so long loses its buffer to who needs one, and asks again.
_REST_SECONDS = 1.0

log = structlog.get_logger()


class Moving:
    """One node's memory for what others have. The device is opened with the first request that has
    use of it, and without one everything comes over HTTP."""

    def __init__(
        self,
        config: RdmaConfig,
        chunk_bytes: int,
        client: PeerClient,
        members: Members,
        metrics: Metrics,
        *,
        open_device: OpenDevice = verbs.open_device,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._buffer_bytes = target_bytes(chunk_bytes)
        self._client = client
        self._metrics = metrics
        self._open_device = open_device
        self._now = now
        self._wanted = config.mode != "off" and config.peer_buffers > 0
        self._memory: TargetMemory | None = None
        self._opening: asyncio.Task[None] | None = None
        self._sessions = PeerSessions(client, members, now=now)
        # Requests whose askers have gone.
        self._left: set[asyncio.Task[PeerAnswer]] = set()
        # What has landed and is not all read, who was read last at the end.
        self._landed: dict[Lent, None] = {}

    @property
    def free(self) -> int:
        """How many buffers nobody has."""
        return self._memory.free if self._memory is not None else 0

    async def ask(self, member: Member, target: str, *, what: str, wanted_bytes: int) -> PeerAnswer:
        """As `PeerClient.ask`, of so many bytes. What comes by RDMA may be only the first of them,
        even less than was promised: `MovedAnswer`."""
        lent = self._lend(member, wanted_bytes)
        if lent is None:
            return await self._client.ask(member, target, what=what)
        asking = asyncio.create_task(
            self._client.ask(member, target, what=what, headers={RDMA_TOKEN: lent.token})
        )
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The session is others' as well: it is not ended for one who has no time.
            self._left.add(asking)
            asking.add_done_callback(lambda _: self._ended(lent, asking))
            raise
        except BaseException:
            self._fell_back("peer")
            lent.cut()
            raise
        return self._judged(lent, answer)

    async def close(self) -> None:
        """Ends all sessions, and then the memory."""
        self._wanted = False
        if self._opening is not None:
            await self._opening
        left = list(self._left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._sessions.close()
        memory, self._memory = self._memory, None
        if memory is not None:
            try:
                memory.close()
            except VerbFailed as error:
                # The process ends, and the kernel lets go of what is left.
                log.error("rdma memory is not closed as it should be", reason=str(error))  # noqa: TRY400

    def landed(self, lent: "Lent") -> None:
        """Bytes of it are to be read, or were just now."""
        self._landed.pop(lent, None)
        lent.used = self._now()
        self._landed[lent] = None

    def broke(self, session: PeerSession) -> bool:
        """As `PeerSessions.broke`."""
        return self._sessions.broke(session)

    def take_back(self, lent: "Lent", target: Target) -> None:
        """Nobody has the buffer any more."""
        self._landed.pop(lent, None)
        if self._memory is not None:
            self._memory.give(target)
            self._metrics.rdma_peer_buffers_free.set(self._memory.free)

    def _lend(self, member: Member, wanted_bytes: int) -> "Lent | None":
        if not self._wanted or wanted_bytes < LEAST_BYTES:
            return None
        memory = self._memory
        if memory is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
            self._fell_back("connecting" if not self._opening.done() else "no-device")
            return None
        session = self._sessions.of(member, memory)
        if session is None:
            self._fell_back("connect" if self._sessions.pausing(member) else "connecting")
            return None
        if not memory.free:
            self._reclaim()
        target = memory.take()
        if target is None:
            self._fell_back("no-buffer")
            return None
        self._metrics.rdma_peer_buffers_free.set(memory.free)
        return Lent(self, session, target, min(wanted_bytes, memory.buffer_bytes))

    def _reclaim(self) -> None:
        """Takes a buffer from the reader that has not read for longest, if that is long."""
        oldest = next(iter(self._landed), None)
        if oldest is not None and self._now() - oldest.used >= _REST_SECONDS:
            oldest.back()

    def _judged(self, lent: "Lent", answer: PeerAnswer) -> PeerAnswer:
        """The answer with its bytes, wherever they are."""
        reply = answer.headers.get(RDMA_REPLY, "")
        if reply == NOT_MOVED:
            if answer.status == 200:
                self._fell_back("declined")
            lent.back()
            return answer
        if reply == MOVED and answer.status == 200:
            told = answer.headers.get(RDMA_MOVED_BYTES, "")
            moved_bytes = int(told) if told.isascii() and told.isdigit() and len(told) < 20 else 0
            if 0 < moved_bytes <= lent.size_bytes and not answer.left_bytes:
                self._sessions.proved(lent.session)
                self.landed(lent)
                return MovedAnswer(answer, lent, moved_bytes)
        # Whatever else it says, it may be that not all is over.
        lent.cut()
        if reply == MOVED:
            answer.close()
            self._fell_back("transfer")
            raise PeerFailed(answer.member, "malformed", "it has moved what nobody asked for")
        self._fell_back("session" if reply == NO_SESSION else "transfer")
        return answer

    def _ended(self, lent: "Lent", asking: "asyncio.Task[PeerAnswer]") -> None:
        """A request is over whose asker has gone."""
        self._left.discard(asking)
        if asking.cancelled() or asking.exception() is not None:
            lent.cut()
            return
        try:
            self._judged(lent, asking.result()).close()
        except PeerFailed as error:
            log.info("a peer's answer is of no use", reason=str(error))

    async def _open(self) -> None:
        config = self._config
        try:
            device = await asyncio.to_thread(
                self._open_device, config.device, config.port, config.gid_index
            )
            self._memory = await asyncio.to_thread(
                TargetMemory, device, count=config.peer_buffers, buffer_bytes=self._buffer_bytes
            )
        except (RdmaUnavailable, VerbFailed) as error:
            log.info("no rdma from other nodes", reason=str(error))
            return
        self._metrics.rdma_peer_buffers_free.set(self._memory.free)

    def _fell_back(self, reason: str) -> None:
        self._metrics.rdma_peer_fallbacks.labels(reason).inc()


class Lent:
    """A buffer that one request has told a node of. One of `back` and `cut` must be called."""

    def __init__(
        self, moving: Moving, session: PeerSession, target: Target, size_bytes: int
    ) -> None:
        self._moving = moving
        self._target: Target | None = target
        self.session = session
        self.size_bytes = size_bytes
        self.token = session.token(target, size_bytes)
        # When it was last read from.
        self.used = 0.0

    def read_into(self, memory: memoryview, offset: int, size_bytes: int) -> bool:
        """Copies bytes of it; False where it was taken back meanwhile."""
        if self._target is None:
            return False
        memory[:size_bytes] = self._target.memory[offset : offset + size_bytes]
        self._moving.landed(self)
        return True

    def back(self) -> None:
        """Nothing is under way to it, and nobody reads it any more. Safe twice."""
        target, self._target = self._target, None
        if target is not None:
            self._moving.take_back(self, target)

    def cut(self) -> None:
        """As `back`, where something may be under way: first nothing can be any more."""
        if self._target is None:
            return
        if self._moving.broke(self.session):
            self.back()
        else:
            # Nobody's any more: what still comes must not come into another's bytes.
            self._target = None


class MovedAnswer(PeerAnswer):
    """A proven answer whose bytes, or the first of them, lie in a buffer. Whoever rests for long
    may lose the rest: it ends early then, and has to be asked for again."""

    def __init__(self, answer: PeerAnswer, lent: Lent, moved_bytes: int) -> None:
        self.member = answer.member
        self.status = answer.status
        self.headers = answer.headers
        self.left_bytes = moved_bytes
        self._memory = lent
        self._position = 0

    async def read_into(self, memory: memoryview) -> int:
        """As of any answer, but 0 also where the buffer is another's by now."""
        size_bytes = min(self.left_bytes, len(memory), STRIDE_BYTES)
        if not size_bytes or not self._memory.read_into(memory, self._position, size_bytes):
            self.left_bytes = 0
            return 0
        self._position += size_bytes
        self.left_bytes -= size_bytes
        if not self.left_bytes:
            self._memory.back()
        return size_bytes

    def close(self) -> None:
        self._memory.back()
