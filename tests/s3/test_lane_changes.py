"""One connection, two lanes: whatever the order of its requests, and wherever its bytes are cut,
each request is answered, in order, and nothing is answered that was none."""

import asyncio
import contextlib
import random
import secrets
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.s3.running import Wire
from tests.s3.stocked import OBJECTS, Asked, Stocked, expect, settled, stocked

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stocked]:
    async with stocked(tmp_path_factory.mktemp("node")) as started:
        yield started


@pytest.fixture
def chance() -> random.Random:
    seed = secrets.randbits(32)
    sys.stdout.write(f"seed {seed}\n")  # shown where a test fails
    return random.Random(seed)


async def _send_cut(wire: Wire, data: bytes, chance: random.Random) -> None:
    """Sends in pieces of any size."""
    start = 0
    while start < len(data):
        size_bytes = chance.choice([1, 7, 100, 5000, 100_000])
        await wire.send(data[start : start + size_bytes])
        start += size_bytes
        if chance.random() < 0.2:
            await settled()


@pytest.mark.parametrize("count", [1, 2, 30, 200])
async def test_requests_of_all_kinds_sent_at_once_are_answered_in_order(
    node: Stocked, chance: random.Random, count: int
) -> None:
    asked = [node.any_of_all(chance) for _ in range(count)]
    wire = await node.connect()
    data = b"".join(request.data for request in asked)
    sending = asyncio.create_task(_send_cut(wire, data, chance))
    await expect(wire, asked)
    await sending


async def test_connections_change_lanes_beside_each_other(
    node: Stocked, chance: random.Random
) -> None:
    answered = node.watched.answered

    async def talk() -> None:
        wire = await node.connect()
        for _ in range(12):
            asked = [node.any_of_all(chance) for _ in range(chance.choice([1, 1, 2, 5]))]
            await _send_cut(wire, b"".join(request.data for request in asked), chance)
            await expect(wire, asked)
        asked = [node.get("small"), node.chunked(), node.get("small"), node.chunked()]
        await wire.send(b"".join(request.data for request in asked))
        await expect(wire, asked)

    await asyncio.gather(*(talk() for _ in range(8)))
    assert node.watched.answered - answered > 80


