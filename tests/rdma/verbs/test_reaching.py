"""A client that names an address which nobody has: the node's other clients do not notice."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.rdma.verbs import open_device
from gateway.rdma.wire import REPLY_HEADER, Prepare
from tests.rdma.raw import RawClient
from tests.s3.running import running

CARD = "dummy0"
NOBODY = "::ffff:10.77.0.99"
# The kernel alone takes a second; the rest is for a processor that is emulated, and not ours alone.
STILL_SECONDS = 0.6


@pytest.fixture
def asking_card() -> Iterator[None]:
    """Such a card asks nobody otherwise, and takes every address for its own link's."""
    subprocess.run(["ip", "link", "set", CARD, "arp", "on"], check=True)
    yield
    subprocess.run(["ip", "link", "set", CARD, "arp", "off"], check=True)


@pytest.mark.usefixtures("asking_card")
async def test_others_are_answered_while_a_way_is_looked_for(tmp_path: Path) -> None:
    rdma = {"mode": "required", "buffers": "4MiB"}
    async with running(tmp_path, rdma=rdma) as node:
        (node.root / "train").mkdir()
        (node.root / "train" / "k").write_bytes(b"x")
        device = open_device()
        client, other = (RawClient(node, device, size_bytes=4096) for _ in range(2))
        client.pair = device.pair(depth=1, remote=True)
        await other.connect()
        assert (await other.move("GET", "/train/k")).headers[REPLY_HEADER] == "200"
        nowhere = replace(client.pair.address, gid=NOBODY)
        preparing = asyncio.create_task(client.step("prepare", Prepare(nowhere)))
        waits = []
        while not preparing.done():
            asked = time.monotonic()
            assert (await other.move("GET", "/train/k")).headers[REPLY_HEADER] == "200"
            waits.append(time.monotonic() - asked)
        reply = await preparing
        assert (reply.status, reply.code) == (400, "InvalidRequest")
        assert reply.headers[REPLY_HEADER] == "501"
        assert max(waits) < STILL_SECONDS
        client.close()
        other.close()
        device.close()
