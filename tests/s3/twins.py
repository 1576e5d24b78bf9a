"""One node with two doors: through one a read may go the fast lane, through the other never."""

import asyncio
import json
from typing import Any

from msgspec import Struct

from gateway.auth.request import RequestHead
from gateway.auth.sigv4 import Authenticator
from gateway.auth.tenants import load_tenants
from gateway.config import LogConfig
from gateway.s3.doors import TcpDoor
from gateway.s3.held import HeldAnswer, HeldEndpoint
from gateway.s3.record import Recorder
from gateway.s3.server import S3Server, object_server
from gateway.telemetry.lines import LineWriter
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestReporter
from tests.s3.running import Running


class Watched(HeldEndpoint):
    """Counts what goes the fast lane; `shut`: nothing does."""

    def __init__(self, inner: HeldEndpoint, *, shut: bool) -> None:
        vars(self).update(vars(inner))
        self.shut = shut
        self.answered = 0
        self.refused = 0

    def answer(
        self, head: RequestHead, *, remote: str, secure: bool, files: bool
    ) -> HeldAnswer | None:
        found = None
        if not self.shut:
            found = super().answer(head, remote=remote, secure=secure, files=files)
        if found is None:
            self.refused += 1
        else:
            self.answered += 1
        return found


class Lines(LineWriter):
    """Keeps what a server logs of its requests."""

    def __init__(self, server: S3Server, config: LogConfig) -> None:
        super().__init__(None)
        self.kept: list[dict[str, Any]] = []
        recorder: Recorder = server.held._recorder
        recorder._reporter = RequestReporter(server.metrics, config, self)

    def add(self, line: bytes) -> None:
        self.kept.append(json.loads(line))


class Answer(Struct):
    """One answer as it came; `head`, line by line, without the values that no two answers share."""

    head: list[bytes]
    body: bytes
    closes: bool


class Door:
    """A server of its own over the node's objects, and a connection to it. `now`: the time there,
    which refusals tell."""

    def __init__(self, node: Running, *, shut: bool, now: float) -> None:
        config = node.node.config
        self.metrics = Metrics()
        self.door = TcpDoor("127.0.0.1:0")
        self.server = object_server(
            config,
            node.node.service,
            Authenticator(
                load_tenants(config),
                region=config.s3.region,
                clock_skew_seconds=config.s3.clock_skew_seconds,
                now=lambda: now,
            ),
            self.metrics,
            past_packs=node.node.parts.past_packs,
            rdma=node.node.parts.rdma,
            door=self.door,
        )
        self._lines = Lines(self.server, config.log)
        self.watched = self.server.held = Watched(self.server.held, shut=shut)
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> "Door":
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()
        await self.server.drain(1)
        await self.server.close()

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream[1].transport.abort()
            self._stream = None

    async def ask(self, *requests: tuple[str, bytes]) -> list[Answer]:
        """Sends requests at once, and reads their answers as far as they come."""
        if self._stream is None:
            self._stream = await asyncio.open_connection("127.0.0.1", self.door.port, limit=2**22)
        reader, writer = self._stream
        writer.write(b"".join(data for _, data in requests))
        answers: list[Answer] = []
        async with asyncio.timeout(60):
            for method, _ in requests:
                answers.append(await read_answer(reader, method))
                if answers[-1].closes:
                    assert await reader.read() == b""
                    self.hang_up()
                    break
        return answers

    async def told(self, count: int) -> list[dict[str, Any]]:
        """The next `count` lines of the log, without what no two lines share."""
        async with asyncio.timeout(60):
            while len(self._lines.kept) < count:
                await asyncio.sleep(0)
        lines, self._lines.kept = self._lines.kept[:count], self._lines.kept[count:]
        for line in lines:
            for own in ("request_id", "seconds", "timestamp"):
                del line[own]
        return lines

    def counted(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """The metrics that count, by name and labels."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if not sample.name.endswith(("_created", "_sum", "_bucket"))
        }


class EndedError(Exception):
    """The connection was closed where another answer would begin."""


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    """The next answer of a connection. EndedError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise EndedError from error
    lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    body = b""
    if method != "HEAD" and lines[0].split()[1] not in (b"100", b"204", b"304"):
        if b"transfer-encoding" in headers:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(headers[b"content-length"]))
    # The one of an S3 service is handed on as it came.
    for own in (b"x-amz-request-id", b"date", b"x-amzn-requestid"):
        value = headers.get(own)
        if value is not None:
            lines[lines.index(own + b": " + value)] = own
            body = body.replace(b"<RequestId>" + value, b"<RequestId>")
    return Answer(lines, body, headers.get(b"connection") == b"close")
