"""The S3 port: it listens, counts its connections, and lets go of them."""

import asyncio
import ssl

from gateway.auth.sigv4 import Authenticator
from gateway.config import Config, parse_listen
from gateway.errors import S3Error
from gateway.s3.answer import Answer
from gateway.s3.connection import Connection
from gateway.s3.endpoint import Endpoint
from gateway.s3.entry import Entry
from gateway.s3.held import HeldEndpoint
from gateway.s3.lanes import LongLane
from gateway.s3.long_lane import Lanes
from gateway.s3.parting import FAREWELL_SECONDS
from gateway.s3.record import Recorder
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestReporter

# Of the clients turned away, how many at a time are told why.
_EXPLAINED = 256
_BACKLOG = 1024


class S3Server:
    """Listens on `config.s3.listen` and answers S3.

    `start` binds; `drain` ends what is in flight and takes nothing new; `close` ends everything.
    """

    def __init__(
        self,
        config: Config,
        service: ObjectService,
        authenticator: Authenticator,
        metrics: Metrics,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = config.s3.limits
        self.metrics = metrics
        self._config = config
        recorder = Recorder(config.node.id, RequestReporter(metrics, config.log))
        entry = Entry(config.s3, authenticator, service.bucket)
        self.held = HeldEndpoint(entry, service.held, recorder, metrics)
        self._endpoint = Endpoint(config, service, entry, recorder, metrics)
        self._lanes: Lanes | None = None
        self._ssl_context = ssl_context
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        self._draining = False
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        """The port bound, which the configuration may leave to the system."""
        assert self._listener is not None  # noqa: S101 - before start there is no port
        return int(self._listener.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Binds and begins to answer. OSError where the address is taken."""
        host, port = parse_listen(self._config.s3.listen, "s3.listen")
        loop = asyncio.get_running_loop()
        timeout = self.limits.header_timeout_seconds or None
        self._lanes = Lanes(
            self._endpoint, header_bytes=self.limits.header_bytes, leaving=lambda: self._draining
        )
        self._listener = await loop.create_server(
            lambda: Connection(self, loop),
            host,
            port,
            ssl=self._ssl_context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=timeout if self._ssl_context is not None else None,
            ssl_shutdown_timeout=FAREWELL_SECONDS if self._ssl_context is not None else None,
        )
        self._sweeper = asyncio.create_task(self._sweep())

    async def drain(self, timeout: float | None = None) -> None:
        """Takes no new connection, answers what is in flight, closes.

        `timeout` in seconds, the configured one unless given; what lasts longer is cut.
        """
        if timeout is None:
            timeout = self.limits.drain_timeout_seconds
        self._draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.depart()
        if self._connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._empty.wait()
            except TimeoutError:
                self._cut()

    async def close(self) -> None:
        """Ends everything at once; after `drain` there is nothing left to end."""
        self._draining = True
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        tasks = list(self._lanes.tasks) if self._lanes is not None else []
        tasks += [sent for each in self._connections if (sent := each.sending) is not None]
        self._cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What a connection asks of its gate

    @property
    def explains(self) -> bool:
        return len(self._turned_away) <= _EXPLAINED

    def enter(self, connection: Connection) -> bool:
        if len(self._connections) >= self.limits.connections or self._draining:
            self._turned_away.add(connection)
            return False
        self._connections.add(connection)
        self.metrics.connections.set(len(self._connections))
        return True

    def leave(self, connection: Connection) -> None:
        self._turned_away.discard(connection)
        self._connections.discard(connection)
        self.metrics.connections.set(len(self._connections))
        if not self._connections:
            self._empty.set()

    def refuse(self, failure: S3Error, remote: str) -> Answer:
        return self._endpoint.refuse(failure, remote)

    def long_lane(self, connection: Connection) -> LongLane:
        assert self._lanes is not None  # noqa: S101 - there is a connection
        return self._lanes.make(connection)

    @property
    def leaving(self) -> bool:
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
