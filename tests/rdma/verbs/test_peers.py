"""Two nodes in one process that read from each other over real verbs."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.tiers.peers.sessions import PeerSession
from gateway.tiers.wire import Watch
from tests.cluster.running import Cluster, Running, cluster
from tests.cluster.test_reading_near import put
from tests.waiting import until

MIB = 1024**2
_SECONDS = 90


class Two:
    """a1 holds things, a2 asks for them."""

    def __init__(self, made: Cluster, folder: Path) -> None:
        self.holder, self.asker = made["a1"], made["a2"]
        self._cluster = made
        self._folder = folder
        self._names = itertools.count()

    @property
    def moved(self) -> int:
        return int(self.holder.counted("feedrack_rdma_bytes_total", operation="peer"))

    @property
    def session(self) -> PeerSession | None:
        return self.asker.parts.moving._sessions._sessions.get("a1")

    async def warm(self, size_bytes: int) -> tuple[str, str]:
        """A key whose bytes a1 alone holds, and their SHA-256."""
        key = self._cluster.key_at("a1", prefix=f"k{next(self._names)}-")
        body = put(self._folder, key, size_bytes)
        await self.holder.read(key)
        await self._cluster.settled()
        return key, hashlib.sha256(body).hexdigest()

    async def read(self, key: str) -> str:
        async with asyncio.timeout(_SECONDS):
            return hashlib.sha256(await self.asker.read(key)).hexdigest()

    async def lose_holder(self) -> None:
        """a1 goes as one that is killed: its queue pairs are gone, and its connections."""
        for session in list(self.holder.node.parts.rdma._table):
            session.line.fail("closed")
        await self.holder.die()

    async def connect(self) -> None:
        """Returns once a2 has a session with a1, and has used it."""
        key, digest = await self.warm(MIB)
        before = self.moved
        async with asyncio.timeout(_SECONDS):
            while self.moved == before:
                assert await self.read(key) == digest


def patient(node: Running) -> None:
    """Emulated processors take their time."""
    node.parts.client._connect_seconds = 30.0
    node.parts.client._answer_watch = Watch(30.0)
    node.parts.client._body_watch = Watch(30.0)
    # What is read over and over stays where it is.
    node.parts.near.is_hot = lambda span: False  # type: ignore[method-assign]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Two]:
    settings = {
        "rdma": {"mode": "required", "buffers": "8MiB", "peer_buffers": 2},
        "cache": {"chunk_size": "8MiB"},
    }
    async with cluster(tmp_path, {"a1": "a", "a2": "a"}, settings) as made:
        for each in made.nodes:
            patient(each)
        found = Two(made, tmp_path)
        await found.connect()
        yield found


async def test_chunks_move_from_node_to_node(nodes: Two) -> None:
    for size_bytes in (MIB // 4, MIB + 1, 8 * MIB - 1, 8 * MIB):
        key, digest = await nodes.warm(size_bytes)
        before = nodes.moved
        for _ in range(3):
            assert await nodes.read(key) == digest
        assert nodes.moved - before == 3 * size_bytes
    assert nodes.asker.parts.moving.free == 2


async def test_many_at_once_all_arrive(nodes: Two) -> None:
    found = [await nodes.warm(MIB) for _ in range(6)]
    digests = await asyncio.gather(*(nodes.read(key) for key, _ in found))
    assert digests == [digest for _, digest in found]
    assert nodes.asker.parts.moving.free == 2


async def test_an_asker_whose_queue_pair_broke_is_answered_over_http(nodes: Two) -> None:
    key, digest = await nodes.warm(2 * MIB)
    session = nodes.session
    assert session is not None
    session._pair.fail()
    before = nodes.moved
    assert await nodes.read(key) == digest
    assert nodes.moved == before
    assert session.over
    assert nodes.asker.parts.moving.free == 2
    await nodes.connect()


async def test_a_node_lost_midway_of_a_transfer_costs_no_bytes(nodes: Two) -> None:
    key, digest = await nodes.warm(8 * MIB)
    session, memory = nodes.session, nodes.asker.parts.moving._memory
    assert session is not None
    assert memory is not None
    memory._whole[:] = bytes(len(memory._whole))
    before = nodes.moved
    reading = asyncio.create_task(nodes.read(key))
    await until(lambda: any(memory._whole[:64]) or any(memory._whole[8 * MIB :][:64]), "some came")
    await nodes.lose_holder()
    # From the origin, from the first byte on: what had come was never said to be good.
    assert await reading == digest
    assert nodes.moved == before
    assert session.over
    assert nodes.asker.parts.moving.free == 2


async def test_a_key_that_opens_nothing_any_more_costs_no_bytes(nodes: Two) -> None:
    key, digest = await nodes.warm(2 * MIB)
    memory = nodes.asker.parts.moving._memory
    assert memory is not None
    for target in memory._free:
        target.region.close()
    before = nodes.moved
    assert await nodes.read(key) == digest
    assert nodes.moved == before
    assert nodes.holder.counted("feedrack_rdma_transfers_total", outcome="failed") == 1
