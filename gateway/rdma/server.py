"""This node's side of RDMA: its device, its buffers, and the sessions of its clients."""

import asyncio
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from gateway.config import RdmaConfig
from gateway.errors import TierUnavailable
from gateway.rdma import verbs
from gateway.rdma.buffers import BufferPool, Share
from gateway.rdma.device import Device, RdmaUnavailable, VerbFailed
from gateway.rdma.lines import Completions, Line, LineFailed
from gateway.rdma.mapped import MappedFiles
from gateway.rdma.sessions import Session, SessionTable, TooManySessions, party
from gateway.rdma.token import BadToken, Token
from gateway.rdma.transfers import Transfer
from gateway.rdma.wire import PairAddress, Prepared
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger()

# How often sessions are looked after; after how long at rest a client is to give a sign of life.
_SWEEP_SECONDS = 1.0
_KNOCK_SECONDS = 15.0

# Of each tenant's addresses so many at a time are asked for the way to them, and none for a while
# after one that could not be had: it costs the link, and the kernel's table of neighbours, whatever
# anybody names.
_ASKED_AT_ONCE = 4
_PENALTY_SECONDS = 10.0

OpenDevice = Callable[[str | None, int | None, int | None], Device]


class RdmaServer:
    """Queue pairs for tenants, and transfers over them. Without a device it declines all."""

    def __init__(
        self,
        config: RdmaConfig,
        metrics: Metrics,
        *,
        open_device: OpenDevice = verbs.open_device,
        now: Callable[[], float] = time.monotonic,
        sweep_seconds: float = _SWEEP_SECONDS,
        knock_seconds: float = _KNOCK_SECONDS,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._open_device = open_device
        self._now = now
        self._sweep_seconds = sweep_seconds
        self._device: Device | None = None
        self._pool: BufferPool | None = None
        self._files: MappedFiles | None = None
        self._completions: Completions | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._knocks: set[asyncio.Task[None]] = set()
        self._lines: set[Line] = set()
        self._shares: dict[str, Share] = {}
        # Tenants whose last connection failed, and until when they are not listened to.
        self._not_before: dict[str, float] = {}
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._table = SessionTable(
            most=config.sessions,
            most_per_tenant=config.sessions_per_tenant,
            idle_seconds=config.idle_seconds,
            knock_seconds=knock_seconds,
        )
        # Why there is none; None while there is.
        self.reason: str | None = "not started"

    async def start(self) -> None:
        """Opens the device, or says once that there is none. TierUnavailable where it must be."""
        config = self._config
        if config.mode == "off":
            self.reason = "switched off"
            return
        try:
            device = await asyncio.to_thread(
                self._open_device, config.device, config.port, config.gid_index
            )
            self._device = device
            self._pool = await asyncio.to_thread(BufferPool, device, config.buffers)
            self._files = MappedFiles(device, config.mapped)
        except (RdmaUnavailable, VerbFailed) as error:
            self.reason = str(error)
            if self._device is not None:
                self._device.close()
                self._device = None
            if config.mode == "required":
                raise TierUnavailable(f"rdma.mode is required: {self.reason}") from error
            log.info("no rdma", reason=self.reason)
            return
        self.reason = None
        self._table.most = min(config.sessions, device.max_completions // config.depth)
        self._completions = Completions(device, on_failure=self._lost)
        self._sweeper = asyncio.create_task(self._sweep())
        log.info("rdma", device=device.name, buffers=self._pool.count)

    @property
    def available(self) -> bool:
        """Whether sessions can be had."""
        return self.reason is None

    @property
    def buffers_free(self) -> int:
        """How many buffers nobody has."""
        return self._pool.free if self._pool is not None else 0

    def sessions_of(self, tenant: str) -> int:
        """How many sessions a tenant has."""
        return self._table.count(tenant)

    async def prepare(self, tenant: str, peer: PairAddress) -> Prepared:
        """A session whose queue pair expects `peer`, once there is a way to it. TooManySessions,
        VerbFailed, RdmaUnavailable."""
        device, _ = self._usable()
        self._check_peer(tenant, peer)
        with self._table.place(tenant, peer):
            self._lines = {line for line in self._lines if not line.over}
            under_way = (len(self._lines) + self._table.places) * self._config.depth
            if under_way > device.max_completions:
                raise TooManySessions("the device's completion queue has no room for one more")
            await self._reach(device, tenant, peer)
        # Much may have been while it was looked for.
        self._check_peer(tenant, peer)
        return self._connect(tenant, peer)

    async def _reach(self, device: Device, tenant: str, peer: PairAddress) -> None:
        turn = self._turns.setdefault(tenant, asyncio.Semaphore(_ASKED_AT_ONCE))
        async with turn:
            self._check_listening(tenant)
            try:
                await device.reach(peer)
            except VerbFailed:
                self._not_before[tenant] = self._now() + _PENALTY_SECONDS
                raise
        # Where it cannot be found out whether there is a way, connecting is what takes a second.
        self._check_listening(tenant)

    def _connect(self, tenant: str, peer: PairAddress) -> Prepared:
        device, completions = self._usable()
        depth = self._config.depth
        pair = device.pair(depth=depth, remote=False)
        try:
            # Both ends mark packets as this node's operator says.
            marks = self._config.traffic_class
            pair.connect(replace(peer, traffic_class=marks))
        except VerbFailed:
            pair.close()
            self._not_before[tenant] = self._now() + _PENALTY_SECONDS
            raise
        line = Line(completions, pair, depth, on_failure=lambda why: self._ended(session, why))
        session = Session(tenant, line, peer, self._now())
        self._lines.add(line)
        self._table.add(session)
        self._metrics.rdma_sessions.set(len(self._table))
        address = replace(pair.address, traffic_class=marks)
        return Prepared(session.id, address, self._config.idle_seconds)

    def ready(self, tenant: str, id_: str) -> bool:
        """The client's end is there; False where there is no such session of the tenant's."""
        session = self._table.find(id_, tenant)
        if session is None:
            return False
        session.state = "ready"
        session.since = self._now()
        return True

    def cancel(self, tenant: str, id_: str) -> None:
        """Ends a session of the tenant's; none is no error."""
        session = self._table.find(id_, tenant)
        if session is not None:
            session.line.fail("cancelled")

    def claim(
        self, tenant: str, token: Token, *, timeout_seconds: float | None = None
    ) -> Transfer | None:
        """The transfer that the token stands for; None where this node has no such session of the
        tenant's. It may rest for `timeout_seconds`, or as configured. BadToken where it was used
        before."""
        session, pool, files = self._table.find(token.session, tenant), self._pool, self._files
        if session is None or pool is None or files is None or session.state != "ready":
            return None
        if not session.used.use(token.sequence):
            raise BadToken("its number was used before")
        share = self._shares.get(party(tenant))
        if share is None:
            # However many take all they may, there is as much left for one more.
            share = Share(pool, lambda: max(1, pool.count // (self._table.parties + 1)))
            self._shares[party(tenant)] = share
        session.transfers += 1

        def over() -> None:
            session.transfers -= 1
            session.since = self._now()

        return Transfer(
            session,
            token,
            share,
            files,
            timeout_seconds=timeout_seconds or self._config.transfer_timeout_seconds,
            on_end=over,
        )

    async def close(self) -> None:
        """Ends all sessions, and returns once the device is through with everything."""
        # Who waits for a way is to begin nothing any more.
        self.reason = "closed"
        if self._sweeper is not None:
            for task in (self._sweeper, *self._knocks):
                task.cancel()
            await asyncio.gather(self._sweeper, *self._knocks, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in list(self._lines)))
        if self._completions is not None:
            self._completions.close()
        for each in (self._files, self._pool, self._device):
            try:
                if each is not None:
                    each.close()
            except VerbFailed as error:
                # The process ends, and the kernel lets go of what is left.
                log.error("rdma is not closed as it should be", reason=str(error))  # noqa: TRY400
        self._device = None

    def _usable(self) -> tuple[Device, Completions]:
        device, completions = self._device, self._completions
        if device is None or completions is None or self.reason is not None:
            raise RdmaUnavailable(self.reason or "there is no device")
        return device, completions

    def _check_listening(self, tenant: str) -> None:
        if self._now() < self._not_before.get(tenant, 0.0):
            raise TooManySessions(f"{tenant} could not be connected a moment ago")

    def _check_peer(self, tenant: str, peer: PairAddress) -> None:
        """Nothing where the address is no other tenant's, to whom these packets would go. A client
        that has its own again has lost the session. TooManySessions."""
        for session in self._table:
            if not session.peer.is_same_pair(peer):
                continue
            if session.tenant != tenant:
                raise TooManySessions("that queue pair has a session already")
            session.line.fail("replaced")
        if any(other != tenant for other in self._table.having(peer)):
            raise TooManySessions("another's session to that queue pair is being prepared")

    def _lost(self, reason: str) -> None:
        """The device tells of nothing any more: everything goes over HTTP."""
        self.reason = reason
        for line in list(self._lines):
            line.fail("the device is lost")

    def _ended(self, session: Session, reason: str) -> None:
        if session.state != "ended":
            self._table.remove(session)
            self._metrics.rdma_sessions.set(len(self._table))
            self._metrics.rdma_sessions_ended.labels(_kind(reason)).inc()
            log.info("rdma session ended", tenant=session.tenant, reason=reason)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            now = self._now()
            for session, reason in self._table.overdue(now):
                session.line.fail(reason)
            for session in self._table.resting(now):
                session.knocked = now
                task = asyncio.create_task(_knock(session, self._config.transfer_timeout_seconds))
                self._knocks.add(task)
                task.add_done_callback(self._knocks.discard)
            self._metrics.rdma_buffers_free.set(self.buffers_free)
            if self._files is not None:
                try:
                    self._files.tidy()
                except VerbFailed as error:
                    log.warning("a chunk file stays registered", reason=str(error))
                self._metrics.rdma_mapped_bytes.set(self._files.held_bytes)


async def _knock(session: Session, timeout_seconds: float) -> None:
    """Asks a client for a sign of life; its line fails where there is none."""
    try:
        piece = await session.line.knock()
    except LineFailed:
        return
    await asyncio.wait((piece.over,), timeout=timeout_seconds)
    if not piece.over.done():
        session.line.fail("no sign of life")


def _kind(reason: str) -> str:
    """The reason as a label: one of few."""
    known = ("never ready", "not used", "cancelled", "closed", "no sign of life", "replaced")
    return reason if reason in known else "failed"
