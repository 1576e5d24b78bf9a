"""The long lane: aiohttp's HTTP parser around the endpoint, for everything that is not a plain read
of something held.

RFC 9112 is aiohttp's parser's business; what it refuses is answered here as S3 XML. Answers are
written by `s3/sending.py`, as the fast lane's are; of aiohttp's responses only the shell is used.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError, LineTooLong

from gateway.auth.request import RequestHead
from gateway.errors import (
    BadRequest,
    IncompleteBody,
    InternalError,
    InvalidURI,
    RequestHeaderSectionTooLarge,
    S3Error,
)
from gateway.s3.answer import Answer
from gateway.s3.call import ClientGoneError
from gateway.s3.connection import Connection
from gateway.s3.endpoint import Endpoint
from gateway.s3.sending import Sending

log = structlog.get_logger()

# An unread body up to this size is read and dropped, so that the connection can be used again.
_DRAINED_BYTES = 256 * 1024
# How long a larger one is listened to before the connection closes, so that the answer is read.
_LINGER_SECONDS = 2.0
# What of an upload waits in memory for its reader: one read of a socket, and one to go on with.
_READ_BYTES = 512 * 1024
# Idle connections are swept by `Connection`; aiohttp's own timer must not get there first.
_NEVER_SECONDS = 10.0**8


def parser_settings(header_bytes: int) -> dict[str, Any]:
    """How aiohttp's parser is set here."""
    return {
        "max_line_size": header_bytes,
        "max_field_size": header_bytes,
        "max_headers": 256,
        # S3 keeps a body as it was sent, whatever its Content-Encoding says.
        "auto_decompress": False,
    }


class Lanes(web.Server):
    """Makes long lanes, and answers their requests by the endpoint."""

    def __init__(self, endpoint: Endpoint, *, header_bytes: int) -> None:
        super().__init__(self._answer)
        self.endpoint = endpoint
        self._tasks: set[asyncio.Task[Any]] = set()
        self._header_bytes = header_bytes

    def make(self, connection: Connection) -> "HttpLane":
        return HttpLane(
            self,
            connection,
            loop=self._loop,
            keepalive_timeout=_NEVER_SECONDS,
            access_log=None,
            lingering_time=_LINGER_SECONDS,
            read_bufsize=_READ_BYTES,
            **parser_settings(self._header_bytes),
        )

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = HttpExchange(request)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - aiohttp runs every request in a task
        self._tasks.add(task)
        try:
            await self.endpoint.serve(exchange)
        finally:
            self._tasks.discard(task)
        return exchange.shell


class HttpLane(web.RequestHandler):
    """A connection's requests, one after the other, through aiohttp.

    Rests on attributes that aiohttp does not promise, hence the bound on its version: `_waiter`,
    `_messages`.
    """

    def __init__(self, lanes: Lanes, connection: Connection, **options: Any) -> None:
        self._rests: asyncio.Future[None] | None = None
        self._started = False
        self.connection = connection
        self._lanes = lanes
        self._last_body: StreamReader | None = None
        self.answering = False
        super().__init__(lanes, **options)

    @property
    def _waiter(self) -> "asyncio.Future[None] | None":
        return self._rests

    @_waiter.setter
    def _waiter(self, future: "asyncio.Future[None] | None") -> None:
        # aiohttp makes this future when it has nothing left to do, and says so nowhere else.
        self._rests = future
        if future is not None:
            self.answering = False
            self.connection.rested()

    @property
    def idle(self) -> bool:
        """Whether the next request is being waited for."""
        if self._messages:
            return False
        rests = self._rests
        return not self._started if rests is None else not rests.done()

    def data_received(self, data: bytes) -> None:
        self._started = True
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answers an upload that was cut short, if the client still listens, and whatever else was
        asked for; True while there is something to answer."""
        body = self._last_body
        if body is None or body.is_eof():
            return not self.idle
        if self.answering and not self._messages:
            # Nobody waits for the rest any more but aiohttp, which drops it.
            body.feed_eof()
        else:
            body.set_exception(EOFError("The body ended early."))
        return True

    def depart(self) -> None:
        """Closes after the answer that is going out; those to come say so themselves."""
        if self.answering:
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,  # noqa: ARG002
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
                if self.answering:
                    raise ConnectionError("An answer is under way already.")
        # What follows on this connection is not a request either.
        self.connection.refuse_all()
        return _LastWords(self.connection, self.connection.refusal(failure))


class _Shell(web.StreamResponse):
    """What aiohttp finishes where everything has been sent already. `closes`: it was the last
    answer; `listens`: after it the client may send on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.closes = False
        self.listens = False

    @property
    def keep_alive(self) -> bool:
        return not self.closes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        return None

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002
        """Nothing is left to write."""
        if self.closes:
            await self.connection.part(listens=self.listens)


class _LastWords(_Shell):
    """The answer after which a connection is of no use."""

    def __init__(self, connection: Connection, answer: Answer) -> None:
        super().__init__(connection)
        self._answer = answer
        self.closes = self.listens = True

    async def write_eof(self, data: bytes = b"") -> None:
        try:
            Sending().send_whole(
                self.connection,
                self._answer,
                self._answer.body,
                head_only=False,
                connection="close",
            )
        except ClientGoneError:
            return
        await super().write_eof(data)


class HttpExchange:
    """`Exchange` over one aiohttp request."""

    def __init__(self, request: web.BaseRequest) -> None:
        lane = request.protocol
        assert isinstance(lane, HttpLane)  # noqa: S101 - there are no others
        self._request = request
        self._lane = lane
        lane.answering = False
        path, _, query = request.raw_path.partition("?")
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        self.head = RequestHead(request.method, path, query, headers)
        self.stream = self
        self.received_bytes = 0
        self.shell = _Shell(lane.connection)
        self._sending = Sending()
        self._waiting = False
        self._expects = (self.head.header("expect") or "").lower() == "100-continue"

    @property
    def remote(self) -> str:
        return self._lane.connection.remote

    @property
    def secure(self) -> bool:
        return self._lane.connection.secure

    @property
    def begun(self) -> bool:
        return self._sending.begun

    @property
    def sent_bytes(self) -> int:
        return self._sending.sent_bytes

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
            self._lane.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def send(self, answer: Answer) -> None:
        connection = self._lane.connection
        modern = self._request.version >= (1, 1)
        closes = self._must_close() or not self._request.keep_alive
        if answer.stream is not None and answer.length_bytes is None and not modern:
            # HTTP/1.0 knows the end of such an answer by the connection's.
            closes = True
        if closes:
            self.shell.closes = True
            word = "close"
        else:
            word = "" if modern else "keep-alive"
        head_only = self.head.method == "HEAD"
        self._lane.answering = True
        if answer.stream is None or head_only or answer.status in (204, 304):
            self._sending.send_whole(
                connection, answer, answer.body, head_only=head_only, connection=word
            )
            await connection.drain()
        else:
            await self._sending.send_stream(connection, answer, connection=word, chunks=modern)

    def abort(self) -> None:
        self.shell.closes = True
        self._lane.connection.abort()

    def _must_close(self) -> bool:
        """Whether the connection is of no use after this answer."""
        if self._lane.connection.leaving:
            return True
        if self._expects:
            # The client was not told to send its body; whether it does is not to be known.
            self.shell.listens = True
            return True
        if self._request.content.is_eof():
            return False
        if self._request.content.exception() is not None:
            return True
        length = self._request.content_length
        if self._waiting or length is None or length - self.received_bytes > _DRAINED_BYTES:
            self.shell.listens = True
            return True
        return False
