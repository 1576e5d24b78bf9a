"""A node with something on it that all may read, and requests whose answers are known."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.s3.running import Running, Wire, call, running
from tests.s3.twins import Answer, Lines, Watched, read_answer

CHUNK_BYTES = 1024**2
_CHANCE = random.Random(7)
OBJECTS = {
    "empty": b"",
    "small": _CHANCE.randbytes(3000),
    "block": _CHANCE.randbytes(200_000),
    "large": _CHANCE.randbytes(3 * CHUNK_BYTES + 54_321),
    "smuggled": b"SMUGGLED",
}


class Asked(Struct, frozen=True):
    """A request and what must be answered. `body` None: any."""

    method: str
    data: bytes
    status: int = 200
    body: bytes | None = None

    def fits(self, answer: Answer) -> bool:
        """Whether this is its answer."""
        if int(answer.head[0].split()[1]) != self.status:
            return False
        return self.body is None or answer.body == self.body


class Stocked:
    """A running node, a watch on its fast lane, and what it logs of its requests."""

    def __init__(self, node: Running) -> None:
        self.running = node
        self.node = node.node
        self.lines = Lines(node.node.s3, node.node.config.log)
        self.watched = Watched(node.node.s3.held, shut=False)
        node.node.s3.held = self.watched
        self.connect = node.connect
        self._written = 0

    def get(self, key: str, *, signed: bool = False, **headers: str) -> Asked:
        """A GET of one of OBJECTS; anonymous ones are short."""
        return Asked("GET", self._request("GET", key, headers, signed=signed), 200, OBJECTS[key])

    def head(self, key: str, *, signed: bool = False) -> Asked:
        return Asked("HEAD", self._request("HEAD", key, {}, signed=signed), 200, b"")

    def part(self, key: str, start: int, stop: int) -> Asked:
        """A GET of a range."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        data = self._request("GET", key, headers, signed=False)
        return Asked("GET", data, 206, OBJECTS[key][start:stop])

    def missing(self, method: str = "GET") -> Asked:
        return Asked(method, self.running.signed(method, "/open/missing"), 404)

    def refused(self) -> Asked:
        """A GET whose signature is wrong."""
        return Asked("GET", self.running.signed("GET", "/open/small", secret="wrong"), 403)

    def listing(self) -> Asked:
        return Asked("GET", self.running.signed("GET", "/open?list-type=2&prefix=small"))

    def put(self, body: bytes) -> Asked:
        """An upload of a new object."""
        self._written += 1
        data = self.running.signed("PUT", f"/open/new-{self._written}", {}, body)
        return Asked("PUT", data, 200, b"")

    def unwanted(self, body: bytes) -> Asked:
        """An upload that is refused, in few bytes."""
        head = f"PUT /open/x HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return Asked("PUT", head.encode() + body, 403)

    def chunked(self) -> Asked:
        """A request whose end only a full parser finds: its connection goes the long way for
        good."""
        head = b"GET /open/small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        return Asked("GET", head + b"4;a=b\r\nbody\r\n0\r\n\r\n", 200, OBJECTS["small"])

    def any_of_all(self, chance: random.Random) -> Asked:
        """A request of any kind but `chunked`."""
        key = chance.choice([*OBJECTS])
        start = chance.randrange(CHUNK_BYTES)
        made = (
            lambda: self.get(key, signed=chance.random() < 0.5),
            lambda: self.get("small", signed=chance.random() < 0.5),
            lambda: self.head(key, signed=chance.random() < 0.5),
            lambda: self.part("large", start, start + chance.choice([10, 300_000])),
            lambda: self.missing(chance.choice(["GET", "HEAD"])),
            self.refused,
            self.listing,
            lambda: self.put(chance.randbytes(chance.choice([0, 10, 100_000]))),
            lambda: self.unwanted(chance.randbytes(chance.choice([0, 10, 1000]))),
        )
        return chance.choices(made, [3, 8, 3, 3, 2, 1, 1, 1, 1])[0]()

    def _request(self, method: str, key: str, headers: dict[str, str], *, signed: bool) -> bytes:
        if signed:
            return self.running.signed(method, f"/open/{key}", headers)
        lines = [f"{method} /open/{key} HTTP/1.1", "Host: x"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()


async def expect(wire: Wire, asked: Sequence[Asked]) -> None:
    """Reads the answers to these requests; fails where one is not what it must be."""
    for number, request in enumerate(asked):
        async with asyncio.timeout(60):
            answer = await read_answer(wire.reader, request.method)
        assert request.fits(answer), (number, request.data[:500], answer.head, answer.body[:500])


async def settled() -> None:
    """Lets the node, which runs in this loop, take what was sent."""
    for _ in range(4):
        await asyncio.sleep(0)


@asynccontextmanager
async def stocked(
    directory: Path, *, trusted: Path | None = None, **settings: Any
) -> AsyncIterator[Stocked]:
    """A node that holds OBJECTS in a bucket "open"; `settings` as of `running`, `trusted`: who has
    signed its certificate."""
    kinds = {"open": {"public_read": True, "freshness_seconds": 3600}}
    async with running(directory, buckets=kinds, **settings) as node:
        s3 = node.client(verify=str(trusted) if trusted is not None else None)
        await call(s3.create_bucket, Bucket="open")
        for key, body in OBJECTS.items():
            await call(s3.put_object, Bucket="open", Key=key, Body=body)
            # Once read, it may be sent from its file.
            answer = await call(s3.get_object, Bucket="open", Key=key)
            await asyncio.to_thread(answer["Body"].read)
        s3.close()
        yield Stocked(node)
