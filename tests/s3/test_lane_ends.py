"""How connections end, whichever lane they are in: half closed, reset, drained, timed out, or never
read from."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.s3 import parting
from tests.s3.running import Wire
from tests.s3.stocked import OBJECTS, Asked, Stocked, expect, settled, stocked
from tests.s3.twins import EndedError, read_answer
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stocked]:
    async with stocked(tmp_path_factory.mktemp("node")) as started:
        yield started


def _data(asked: Sequence[Asked]) -> bytes:
    return b"".join(request.data for request in asked)


# Half closed


async def test_whoever_has_said_all_is_answered_in_full(node: Stocked) -> None:
    cold = node.running.root / "open" / "cold"
    cold.write_bytes(OBJECTS["large"])
    kinds: list[list[Asked]] = [
        [node.get("small")],
        [node.get("small")] * 60,
        [node.get("block")] * 20,
        [node.get("large")],
        [node.get("large"), node.head("large"), node.get("large"), node.get("small")],
        [Asked("GET", b"GET /open/cold HTTP/1.1\r\nHost: x\r\n\r\n", 200, OBJECTS["large"])],
        [node.listing()],
        [node.put(b"body"), node.get("small"), node.missing(), node.put(b"x" * 300_000)],
        [node.get("block"), node.missing(), node.get("large"), node.listing()],
        [node.chunked(), node.get("small"), node.chunked(), node.get("large")],
    ]
    for asked in kinds:
        for together in (True, False):
            wire = await node.connect(receive_bytes=65_536)
            wire.writer.write(_data(asked))
            if not together:
                await wire.writer.drain()
                await settled()
            wire.writer.write_eof()
            await expect(wire, asked)
            assert await wire.ended(), asked[0].data


async def test_an_upload_cut_short_behind_others_is_told_so(node: Stocked) -> None:
    kinds = (
        [node.get("large")],
        [node.listing()],
        [node.put(b"x" * 2_000_000)],
        [node.chunked(), node.listing(), node.put(b"x" * 10_000), node.get("small")],
        [node.chunked(), node.get("large")],
    )
    for before in kinds:
        cut = node.running.signed("PUT", "/open/cut", {}, b"half", length=8)
        wire = await node.connect()
        wire.writer.write(_data(before) + cut)
        wire.writer.write_eof()
        await expect(wire, [*before, Asked("PUT", cut, 400)])
        assert await wire.ended()
    assert not (node.running.root / "open" / "cut").exists()


# Nobody reads


def _held_bytes(node: Stocked) -> int:
    """What the node keeps for its clients, of requests and of answers."""
    total = 0
    for connection in node.node.s3._connections:
        assert connection._transport is not None
        total += connection._transport.get_write_buffer_size()
        total += len(connection._backlog) + len(connection._partial)
    return total


@pytest.mark.parametrize("begins", ["fast", "file", "long", "long for good"])
async def test_a_client_that_asks_and_never_reads_costs_little_and_is_cut(
    tmp_path: Path, begins: str
) -> None:
    limits = {"write_timeout_seconds": 0.5}
    async with stocked(tmp_path, limits=limits) as node:
        first = {
            "fast": node.get("small"),
            "file": node.get("large"),
            "long": node.listing(),
            "long for good": node.chunked(),
        }[begins]
        one = node.get("small", signed=True)
        before = len(node.node.s3._connections)
        greedy = await node.connect(receive_bytes=4096)
        greedy.writer.write(first.data + one.data * 10_000)
        cut = node.node.metrics.connections_refused.labels("write timeout")
        other = await node.connect()
        most = 0
        async with asyncio.timeout(60):
            while cut._value.get() == 0:
                await other.send(node.get("small").data)
                await expect(other, [node.get("small")])
                most = max(most, _held_bytes(node))
        assert most < 1024**2
        assert cut._value.get() == 1
        await until(lambda: len(node.node.s3._connections) == before + 1)
        await until(lambda: node.node.metrics.requests_in_flight._value.get() == 0)


async def test_a_slow_reader_of_many_answers_is_not_idle(tmp_path: Path) -> None:
    limits = {"idle_timeout_seconds": 0.2, "header_timeout_seconds": 0.2}
    async with stocked(tmp_path, limits=limits) as node:
        asked = [node.get("small")] * 3000
        wire = await node.connect(receive_bytes=4096)
        await wire.send(_data(asked))
        await asyncio.sleep(0.6)
        await expect(wire, asked)
        assert await wire.ended()


async def test_what_is_no_request_is_told_so_behind_one_that_was_answered(node: Stocked) -> None:
    for before in ([], [node.get("small")], [node.missing()], [node.chunked()]):
        wire = await node.connect()
        wrong = Asked("GET", b"GET /open/small HTTP/1.1\r\nno colon\r\n\r\n", 400)
        await wire.send(_data(before))
        await settled()
        await wire.send(wrong.data)
        await expect(wire, [*before, wrong])
        assert await wire.ended()
        await wire.close()


# Nobody is there any more


@pytest.mark.parametrize("kind", ["small", "block", "large", "listing", "cold"])
async def test_a_client_that_hangs_up_midway_leaves_nothing_behind(
    node: Stocked, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = node.running.root / "open" / "hung"
    path.write_bytes(random.Random(3).randbytes(20 * 1024**2))
    cold = Asked("GET", b"GET /open/hung HTTP/1.1\r\nHost: x\r\n\r\n")
    asked = {"listing": node.listing(), "cold": cold}.get(kind) or node.get(kind)
    metrics = node.node.metrics
    before = metrics.connections._value.get()
    for taken in (0, 1, 50_000):
        wire = await node.connect(receive_bytes=4096)
        await wire.send(asked.data * 50)
        if taken:
            await wire.reader.read(taken)
        plain = wire.writer.transport.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wire.close()
    await until(lambda: metrics.connections._value.get() == before)
    await until(lambda: metrics.requests_in_flight._value.get() == 0)
    holding = node.node.parts.disk._holding
    assert holding is not None
    await until(lambda: not any(file.users for file in holding.files._files.values()))
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    path.unlink()


# Draining


@pytest.mark.parametrize("pesters", [False, True])
async def test_draining_lets_an_answer_end_whatever_is_sent_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pesters: bool
) -> None:
    monkeypatch.setattr(parting, "FAREWELL_SECONDS", 0.1)
    monkeypatch.setattr(parting, "_LOOK_SECONDS", 0.02)
    async with stocked(tmp_path) as node:
        request, other = node.get("large"), node.get("block")

        async def pester(wire: Wire) -> None:
            while pesters:
                await wire.send(other.data)
                await asyncio.sleep(0.001)

        idle = await node.connect()
        wire = await node.connect(receive_bytes=4096)
        await wire.send(request.data)
        pestering = asyncio.create_task(pester(wire))
        await asyncio.sleep(0.02)
        draining = asyncio.create_task(node.node.s3.drain(20))
        assert await idle.ended()
        await expect(wire, [request])
        # Longer than anybody is listened to who has taken everything.
        await asyncio.sleep(0.5)
        with contextlib.suppress(EndedError):
            last = await read_answer(wire.reader, "GET")
            assert other.fits(last)
            assert last.closes
        assert await wire.ended()
        pestering.cancel()
        await asyncio.gather(pestering, return_exceptions=True)
        await wire.close()
        await draining


async def test_draining_amid_many_requests_cuts_no_answer(tmp_path: Path) -> None:
    async with stocked(tmp_path) as node:
        chance = random.Random(5)
        draining: asyncio.Task[None] | None = None

        async def talk(number: int) -> int:
            nonlocal draining
            wire = await node.connect(receive_bytes=16_384)
            asked = [node.any_of_all(chance) for _ in range(60)]
            sending = asyncio.create_task(wire.send(_data(asked)))
            answered = 0
            with contextlib.suppress(EndedError):
                for request in asked:
                    await expect(wire, [request])
                    answered += 1
                    if number == 0 and answered == 10:
                        draining = asyncio.create_task(node.node.s3.drain(20))
            await asyncio.gather(sending, return_exceptions=True)
            return answered

        answered = await asyncio.gather(*(talk(number) for number in range(6)))
        assert draining is not None
        await draining
        assert 10 <= answered[0] < 60


async def test_stopping_amid_answers_leaves_nothing_running(tmp_path: Path) -> None:
    async with stocked(tmp_path) as node:
        path = node.running.root / "open" / "cold"
        path.write_bytes(random.Random(3).randbytes(20 * 1024**2))
        for request in (node.get("large").data, b"GET /open/cold HTTP/1.1\r\nHost: x\r\n\r\n"):
            for _ in range(4):
                wire = await node.connect(receive_bytes=4096)
                await wire.send(request)
        await node.node.s3.drain(0.01)
        await node.node.s3.close()
        assert node.node.metrics.requests_in_flight._value.get() == 0


# Waiting


@pytest.mark.parametrize("begins", ["nothing", "fast", "long", "long for good"])
@pytest.mark.parametrize("more", [b"", b"G", b"GET /open/small HTTP/1.1\r\nHost: x\r\n"])
async def test_who_waits_too_long_is_cut_whatever_lane_it_is_in(
    tmp_path: Path, begins: str, more: bytes
) -> None:
    limits = {"idle_timeout_seconds": 0.3, "header_timeout_seconds": 0.2}
    async with stocked(tmp_path, limits=limits) as node:
        asked = {
            "nothing": [],
            "fast": [node.get("small")],
            "long": [node.missing()],
            "long for good": [node.chunked()],
        }[begins]
        wire = await node.connect()
        await wire.send(_data(asked))
        await expect(wire, asked)
        await wire.send(more)
        if more or not asked:
            assert (await wire.reply()).code == "RequestTimeout"
        assert await wire.ended()