async def test_bytes_may_be_cut_anywhere(node: Stocked) -> None:
    asked = [
        node.get("small"),
        node.unwanted(b"GET /open/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
        node.head("empty"),
        node.part("block", 5, 9),
        node.get("block"),
    ]
    data = b"".join(request.data for request in asked)
    wire = await node.connect()
    answered = node.watched.answered
    for cut in range(1, len(data)):
        await wire.send(data[:cut])
        await settled()
        await wire.send(data[cut:])
        await expect(wire, asked)
    # Wherever it was cut, the connection went on being fast.
    assert node.watched.answered - answered == 4 * (len(data) - 1)


async def test_a_signed_head_may_come_byte_by_byte(node: Stocked) -> None:
    asked = [node.get("small", signed=True), node.put(b"body"), node.get("small", signed=True)]
    wire = await node.connect()
    answered = node.watched.answered
    for byte in b"".join(request.data for request in asked):
        await wire.send(bytes([byte]))
        await settled()
    await expect(wire, asked)
    assert node.watched.answered - answered == 2


# Smuggling

_SMUGGLED = "GET /open/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
_GET = "GET /open/small HTTP/1.1\r\nHost: x"
_PUT = "PUT /open/x HTTP/1.1\r\nHost: x"
_LENGTH = f"Content-Length: {len(_SMUGGLED)}"
_CHUNKED = "Transfer-Encoding: chunked"
# What is cut off here ends in an empty line, and the smuggled request follows.
_ATTACKS = {
    "TE and CL": f"{_PUT}\r\n{_LENGTH}\r\n{_CHUNKED}",
    "CL and TE": f"{_PUT}\r\n{_CHUNKED}\r\nContent-Length: 4",
    "TE twice": f"{_PUT}\r\nTransfer-Encoding: x\r\n{_CHUNKED}",
    "TE odd": f"{_PUT}\r\nTransfer-Encoding: \x0bchunked",
    "TE identity": f"{_PUT}\r\nTransfer-Encoding: identity",
    "CL twice": f"{_PUT}\r\nContent-Length: 0\r\n{_LENGTH}",
    "CL twice, GET": f"{_GET}\r\nContent-Length: 0\r\n{_LENGTH}",
    "CL signed": f"{_GET}\r\nContent-Length: +0",
    "CL and blank": f"{_GET}\r\nContent-Length : 41",
    "CL folded": f"{_GET}\r\nContent-Length:\r\n 41",
    "CL, bare LF": f"{_GET}\nContent-Length: 41",
    "CL, bare CR": f"{_GET}\rContent-Length: 41",
    "CL in one": f"{_GET}\r\nContent-Length: 0, 41",
    "obs-fold": f"{_GET}\r\nx: y\r\n folded",
    "NUL": f"{_GET}\r\nx: y\0z",
    "NUL in a name": f"{_GET}\r\nx\0: y",
    "no colon": f"{_GET}\r\nodd",
    "blank name": f"{_GET}\r\n : odd",
    "authority": "GET x:80 HTTP/1.1\r\nHost: x",
    "blank before": f" {_GET}",
    "blank behind": "GET /open/small HTTP/1.1 \r\nHost: x",
    "blank in target": "GET /open/small x HTTP/1.1\r\nHost: x",
    "tab": "GET\t/open/small HTTP/1.1\r\nHost: x",
    "bare LF": "GET /open/small HTTP/1.1\nHost: x\n",
    "HTTP/0.9": "GET /open/small",
    "HTTP/1.2": "GET /open/small HTTP/1.2\r\nHost: x",
    "HTTP/2": "PRI * HTTP/2.0",
    "no host": "GET /open/small HTTP/1.1",
    "two hosts": f"{_GET}\r\nHost: y",
    "closes": f"{_GET}\r\nConnection: close",
    "HTTP/1.0": "GET /open/small HTTP/1.0\r\nHost: x",
    "chunk extension": f'{_PUT}\r\n{_CHUNKED}\r\n\r\n29;a="\n"\r\n{_SMUGGLED}\r\n0',
    "chunk size": f"{_PUT}\r\n{_CHUNKED}\r\n\r\n0x29\r\n{_SMUGGLED}\r\n0",
    "trailer": f"{_PUT}\r\n{_CHUNKED}\r\n\r\n0\r\nContent-Length: 41\r\nx: y\n",
    "body": f"{_PUT}\r\n{_LENGTH}",
    "body of a GET": f"{_GET}\r\n{_LENGTH}",
    "body of a HEAD": f"HEAD /open/small HTTP/1.1\r\nHost: x\r\n{_LENGTH}",
    "body expected": f"{_PUT}\r\nExpect: 100-continue\r\n{_LENGTH}",
}


@pytest.mark.parametrize("attack", _ATTACKS)
async def test_what_is_no_request_is_not_answered(
    node: Stocked, chance: random.Random, attack: str
) -> None:
    node.lines.kept.clear()
    harm = (_ATTACKS[attack] + "\r\n\r\n" + _SMUGGLED).encode("latin-1")
    before: list[list[Asked]] = [
        [],
        [node.get("small")],
        [node.missing()],
        [node.get("block"), node.unwanted(b"x")],
        [node.chunked()],
    ]
    for asked in before:
        for at_once in (True, False):
            for cut in (0, chance.randrange(1, len(harm)), len(harm) - len(_SMUGGLED)):
                wire = await node.connect()
                data = b"".join(request.data for request in asked)
                if not at_once:
                    await wire.send(data)
                    await expect(wire, asked)
                    data = b""
                await wire.send(data + harm[:cut])
                await settled()
                await wire.send(harm[cut:])
                await settled()
                # Who sends on where it has ended the connection itself may be cut off.
                with contextlib.suppress(ConnectionError):
                    wire.writer.write_eof()
                    async with asyncio.timeout(60):
                        answers = await wire.reader.read()
                    assert OBJECTS["smuggled"] not in answers, (asked, at_once, cut)
                await wire.close()
    assert not [line for line in node.lines.kept if line["key"] == "smuggled"]
