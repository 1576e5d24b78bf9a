"""An S3 service told byte by byte what to answer: for what no real one would be made to do."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tests.faulty import header

Act = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request as it came, and the way back. `number` counts from 0 over all connections,
    `connection` counts those."""

    def __init__(
        self, head: bytes, number: int, connection: int, writer: asyncio.StreamWriter
    ) -> None:
        self.head = head
        self.number = number
        self.connection = connection
        self._writer = writer
        self.closed = False

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    @property
    def by_hand(self) -> bool:
        """Whether our own reader asks, and not aiobotocore."""
        return header(self.head, "user-agent") == "feedrack"

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """In good order."""
        self.closed = True
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def reset(self) -> None:
        """In none."""
        self.closed = True
        self._writer.transport.abort()


class RawOrigin:
    """What has been asked so far, and how many connections are open."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Exchange] = []
        self.connections = 0
        self.open_connections = 0

    @property
    def by_hand(self) -> list[bool]:
        return [each.by_hand for each in self.requests]


@asynccontextmanager
async def raw_origin(act: Act, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawOrigin]:
    """Calls `act` for each request; the connection is kept until `act` closes it."""
    origin = RawOrigin()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        connection = origin.connections
        origin.connections += 1
        origin.open_connections += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    exchange = Exchange(head, len(origin.requests), connection, writer)
                    origin.requests.append(exchange)
                    await act(exchange)
                    if exchange.closed:
                        break
        finally:
            origin.open_connections -= 1
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    origin.url = f"{'https' if tls else 'http'}://localhost:{port}"
    try:
        yield origin
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answer(
    body: bytes,
    *,
    status: str = "200 OK",
    etag: str = '"v1"',
    part: tuple[int, int] | None = None,
    headers: Mapping[str, str] | None = None,
    length: int | None = None,
) -> bytes:
    """A whole answer. `part`: the first byte's place in an object of that many bytes, as 206."""
    fields = {"ETag": etag, "Content-Length": str(len(body) if length is None else length)}
    if part is not None:
        status = "206 Partial Content"
        fields["Content-Range"] = f"bytes {part[0]}-{part[0] + len(body) - 1}/{part[1]}"
    fields |= headers or {}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: str, code: str, *, chunked: bool = False) -> bytes:
    """An S3 error."""
    body = f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()
    if not chunked:
        return answer(body, status=status, etag="")
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
