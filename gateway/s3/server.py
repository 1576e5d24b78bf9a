"""The S3 port: it counts its connections, looks after their time, and lets go of them."""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.auth.sigv4 import Authenticator
from gateway.config import Config, LimitsConfig
from gateway.errors import S3Error
from gateway.rdma.server import RdmaServer
from gateway.s3.answer import Answer
from gateway.s3.connection import Connection
from gateway.s3.doors import Door
from gateway.s3.endpoint import Endpoint
from gateway.s3.entry import Entry
from gateway.s3.held import HeldEndpoint
from gateway.s3.lanes import Gate, LaneMaker, LongLane
from gateway.s3.long_lane import Lanes
from gateway.s3.rdma import RdmaFace
from gateway.s3.record import Recorder
from gateway.s3.refusals import Refusals
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestReporter

# Of the clients turned away, how many at a time are told why.
_EXPLAINED = 256


class S3Server:
    """Answers S3 to the clients that come in by `door`: what is `held` at once, everything else
    by one of `lanes`. `refuse` answers what never became a request. `connect` makes connections of
    another kind, `count` is told how many there are in place of the metrics.

    `drain` ends what is in flight and takes nothing new; `close` ends everything.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        metrics: Metrics,
        *,
        door: Door,
        held: HeldEndpoint,
        lanes: LaneMaker,
        refuse: Callable[[S3Error, str], Answer],
        connect: Callable[[Gate, asyncio.AbstractEventLoop], Connection] = Connection,
        count: Callable[[int], None] | None = None,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.held = held
        self.refuse = refuse
        self._door = door
        self._lanes = lanes
        self._connect = connect
        self._count = count or metrics.connections.set
        self._elsewhere = elsewhere
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        self._draining = False
        self._leaving = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self) -> None:
        """Begins to answer. OSError where the address is taken."""
        loop = asyncio.get_running_loop()
        await self._door.open(lambda: self._connect(self, loop))
        self._sweeper = asyncio.create_task(self._sweep())

    async def retire(self) -> None:
        """Takes no new connection, ends each with its next answer, and returns when all have
        ended; those that ask nothing last until their timeout."""
        self._leaving = True
        self._door.close()
        await self._empty.wait()

    async def drain(self, timeout: float | None = None) -> None:
        """Takes no new connection, answers what is in flight, closes.

        `timeout` in seconds, the configured one unless given; what lasts longer is cut.
        """
        if timeout is None:
            timeout = self.limits.drain_timeout_seconds
        self._draining = self._leaving = True
        self._door.close()
        for connection in list(self._connections):
            connection.depart()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            self._cut()

    async def close(self) -> None:
        """Ends everything at once; after `drain` there is nothing left to end."""
        self._draining = self._leaving = True
        self._door.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        tasks = [sent for each in self._connections if (sent := each.sending) is not None]
        self._cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lanes.close()

    # What a connection asks of its gate

    def _is_full(self) -> bool:
        return len(self._connections) + self._elsewhere() >= self.limits.connections

    @property
    def explains(self) -> bool:
        return len(self._turned_away) <= _EXPLAINED

    def enter(self, connection: Connection) -> bool:
        if self._draining or self._is_full():
            self._turned_away.add(connection)
            return False
        self._connections.add(connection)
        self._empty.clear()
        self._count(len(self._connections))
        return True

    def leave(self, connection: Connection) -> None:
        self._turned_away.discard(connection)
        self._connections.discard(connection)
        self._count(len(self._connections))
        if not self._connections:
            self._empty.set()

    def long_lane(self, connection: Connection) -> LongLane:
        return self._lanes.make(connection)

    @property
    def leaving(self) -> bool:
        return self._leaving

    @property
    def draining(self) -> bool:
        return self._draining

    def _cut(self) -> None:
        for connection in [*self._connections, *self._turned_away]:
            connection.abort()

    async def _sweep(self) -> None:
        limits = self.limits
        timeouts = (
            limits.header_timeout_seconds,
            limits.idle_timeout_seconds,
            limits.write_timeout_seconds,
        )
        shortest = min((seconds for seconds in timeouts if seconds), default=20.0)
        pause = min(5.0, max(0.02, shortest / 4))
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self._connections):
                connection.sweep(now)


def object_server(
    config: Config,
    service: ObjectService,
    authenticator: Authenticator,
    metrics: Metrics,
    *,
    past_packs: ObjectService,
    rdma: RdmaServer,
    door: Door,
    limits: LimitsConfig | None = None,
    **kind: Any,
) -> S3Server:
    """A server of everything `service` has, and `past_packs` to those who ask so; `limits` in place
    of the configured ones, `kind` as `S3Server` takes it."""
    recorder = Recorder(config.node.id, RequestReporter(metrics, config.log))
    entry = Entry(config.s3, authenticator, service.bucket)
    face = RdmaFace(rdma, metrics)
    endpoint = Endpoint(config, service, past_packs, entry, recorder, metrics, face)
    return S3Server(
        limits or config.s3.limits,
        metrics,
        door=door,
        held=HeldEndpoint(entry, service.held, recorder, metrics),
        lanes=Lanes(endpoint, header_bytes=config.s3.limits.header_bytes),
        refuse=Refusals(recorder).refuse,
        **kind,
    )
