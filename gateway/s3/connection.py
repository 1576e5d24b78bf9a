"""One client connection: aiohttp's protocol, with limits on what a client may hold up.

Header, idle and write timeouts are looked after by one sweep over all connections, so that a
request costs no timer. RFC 9112 is aiohttp's parser's business; what it refuses is answered here
as S3 XML.
"""

import asyncio
from typing import Any, Protocol, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError, LineTooLong

from gateway.config import LimitsConfig
from gateway.errors import (
    BadRequest,
    InternalError,
    InvalidURI,
    RequestHeaderSectionTooLarge,
    RequestTimeout,
    S3Error,
    SlowDown,
)
from gateway.s3.answer import Answer
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger()

# How long a refused client may take to read why, before the connection is reset.
_FAREWELL_SECONDS = 1.0
_REASONS = {400: "Bad Request", 503: "Service Unavailable"}


class Gate(Protocol):
    """What connections ask of their server."""

    limits: LimitsConfig
    metrics: Metrics

    def refuse(self, failure: S3Error, remote: str) -> Answer:
        """The answer to what never became a request."""
        ...

    @property
    def explains(self) -> bool:
        """Whether a client that is turned away is told why; in a flood it is not."""
        ...

    def enter(self, connection: "Connection") -> bool:
        """Counts a connection in; False where there are too many."""
        ...

    def leave(self, connection: "Connection") -> None: ...


class Connection(web.RequestHandler):
    """One connection, from its first byte to its last."""

    def __init__(self, manager: web.Server, gate: Gate, **options: Any) -> None:
        super().__init__(manager, **options)
        self._gate = gate
        self._wire: asyncio.Transport | None = None
        self._deaf = False
        # Since when the rest of a request's head is being waited for, and how much of it came.
        self._head_since: float | None = None
        self._head_bytes = 0
        # How much the client has not taken yet, and since when it has been that much.
        self._untaken_bytes = 0
        self._untaken_since = 0.0
        self._last_body: StreamReader | None = None
        self._gone = asyncio.Event()
        self.answering = False

    @property
    def idle(self) -> bool:
        """Whether the next request is being waited for."""
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        self._head_since = self._loop.time()
        if self._gate.enter(self):
            super().connection_made(transport)
        elif self._gate.explains:
            self._farewell(SlowDown(), "too many connections")
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]
        if not self.idle:
            self._head_since = None
            self._head_bytes = 0
        elif data:
            if self._head_since is None:
                self._head_since = self._loop.time()
            self._head_bytes += len(data)
            if self._head_bytes > self._gate.limits.header_bytes:
                self._farewell(RequestHeaderSectionTooLarge(), "header too large")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answers an upload that was cut short, if the client still listens; else closes."""
        body = self._last_body
        if self._deaf or body is None or body.is_eof():
            return False
        if self.ssl_context is not None:
            # TLS has no half-closed connections here: asyncio closes it whatever is returned.
            return False
        if self.answering:
            # Nobody waits for the rest any more but aiohttp, which drops it.
            body.feed_eof()
        else:
            body.set_exception(EOFError("The body ended early."))
        self._close = True
        self.hurry()
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        self._gate.leave(self)
        super().connection_lost(exc)
        self._wire = None
        self._gone.set()

    def sweep(self, now: float) -> None:
        """Cuts the client if it has kept us waiting for too long. `now` is the loop's time."""
        wire = self._wire
        if wire is None:
            return
        limits = self._gate.limits
        untaken_bytes = wire.get_write_buffer_size()
        if untaken_bytes != self._untaken_bytes or not untaken_bytes:
            self._untaken_bytes = untaken_bytes
            self._untaken_since = now
        elif 0 < limits.write_timeout_seconds < now - self._untaken_since:
            self._gate.metrics.connections_refused.labels("write timeout").inc()
            wire.abort()
            return
        if self._head_since is None or not self.idle or self._deaf:
            return
        if 0 < limits.header_timeout_seconds < now - self._head_since:
            self._farewell(RequestTimeout(), "header timeout")

    def depart(self) -> None:
        """Closes after the request in flight, which is being read and answered as ever."""
        if self.idle:
            self.force_close()
        elif self.answering:
            self.close()

    def abort(self) -> None:
        """Breaks the connection now."""
        if self._wire is not None:
            self._wire.abort()

    def hurry(self) -> None:
        """Closes right after the answer: the client was never told to send its body."""
        self._lingering_time = 0.0

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002 - aiohttp's signature
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """The answer to what is not HTTP."""
        failure: S3Error
        match exc:
            case LineTooLong():
                failure = RequestHeaderSectionTooLarge()
            case InvalidURLError():
                failure = InvalidURI()
            case HttpProcessingError():
                failure = BadRequest()
            case _:
                # The endpoint answers whatever is raised below it, so this is a fault of ours.
                log.error("unanswered request", exc_info=exc)
                failure = InternalError()
        if request.writer.output_size > 0:
            raise ConnectionError("An answer is under way already.")
        self._gate.metrics.connections_refused.labels("malformed").inc()
        # What follows on this connection is not a request either.
        self._deaf = True
        return _LastWords(self, self._gate.refuse(failure, self._remote()))

    async def part(self) -> None:
        """Listens a moment longer after the last answer: a reset would eat the words."""
        if self._wire is not None and self._wire.can_write_eof():
            self._wire.write_eof()
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            self.abort()

    def _remote(self) -> str:
        name = self._wire.get_extra_info("peername") if self._wire is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

    def _farewell(self, failure: S3Error, reason: str) -> None:
        """Says why, listens a moment longer, and closes."""
        wire = self._wire
        if wire is None:
            return
        self._deaf = True
        self._gate.metrics.connections_refused.labels(reason).inc()
        answer = self._gate.refuse(failure, self._remote())
        headers = {
            **answer.headers,
            "content-length": str(len(answer.body)),
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
        wire.write(f"{status}{lines}\r\n".encode() + answer.body)
        if wire.can_write_eof():
            wire.write_eof()
        self._loop.call_later(_FAREWELL_SECONDS, self.abort)


class _LastWords(web.Response):
    """The answer after which a connection is of no use."""

    def __init__(self, connection: Connection, answer: Answer) -> None:
        super().__init__(status=answer.status, headers=answer.headers, body=answer.body)
        self._connection = connection
        self.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        await self._connection.part()
