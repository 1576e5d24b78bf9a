"""Chunks between nodes by RDMA, over a soft device: what moves, what goes over HTTP all the same,
and that no read fails of it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.rdma.device import Device, RdmaUnavailable, VerbFailed
from gateway.rdma.token import Token, render_token
from gateway.rdma.wire import PairAddress
from gateway.tiers.peers.asking import RDMA_TOKEN
from gateway.tiers.peers.sessions import PeerSession
from gateway.tiers.wire import Watch
from tests.cluster.between import between
from tests.cluster.running import CHUNK_BYTES, Cluster, Running, cluster
from tests.cluster.test_reading_near import put
from tests.rdma.soft import Fabric, SoftDevice, SoftPair
from tests.waiting import until

MIB = 1024**2
RDMA = {"buffers": "4MiB", "peer_buffers": 2, "transfer_timeout_seconds": 0.5}


class Two:
    """a1 holds things, a2 asks for them."""

    def __init__(
        self, made: Cluster, fabric: Fabric, devices: Mapping[str, list[SoftDevice]], folder: Path
    ) -> None:
        self.fabric = fabric
        self.devices = devices
        self.holder, self.asker = made["a1"], made["a2"]
        self._cluster = made
        self._folder = folder
        self._names = itertools.count()

    @property
    def moved(self) -> int:
        """Bytes that a1 has moved to a2."""
        return int(self.holder.counted("feedrack_rdma_bytes_total", operation="peer"))

    def fell_back(self, reason: str) -> int:
        counted = self.asker.counted("feedrack_rdma_peer_fallbacks_total", reason=reason)
        return int(counted)

    @property
    def session(self) -> PeerSession | None:
        """That of a2 with a1."""
        return self.asker.parts.moving._sessions._sessions.get("a1")

    @property
    def sound(self) -> bool:
        """Whether each has all its buffers."""
        pool = self.holder.node.parts.rdma._pool
        assert pool is not None
        return self.asker.parts.moving.free == 2 and pool.free == pool.count

    def cold(self, size_bytes: int = CHUNK_BYTES) -> tuple[str, bytes]:
        """A key of which nobody holds anything, and its object; a1 is its home."""
        key = self._cluster.key_at("a1", prefix=f"k{next(self._names)}-")
        return key, put(self._folder, key, size_bytes)

    async def warm(self, size_bytes: int = CHUNK_BYTES) -> tuple[str, bytes]:
        """As `cold`, of which a1 holds all and a2 nothing."""
        key, body = self.cold(size_bytes)
        await self.holder.read(key)
        await self._cluster.settled()
        return key, body

    async def connect(self) -> None:
        """Returns once a2 has a session with a1, and has used it."""
        before = self.moved
        async with asyncio.timeout(60):
            while self.moved == before:
                key, body = await self.warm()
                assert await self.asker.read(key) == body
        await until(lambda: self.sound)


@asynccontextmanager
async def two(
    folder: Path, *, without: str = "", racks: tuple[str, str] = ("a", "a"), **settings: Any
) -> AsyncIterator[Two]:
    fabric = Fabric()
    devices: dict[str, list[SoftDevice]] = {"a1": [], "a2": []}

    def opener(id_: str) -> Callable[..., Device]:
        def open_device(*_: object) -> Device:
            if id_ == without:
                raise RdmaUnavailable("there is no RDMA device")
            device = fabric.device()
            devices[id_].append(device)
            return device

        return open_device

    settings = {"rdma": RDMA, **settings}
    nodes = {"a1": racks[0], "a2": racks[1]}
    async with cluster(folder, nodes, settings, open_device=opener) as made:
        # What a2 reads of a1 in its rack it keeps nothing of.
        made["a2"].parts.near.is_hot = lambda span: False  # type: ignore[method-assign]
        yield Two(made, fabric, devices, folder)
    assert not fabric.pairs
    assert not any(device.regions for found in devices.values() for device in found)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Two]:
    async with two(tmp_path) as made:
        await made.connect()
        yield made


# What moves


async def test_a_chunk_moves_from_node_to_node(nodes: Two) -> None:
    key, body = await nodes.warm()
    moved, sent = nodes.moved, nodes.holder.counted("feedrack_peer_sent_bytes_total")
    for _ in range(5):
        assert await nodes.asker.read(key) == body
    assert nodes.moved - moved == 5 * CHUNK_BYTES
    sent = nodes.holder.counted("feedrack_peer_sent_bytes_total") - sent
    assert 5 * CHUNK_BYTES <= sent < 6 * CHUNK_BYTES
    assert await nodes.asker.tiers(key) == ("rack", {"rack": CHUNK_BYTES})
    assert nodes.sound
    assert len(nodes.holder.node.parts.rdma._table) == 1


async def test_what_crosses_a_rack_boundary_is_counted_and_kept(tmp_path: Path) -> None:
    async with two(tmp_path, racks=("a", "b")) as nodes:
        await nodes.connect()
        key, body = await nodes.warm()
        crossed = nodes.asker.counted("feedrack_cross_rack_bytes_total")
        moved = nodes.moved
        assert await nodes.asker.read(key) == body
        assert nodes.moved - moved == CHUNK_BYTES
        assert nodes.asker.counted("feedrack_cross_rack_bytes_total") - crossed == CHUNK_BYTES
        assert await nodes.asker.holds(key)
        assert await nodes.asker.read(key) == body
        assert nodes.moved - moved == CHUNK_BYTES


async def test_a_span_larger_than_a_buffer_moves_in_parts(tmp_path: Path) -> None:
    async with two(tmp_path, cache={"chunk_size": 16 * MIB}) as nodes:
        await nodes.connect()
        key, body = await nodes.warm(16 * MIB)
        moved = nodes.moved
        assert await nodes.asker.read(key) == body
        assert nodes.moved - moved == 16 * MIB
        assert nodes.sound


async def test_many_at_once_take_what_buffers_there_are(nodes: Two) -> None:
    found = [await nodes.warm() for _ in range(12)]
    moved = nodes.moved
    for _ in range(5):
        bodies = await asyncio.gather(*(nodes.asker.read(key) for key, _ in found))
        assert bodies == [body for _, body in found]
    assert nodes.moved > moved
    assert nodes.fell_back("no-buffer") > 0
    assert (nodes.moved - moved) // CHUNK_BYTES + nodes.fell_back("no-buffer") == 60
    assert nodes.sound


# What does not


async def test_a_short_read_stays_on_http(nodes: Two) -> None:
    key, body = await nodes.warm(CHUNK_BYTES - 1)
    moved = nodes.moved
    assert await nodes.asker.read(key) == body
    assert nodes.moved == moved
    assert not nodes.fell_back("declined")


async def test_what_is_cold_comes_over_http_in_the_same_answer(nodes: Two) -> None:
    key, body = nodes.cold(3 * CHUNK_BYTES)
    moved = nodes.moved
    asked = nodes.asker.counted("feedrack_peer_requests_total", asked="span rack")
    assert await nodes.asker.read(key) == body
    asked = nodes.asker.counted("feedrack_peer_requests_total", asked="span rack") - asked
    assert nodes.fell_back("declined") == asked - (nodes.moved - moved) // CHUNK_BYTES > 0
    assert nodes.holder.counted("feedrack_origin_requests_total", operation="GetObject") >= 3
    assert nodes.session is not None
    assert nodes.sound


async def test_nobody_waits_for_a_session(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        key, body = await nodes.warm()
        assert await nodes.asker.read(key) == body
        assert nodes.moved == 0
        assert nodes.fell_back("connecting") == 1


@pytest.mark.parametrize(("without", "reason"), [("a1", "connect"), ("a2", "no-device")])
async def test_a_device_that_one_side_has_is_none(
    tmp_path: Path, without: str, reason: str
) -> None:
    async with two(tmp_path, without=without) as nodes:
        key, body = await nodes.warm()
        async with asyncio.timeout(60):
            while not nodes.fell_back(reason):
                assert await nodes.asker.read(key) == body
        assert await nodes.asker.read(key) == body
        assert nodes.moved == 0


@pytest.mark.parametrize("rdma", [{"mode": "off"}, {"peer_buffers": 0}])
async def test_a_node_that_is_to_have_none_opens_nothing(
    tmp_path: Path, rdma: dict[str, Any]
) -> None:
    async with two(tmp_path, rdma=rdma) as nodes:
        key, body = await nodes.warm()
        for _ in range(3):
            assert await nodes.asker.read(key) == body
        assert nodes.asker.parts.moving._opening is None
        assert len(nodes.devices["a2"]) == (0 if "mode" in rdma else 1)


async def test_a_reader_that_takes_nothing_loses_its_buffer_and_no_bytes(tmp_path: Path) -> None:
    async with two(tmp_path, cache={"chunk_size": 4 * MIB}) as nodes:
        await nodes.connect()
        moving = nodes.asker.parts.moving
        slow, slow_body = await nodes.warm(4 * MIB)
        fast, fast_body = await nodes.warm(4 * MIB)
        answer = await nodes.asker.open(slow)
        blocks = answer.blocks()
        got = bytes(await anext(blocks))
        assert moving.free == 1
        assert moving._memory is not None
        other = moving._memory.take()
        assert other is not None
        moved = nodes.moved
        assert await nodes.asker.read(fast) == fast_body
        assert nodes.fell_back("no-buffer") == 1
        moving._now = lambda: float("inf")
        assert await nodes.asker.read(fast) == fast_body
        assert nodes.moved - moved == 4 * MIB
        async for block in blocks:
            got += block
        await answer.close()
        assert got == slow_body
        moving._memory.give(other)
        assert nodes.sound


@pytest.mark.parametrize("end", ["asked", "asker"])
async def test_nodes_with_no_way_between_them_have_http(tmp_path: Path, end: str) -> None:
    """Of each session the asked node looks for the asker first, and then the asker for it."""
    async with two(tmp_path) as nodes:
        looked: list[PairAddress] = []

        async def look(peer: PairAddress) -> None:
            looked.append(peer)
            if len(looked) == ("asked", "asker").index(end) + 1:
                raise VerbFailed("nobody is there")

        nodes.fabric.on_reach = look
        key, body = await nodes.warm()
        async with asyncio.timeout(60):
            while not nodes.fell_back("connect"):
                assert await nodes.asker.read(key) == body
        assert nodes.session is None
        assert nodes.sound


# What breaks


async def test_a_session_that_the_other_has_ended_is_connected_anew(nodes: Two) -> None:
    key, body = await nodes.warm()
    old = nodes.session
    assert old is not None
    nodes.holder.node.parts.rdma.cancel("node:a2", old.id)
    moved = nodes.moved
    assert await nodes.asker.read(key) == body
    assert nodes.moved == moved
    assert nodes.fell_back("session") == 1
    assert old.over
    await nodes.connect()
    assert nodes.session is not old


async def test_a_transfer_that_fails_costs_no_bytes(nodes: Two) -> None:
    key, body = await nodes.warm()
    old = nodes.session
    assert old is not None
    # A key that opens nothing any more.
    regions = nodes.devices["a2"][-1].regions
    kept = dict(regions)
    regions.clear()
    moved = nodes.moved
    assert await nodes.asker.read(key) == body
    assert nodes.moved == moved
    assert nodes.fell_back("transfer") == 1
    assert nodes.holder.counted("feedrack_rdma_transfers_total", outcome="failed") == 1
    assert old.over
    assert nodes.sound
    # For a while nobody tries again.
    assert await nodes.asker.read(key) == body
    assert nodes.fell_back("connect") == 1
    regions.update(kept)
    await nodes.connect()


async def test_a_buffer_that_a_node_may_still_write_to_is_nobodys_any_more(
    nodes: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, body = await nodes.warm()
    moving = nodes.asker.parts.moving
    before = moving.free
    nodes.devices["a2"][-1].regions.clear()

    def refuse(pair: SoftPair) -> None:
        raise VerbFailed("Input/output error")

    with monkeypatch.context() as patch:
        for verb in ("fail", "close"):
            honest = getattr(SoftPair, verb)
            patch.setattr(
                SoftPair,
                verb,
                lambda pair, honest=honest: (refuse if pair.remote else honest)(pair),
            )
        assert await nodes.asker.read(key) == body
    assert nodes.fell_back("transfer") == 1
    assert moving.free == before - 1
    assert nodes.session is None


async def test_a_transfer_that_stands_still_is_given_up(nodes: Two) -> None:
    key, body = await nodes.warm()
    nodes.fabric.held = True
    assert await nodes.asker.read(key) == body
    assert nodes.fell_back("transfer") == 1
    assert nodes.sound
    assert not any(pair.under_way for pair in nodes.fabric.pairs.values())


@pytest.mark.parametrize(("how", "reason"), [("late", "peer"), ("cut", "transfer")])
async def test_a_node_lost_in_the_midst_writes_nothing_afterwards(
    nodes: Two, how: str, reason: str
) -> None:
    key, body = await nodes.warm()
    moving = nodes.asker.parts.moving
    async with between(nodes.holder.parts.address) as proxy:
        rename(nodes.asker, "a1", peers=proxy.address)
        await nodes.connect()
        if how == "late":
            nodes.asker.parts.client._answer_watch = Watch(0.2)
        assert moving._memory is not None
        before = bytes(moving._memory._whole)
        nodes.fabric.held = True
        posted = nodes.fabric.posted
        reading = asyncio.create_task(nodes.asker.read(key))
        await until(lambda: nodes.fabric.posted > posted)
        if how == "cut":
            # It is asked again over another connection, with the same token.
            await proxy.close()
        assert await reading == body
        assert nodes.fell_back(reason) == 1
        assert moving.free == 2
        # What a1 still has under way goes nowhere.
        nodes.fabric.held = False
        late = [pair for pair in nodes.fabric.pairs.values() if pair.under_way]
        assert late
        for pair in late:
            pair.go_on()
        assert bytes(moving._memory._whole) == before
        await until(lambda: nodes.sound)


async def test_a_reader_that_leaves_ends_nobodys_session(nodes: Two) -> None:
    key, body = await nodes.warm()
    session = nodes.session
    nodes.fabric.held = True
    posted = nodes.fabric.posted
    reading = asyncio.create_task(nodes.asker.read(key))
    await until(lambda: nodes.fabric.posted > posted)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert nodes.asker.parts.moving.free == 1
    nodes.fabric.held = False
    while not nodes.sound:
        for pair in list(nodes.fabric.pairs.values()):
            pair.go_on()
        await asyncio.sleep(0.005)
    assert nodes.session is session
    moved = nodes.moved
    assert await nodes.asker.read(key) == body
    assert nodes.moved > moved


async def test_a_token_is_good_once(nodes: Two) -> None:
    key, body = await nodes.warm()
    old = nodes.session
    assert old is not None
    old._numbers = itertools.count()
    moved = nodes.moved
    assert await nodes.asker.read(key) == body
    assert nodes.moved == moved
    # Whoever used it may be at the buffer: nobody gets it before the session has ended.
    assert old.over
    assert nodes.fell_back("transfer") == 1
    assert nodes.sound
    await nodes.connect()


@pytest.mark.parametrize("other", ["added", "changed"])
async def test_a_token_that_the_proof_does_not_cover_is_refused(nodes: Two, other: str) -> None:
    session = nodes.session
    assert session is not None
    client = nodes.asker.parts.client
    nonce = client._lines["a1"].nonce
    token = render_token(Token(session.id, 999, 4096, CHUNK_BYTES, 1))
    signed = {} if other == "added" else {RDMA_TOKEN: token}
    target = "/v1/held?bucket=train&prefix="
    proven = client._prover.signed_request("GET", target, signed, node="a2", server_nonce=nonce)
    told = {**proven, RDMA_TOKEN: render_token(Token(session.id, 998, 4096, CHUNK_BYTES, 1))}
    assert await asked(nodes.holder, target, proven) == 200
    assert await asked(nodes.holder, target, told) == 403


async def test_another_nodes_session_is_as_good_as_none(nodes: Two) -> None:
    session = nodes.session
    assert session is not None
    rdma = nodes.holder.node.parts.rdma
    token = Token(session.id, 999, 4096, CHUNK_BYTES, 1)
    # Also to a tenant of the node's name.
    assert rdma.claim("a2", token) is None
    assert rdma.claim("node:a3", token) is None


async def test_what_is_found_corrupt_while_it_moves_comes_from_elsewhere(tmp_path: Path) -> None:
    async with two(tmp_path, cache={"chunk_size": MIB}) as nodes:
        await nodes.connect()
        key, body = await nodes.warm(MIB)
        files = (tmp_path / "a1" / "cache" / "chunks").rglob("*")
        (file,) = [each for each in files if each.is_file() and each.read_bytes()[:MIB] == body]
        with file.open("r+b") as opened:
            opened.seek(700_000)
            opened.write(b"not what it was")
        assert await nodes.asker.read(key) == body
        assert nodes.holder.counted("feedrack_cache_corrupt_total") == 1
        assert nodes.fell_back("transfer") == 1
        assert nodes.sound


async def test_a_session_that_breaks_again_and_again_is_let_be_for_longer(nodes: Two) -> None:
    session, sessions = nodes.session, nodes.asker.parts.moving._sessions
    assert session is not None
    sessions._now = lambda: 0.0
    pauses = []
    for _ in range(8):
        sessions._pause(session.member)
        pauses.append(sessions._broken["a1"][1])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert sessions.pausing(session.member)
    # What came through as it should clears its name.
    sessions.proved(session)
    assert not sessions.pausing(session.member)


async def test_a_member_that_has_gone_leaves_no_session(nodes: Two) -> None:
    old = nodes.session
    assert old is not None
    members = nodes.asker.members.all()
    nodes.asker.members.set([each for each in members if each.id != "a1"])
    assert old.over
    assert nodes.session is None
    # Back as another run of itself, it is connected anew.
    nodes.asker.members.set(members)
    rename(nodes.asker, "a1", incarnation="2")
    await nodes.connect()


async def test_a_node_stops_in_the_midst_of_transfers(tmp_path: Path) -> None:
    async with two(tmp_path) as nodes:
        await nodes.connect()
        keys = [await nodes.warm() for _ in range(2)]
        nodes.fabric.held = True
        posted = nodes.fabric.posted
        reading = [asyncio.create_task(nodes.asker.read(key)) for key, _ in keys]
        await until(lambda: nodes.fabric.posted >= posted + 2)
        await nodes.asker.parts.moving.close()
        assert not nodes.devices["a2"][-1].pairs
        assert await asyncio.gather(*reading) == [body for _, body in keys]


def rename(node: Running, id_: str, **as_: Any) -> None:
    """A member looks different to a node from now on."""
    node.members.set(
        [
            msgspec.structs.replace(each, **as_) if each.id == id_ else each
            for each in node.members.all()
        ]
    )


async def asked(node: Running, target: str, headers: Mapping[str, str]) -> int:
    """The status that a node's port answers to a request with those headers."""
    host, _, port = node.parts.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    status = int((await asyncio.wait_for(reader.readline(), 60)).split()[1])
    writer.close()
    await writer.wait_closed()
    return status
