"""A whole node in this process, over a directory, with clients that sign."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config as BotoConfig
from botocore.credentials import Credentials

from gateway import config as configuration
from gateway.app import Node
from gateway.rdma import verbs
from gateway.rdma.server import OpenDevice
from gateway.telemetry.lines import standard_error

ACCESS_KEY = "demo"
SECRET_KEY = "demo-secret"  # a test's, on loopback
RESTRICTED = "limited"
# Longer than a machine takes that is emulated by a busy one.
PATIENCE_SECONDS = 60


class Running:
    """A started node and where its data is."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node = node
        self.root = root
        self.origin = "directory"
        self._wires: list[Wire] = []

    @property
    def port(self) -> int:
        return self.node.door.port

    def client(
        self, access_key: str = ACCESS_KEY, *, verify: str | None = None, **config: Any
    ) -> Any:
        """A boto3 client; its calls block, so make them with `call`. `verify`: whom to trust."""
        return client_of(self.node.s3_url, access_key, verify=verify, **config)

    def signed(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        access_key: str = ACCESS_KEY,
        secret: str = SECRET_KEY,
        length: int | None = None,
        host: str | None = None,
    ) -> bytes:
        """The bytes of a signed request; `length` is announced in place of the body's own."""
        host = host or f"127.0.0.1:{self.port}"
        url = f"http://{host}{target}"
        request = AWSRequest(method, url, data=body)
        for name, value in (headers or {}).items():
            request.headers[name] = value
        request.headers["x-amz-content-sha256"] = "UNSIGNED-PAYLOAD"
        S3SigV4Auth(Credentials(access_key, secret), "s3", "us-east-1").add_auth(request)
        lines = [f"{name}: {value}" for name, value in request.headers.items()]
        lines.append(f"Host: {host}")
        if body or length is not None or method in ("PUT", "POST"):
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""])
        return head.encode("latin-1") + body

    async def connect(self, *, receive_bytes: int | None = None) -> "Wire":
        """A raw connection; `receive_bytes` bounds what its kernel takes in unread."""
        plain = socket.socket()
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.port))
        limit = 65_536 if receive_bytes is None else receive_bytes
        wire = Wire(*await asyncio.open_connection(sock=plain, limit=limit))
        self._wires.append(wire)
        return wire

    async def hang_up(self) -> None:
        """Closes all raw connections."""
        for wire in self._wires:
            await wire.close()


class Reply:
    """One HTTP answer off the wire."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> str:
        """The S3 code of an error answer."""
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, method: str = "GET") -> Reply:
        """The next answer. Fails where none comes within `PATIENCE_SECONDS`."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.strip().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            status = int(status_line.split()[1])
            length = int(headers.get("content-length", "0"))
            if method == "HEAD" or status in (100, 204, 304):
                length = 0
            return Reply(status, headers, await self.reader.readexactly(length))

    async def ended(self) -> bool:
        """Whether the server closes, within ten seconds, without another byte."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def client_of(
    url: str, access_key: str = ACCESS_KEY, *, verify: str | None = None, **config: Any
) -> Any:
    """A boto3 client of whatever serves S3 there."""
    config = {"s3": {"addressing_style": "path"}, "signature_version": "s3v4", **config}
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        verify=verify,
        config=BotoConfig(retries={"total_max_attempts": 1}, **config),
    )


@asynccontextmanager
async def running(
    directory: Path,
    *,
    s3: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    policy: Sequence[Mapping[str, Any]] = (),
    buckets: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    origins: Mapping[str, Any] | None = None,
    cache: Mapping[str, Any] | None = None,
    rdma: Mapping[str, Any] | None = None,
    open_device: OpenDevice = verbs.open_device,
) -> AsyncIterator[Running]:
    """A node over `directory/data`, or over `origin`, drained and stopped at the end. `origins`:
    further ones."""
    root = directory / "data"
    root.mkdir()
    secret = directory / "secret"
    secret.write_text(SECRET_KEY)
    config = configuration.parse(
        {
            "node": {"id": "n1"},
            "s3": {"listen": "127.0.0.1:0", "limits": dict(limits or {}), **(s3 or {})},
            "admin": {"listen": "127.0.0.1:0"},
            "cache": {
                "path": str(directory / "cache"),
                "capacity": "64MiB",
                "chunk_size": "1MiB",
                "small_object_limit": "64KiB",
                **(cache or {}),
            },
            "default_origin": "main",
            "origins": {
                "main": origin or {"type": "directory", "path": str(root)},
                **(origins or {}),
            },
            "buckets": dict(buckets or {}),
            "rdma": dict(rdma or {}),
            "tenants": [
                {
                    "name": "demo",
                    "access_key": ACCESS_KEY,
                    "secret_key_file": str(secret),
                    "policy": [{"allow": ["*"]}],
                },
                {
                    "name": "limited",
                    "access_key": RESTRICTED,
                    "secret_key_file": str(secret),
                    "policy": list(policy),
                },
            ],
        }
    )
    node = Node(config, open_device=open_device)
    started = Running(node, root)
    try:
        await node.start()
        yield started
    finally:
        await started.hang_up()
        await node.stop()
        # The loop ends before its last lines are due.
        standard_error().flush()


async def call(method: Any, **arguments: Any) -> Any:
    """One blocking call of boto3, beside the loop the node runs in."""
    return await asyncio.to_thread(method, **arguments)
