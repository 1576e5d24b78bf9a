"""The S3 port: aiohttp's low-level server around the endpoint.

The low-level server is used, not `web.Application`: routing is `route.match`'s work, and an
application costs as much again as the rest of a request.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from typing import Any, cast

from aiohttp import web

from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.config import Config, parse_listen
from gateway.errors import IncompleteBody, S3Error, TierUnavailable
from gateway.s3.answer import Answer
from gateway.s3.call import ClientGoneError
from gateway.s3.connection import Connection
from gateway.s3.endpoint import Endpoint
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics

# An unread body up to this size is read and dropped, so that the connection can be used again.
_DRAINED_BYTES = 256 * 1024
# How long a larger one is listened to before the connection closes, so that the answer is read.
_LINGER_SECONDS = 2.0
# Of the clients turned away, how many at a time are told why.
_EXPLAINED = 256
_BACKLOG = 1024
_NO_BODY = frozenset((204, 304))


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
        self._endpoint = Endpoint(config, service, authenticator, metrics)
        self._ssl_context = ssl_context
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
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
        self._listener = await loop.create_server(
            _Protocols(self),
            host,
            port,
            ssl=self._ssl_context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=timeout if self._ssl_context is not None else None,
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
        self._cut()
        tasks = list(self._tasks)
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

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request of one connection."""
        exchange = _HttpExchange(request, self)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - aiohttp runs every request in a task
        self._tasks.add(task)
        try:
            await self._endpoint.serve(exchange)
        finally:
            self._tasks.discard(task)
        return exchange.response

    @property
    def draining(self) -> bool:
        return self._draining

    def _cut(self) -> None:
        for connection in [*self._connections, *self._turned_away]:
            connection.abort()

    async def _sweep(self) -> None:
        limits = self.limits
        timeouts = (limits.header_timeout_seconds, limits.write_timeout_seconds)
        shortest = min((seconds for seconds in timeouts if seconds), default=20.0)
        pause = min(5.0, max(0.02, shortest / 4))
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for connection in list(self._connections):
                connection.sweep(now)


class _Protocols(web.Server):
    """Makes a `Connection` for every client."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server.answer)
        self._s3_server = server

    def __call__(self) -> Connection:
        limits = self._s3_server.limits
        return Connection(
            self,
            self._s3_server,
            loop=self._loop,
            keepalive_timeout=limits.idle_timeout_seconds,
            access_log=None,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=256,
            lingering_time=_LINGER_SECONDS,
            # S3 keeps a body as it was sent, whatever its Content-Encoding says.
            auto_decompress=False,
        )


class _Response(web.StreamResponse):
    # The head goes out with the first block: one packet and one system call less.
    _send_headers_immediately = False


class _HttpExchange:
    """`Exchange` over one aiohttp request."""

    def __init__(self, request: web.BaseRequest, server: S3Server) -> None:
        self._request = request
        self._server = server
        self._connection = cast(Connection, request.protocol)
        self._connection.answering = False
        path, _, query = request.raw_path.partition("?")
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        self.head = RequestHead(request.method, path, query, headers)
        self.stream = self
        self.received_bytes = 0
        self.sent_bytes = 0
        self.begun = False
        self._waiting = False
        self._expects = (self.head.header("expect") or "").lower() == "100-continue"
        self._response: web.StreamResponse | None = None

    @property
    def remote(self) -> str:
        return self._request.remote or ""

    @property
    def secure(self) -> bool:
        return self._connection.ssl_context is not None

    @property
    def response(self) -> web.StreamResponse:
        """What aiohttp is to finish: the answer sent, or nothing on a broken connection."""
        if self._response is None:
            self._response = web.Response(status=500)
            self._response.force_close()
        return self._response

    async def readany(self) -> bytes:
        """The next bytes of the body, b"" at its end. IncompleteBody where it ends early."""
        # Left set where the wait is given up: the rest of the body may come at any time, or never.
        self._waiting = True
        try:
            block = await self._request.content.readany()
        except (EOFError, ConnectionError, web.RequestPayloadError) as error:
            raise IncompleteBody from error
        self._waiting = False
        self.received_bytes += len(block)
        return block

    async def proceed(self) -> None:
        if self._expects:
            self._expects = False
            # An empty body too: the AWS CLI 1, told 200 before 100, misreads the connection's next
            # answer and waits for it until its timeout.
            try:
                await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            except ConnectionError as error:
                raise ClientGoneError from error

    async def send(self, answer: Answer) -> None:
        response = self._response = _Response(status=answer.status, headers=answer.headers)
        if self._must_close():
            response.force_close()
        head_only = self.head.method == "HEAD" or answer.status in _NO_BODY
        if answer.stream is None or head_only:
            await self._send_whole(response, answer, head_only=head_only)
        else:
            await self._send_stream(response, answer, answer.stream.blocks())

    def abort(self) -> None:
        self._connection.abort()

    async def _send_whole(
        self, response: web.StreamResponse, answer: Answer, *, head_only: bool
    ) -> None:
        length = len(answer.body) if answer.length_bytes is None else answer.length_bytes
        # The head of an empty object says so; the head of an error says nothing of a body.
        if answer.status not in _NO_BODY and not (head_only and answer.length_bytes is None):
            response.content_length = length
        await self._begin(response)
        try:
            if answer.body and not head_only:
                await response.write(answer.body)
                self.sent_bytes = len(answer.body)
            await response.write_eof()
        except ConnectionError as error:
            raise ClientGoneError from error

    async def _send_stream(self, response: web.StreamResponse, answer: Answer, blocks: Any) -> None:
        if answer.length_bytes is not None:
            response.content_length = answer.length_bytes
        try:
            # Before the head is sent, a failure is still an answer of its own.
            block = await anext(blocks, None)
            await self._begin(response)
            while block is not None:
                try:
                    await response.write(block)
                except ConnectionError as error:
                    raise ClientGoneError from error
                self.sent_bytes += len(block)
                block = await anext(blocks, None)
        finally:
            if isinstance(blocks, AsyncGenerator):
                await blocks.aclose()
        if answer.length_bytes is not None and self.sent_bytes != answer.length_bytes:
            raise TierUnavailable(f"{self.sent_bytes} of {answer.length_bytes} bytes came")
        try:
            await response.write_eof()
        except ConnectionError as error:
            raise ClientGoneError from error
        if self._connection.transport is None:
            raise ClientGoneError

    async def _begin(self, response: web.StreamResponse) -> None:
        try:
            await response.prepare(self._request)
        except ConnectionError as error:
            raise ClientGoneError from error
        self.begun = True
        self._connection.answering = True

    def _must_close(self) -> bool:
        """Whether the connection is of no use after this answer."""
        if self._server.draining:
            return True
        if self._expects:
            # The client was not told to send its body; whether it does is not to be known.
            self._connection.hurry()
            return True
        if self._request.content.is_eof():
            return False
        length = self._request.content_length
        return self._waiting or length is None or length - self.received_bytes > _DRAINED_BYTES
