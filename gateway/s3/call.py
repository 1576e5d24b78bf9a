"""One authenticated request in the hands of its handler."""

from collections.abc import Callable
from typing import Protocol

from gateway.auth.request import RequestHead
from gateway.config import S3Config
from gateway.errors import (
    FeedrackError,
    MaxMessageLengthExceeded,
)
from gateway.model.body import Body
from gateway.s3.answer import Answer
from gateway.s3.body import ByteStream, open_body
from gateway.s3.entry import Request
from gateway.store.service import ObjectService


class ClientGoneError(FeedrackError):
    """The client has closed its connection, or was cut for taking nothing."""


class Exchange(Protocol):
    """One HTTP request and the way to answer it; what the endpoint knows of the server."""

    @property
    def head(self) -> RequestHead: ...

    @property
    def remote(self) -> str:
        """The client's address."""
        ...

    @property
    def secure(self) -> bool:
        """Whether the request came over TLS."""
        ...

    @property
    def stream(self) -> ByteStream:
        """The body as it arrives."""
        ...

    @property
    def received_bytes(self) -> int:
        """Bytes of the body read so far."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes of the answer's body sent so far."""
        ...

    @property
    def begun(self) -> bool:
        """Whether the answer's head has gone out, after which there is no other answer."""
        ...

    async def proceed(self) -> None:
        """Lets a client that asked first (`Expect: 100-continue`) send its body."""
        ...

    async def send(self, answer: Answer) -> None:
        """Sends the whole answer. Raises what its stream raises, and ClientGoneError."""
        ...

    def abort(self) -> None:
        """Breaks the connection, so that a half-sent answer is seen to be one."""
        ...


class Call(Request):
    """What a handler needs: the request, the service, and the body once wanted."""

    __slots__ = ("_exchange", "config", "memory", "service", "takes_files")

    def __init__(
        self, exchange: Exchange, request: Request, *, service: ObjectService, config: S3Config
    ) -> None:
        super().__init__(
            request.head,
            request.operation,
            request.identity,
            service.bucket,
            secure=request.secure,
            past_packs=request.past_packs,
        )
        self.service = service
        self.config = config
        self._exchange = exchange
        # Where the body comes from instead of the wire, and how long it is (docs/rdma.md).
        self.memory: tuple[ByteStream, int] | None = None
        # Whether who sends the answer can send regions of files.
        self.takes_files = False

    async def body(self) -> Body:
        """The request's body, verified as it is read; call once, after every other check.

        MissingContentLength and EntityTooLarge come before the client is told to send anything.
        """
        body = self._open()
        await self._exchange.proceed()
        return body

    async def document(
        self,
        *,
        checksums_describe_body: bool = True,
        limit_bytes: int | None = None,
        reserve: Callable[[int], None] = lambda _: None,
    ) -> tuple[bytes, Body]:
        """A whole body of XML or JSON, and the `Body` it came through. MaxMessageLengthExceeded.

        `limit_bytes`: how long it may be, if not what is configured for XML. `reserve` hears how
        long it is before any of it is asked for, and may raise.
        """
        body = self._open(checksums_describe_body=checksums_describe_body)
        if limit_bytes is None:
            limit_bytes = self.config.limits.xml_bytes
        if body.length_bytes > limit_bytes:
            raise MaxMessageLengthExceeded(fields={"MaxMessageLengthBytes": str(int(limit_bytes))})
        reserve(body.length_bytes)
        await self._exchange.proceed()
        blocks = []
        while block := await body.read():
            blocks.append(block)
        return b"".join(blocks), body

    def _open(self, *, checksums_describe_body: bool = True) -> Body:
        stream, size_bytes = self.memory or (self._exchange.stream, None)
        return open_body(
            stream,
            self.head,
            self.identity.payload,
            timeout_seconds=self.config.limits.body_timeout_seconds,
            checksums_describe_body=checksums_describe_body,
            memory_bytes=size_bytes,
        )

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body at all."""
        if self.head.header("transfer-encoding") is not None:
            return True
        return self.head.header("content-length") not in (None, "0")
