"""What the kernel sends of a node's files: by how many bytes, and what happens where it cannot."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tiers.kernel import Residency
from tests.s3.running import Running, Wire, running
from tests.waiting import until

# The last chunk is long enough to be sent from its file, too.
LARGE = random.Random(1).randbytes(5 * 1024**2 + 100_000)
# As large as an object of a shard can be here, and as small as what is sent from a file.
SMALL = random.Random(2).randbytes(65_536)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every piece that goes out of a file."""
    pieces: list[int] = []
    sendfile = os.sendfile

    def counted(out: int, file: int, offset: int, size: int) -> int:
        pieces.append(sendfile(out, file, offset, size))
        return pieces[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    return pieces


@pytest.fixture
async def node(
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    """A node that holds two objects, one in chunks and one in a shard, and has verified them."""
    async with running(tmp_path) as started:
        folder = started.root / "train"
        folder.mkdir()
        wire = await started.connect()
        for name, body in (("large", LARGE), ("small", SMALL)):
            (folder / name).write_bytes(body)
            os.utime(folder / name, (1_000_000_000, 1_000_000_000))
            # Cold; then from the disk, which verifies; then as it lies there.
            async with asyncio.timeout(60):
                while sum(sent) != len(body):
                    sent.clear()
                    assert await _get(started, wire, name) == body
                    await asyncio.sleep(0.01)
            sent.clear()
        # A machine may take clean pages back at any moment (proactive reclaim does): then their
        # bytes are rightly read and verified again, and nothing here could be counted.
        monkeypatch.setattr(Residency, "holds", lambda *_: True)
        yield started


async def _get(node: Running, wire: Wire, key: str, **headers: str) -> bytes:
    await wire.send(node.signed("GET", f"/train/{key}", headers))
    reply = await wire.reply()
    assert reply.status in (200, 206)
    return bytes(reply.body)


async def test_large_answers_go_out_of_their_files(node: Running, sent: list[int]) -> None:
    wire = await node.connect()
    assert await _get(node, wire, "large") == LARGE
    assert sum(sent) == len(LARGE)
    sent.clear()
    assert await _get(node, wire, "small") == SMALL
    assert sum(sent) == len(SMALL)
    sent.clear()
    assert await _get(node, wire, "large", Range="bytes=700000-1999999") == LARGE[700_000:2_000_000]
    assert sum(sent) == 1_300_000


async def test_small_ranges_are_read(node: Running, sent: list[int]) -> None:
    wire = await node.connect()
    assert await _get(node, wire, "large", Range="bytes=5-1004") == LARGE[5:1005]
    assert not sent


async def test_where_no_descriptor_is_left_an_answer_is_sent_all_the_same(
    node: Running, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    wire = await node.connect(receive_bytes=65_536)
    await wire.send(node.signed("GET", "/train/large"))
    monkeypatch.setattr(os, "dup", refused)
    reply = await wire.reply()
    assert reply.body == LARGE
    assert sum(sent) == len(LARGE)


async def test_a_file_that_cannot_be_read_breaks_the_answer_off(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "sendfile", failing)
    wire = await node.connect()
    await wire.send(node.signed("GET", "/train/large"))
    with pytest.raises((EOFError, ConnectionError)):
        await wire.reply()
    monkeypatch.undo()
    again = await node.connect()
    assert await _get(node, again, "large") == LARGE


async def test_a_connection_borrows_its_socket_and_closes_it_once(node: Running) -> None:
    await node.hang_up()
    await until(lambda: not node.node.metrics.connections._value.get())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        wire = await node.connect()
        assert await _get(node, wire, "small") == SMALL
        await wire.close()
    await node.hang_up()
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)
