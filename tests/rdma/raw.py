"""The wire of docs/rdma.md spoken by hand, for tests of the gateway's side: one session, one piece
of memory, requests signed by botocore."""

import itertools
import mmap
import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.rdma.device import Device, Pair
from gateway.rdma.token import TOKEN_HEADER, Token, render_token
from gateway.rdma.wire import PairAddress, Prepare, Prepared
from tests.s3.running import ACCESS_KEY, Reply, Running, Wire

SIGNED_IN_PASSING = "x-amz-rdma-token"


class RawClient:
    """A client's end over a device, as one tenant."""

    def __init__(
        self,
        running: Running,
        device: Device,
        *,
        size_bytes: int = 4 * 1024**2,
        access_key: str = ACCESS_KEY,
    ) -> None:
        self.running = running
        self.device = device
        self.memory = mmap.mmap(-1, size_bytes)
        self.region = device.register(memoryview(self.memory), remote=True)
        self.pair: Pair | None = None
        self.session = ""
        self._access_key = access_key
        self._numbers = itertools.count()
        self._wire: Wire | None = None

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        if self._wire is None:
            self._wire = await self.running.connect()
        await self._wire.send(
            self.running.signed(method, target, headers, body, access_key=self._access_key)
        )
        reply = await self._wire.reply(method)
        if reply.headers.get("connection") == "close":
            self._wire = None
        return reply

    async def step(self, step: str, document: Any) -> Reply:
        body = msgspec.json.encode(document)
        return await self.ask("POST", f"/?feedrack-rdma={step}", body=body)

    async def prepare(self) -> PairAddress:
        """A session that is not ready yet; the gateway's address."""
        self.pair = self.device.pair(depth=2, remote=True)
        reply = await self.step("prepare", Prepare(self.pair.address))
        assert reply.status == 200, reply.body
        prepared = msgspec.json.decode(reply.body, type=Prepared)
        self.session = prepared.session
        return prepared.address

    async def connect(self) -> None:
        address = await self.prepare()
        assert self.pair is not None
        self.pair.connect(address)
        reply = await self.step("ready", {"session": self.session})
        assert reply.status == 204, reply.body

    def token(self, size_bytes: int | None = None, **other: Any) -> str:
        """The next token, of the memory's beginning; `other` fields of it as given."""
        fields = {
            "session": self.session,
            "sequence": next(self._numbers),
            "address": self.region.address,
            "size_bytes": self.region.size_bytes if size_bytes is None else size_bytes,
            "rkey": self.region.rkey,
            **other,
        }
        return render_token(Token(**fields))

    async def move(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> Reply:
        """A request with a token, of all the memory unless given."""
        told = {TOKEN_HEADER: self.token() if token is None else token, **(headers or {})}
        return await self.ask(method, target, told, body)

    def close(self) -> None:
        if self.pair is not None:
            self.pair.close()
        self.region.close()


def checksum(data: bytes) -> dict[str, str]:
    return {"x-amz-checksum-crc32": b64encode(zlib.crc32(data).to_bytes(4)).decode()}


def put(running: Running, key: str, data: bytes) -> None:
    (running.root / "train" / key).write_bytes(data)


def counted(running: Running, name: str, **labels: str) -> float:
    value = running.node.metrics.registry.get_sample_value(f"feedrack_{name}", labels)
    return value or 0.0
