"""Sessions: who gets one, how long it lasts, and what is left when it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config import RdmaConfig
from gateway.errors import TierUnavailable
from gateway.rdma.device import Device, RdmaUnavailable, VerbFailed
from gateway.rdma.server import RdmaServer
from gateway.rdma.sessions import PREPARE_SECONDS, TooManySessions
from gateway.rdma.token import BadToken, Token
from gateway.rdma.wire import PairAddress
from gateway.telemetry.metrics import Metrics
from tests.rdma.soft import Fabric, SoftDevice, SoftPair
from tests.waiting import until

BUFFERS = 4


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """A server on a clock of the test's, and clients of it."""

    def __init__(self, **config: Any) -> None:
        self.fabric = Fabric()
        self.clock = Clock()
        self.metrics = Metrics()
        self.client = self.fabric.device()
        self.server = RdmaServer(
            RdmaConfig(**{"buffers": BUFFERS * 1024**2, "idle_seconds": 60.0, **config}),
            self.metrics,
            open_device=lambda *_: self.fabric.device(),
            now=self.clock,
            sweep_seconds=0.005,
            knock_seconds=15.0,
        )

    async def prepare(self, tenant: str = "a") -> tuple[str, SoftPair]:
        pair = self.client.pair(depth=1, remote=True)
        prepared = await self.server.prepare(tenant, pair.address)
        pair.connect(prepared.address)
        return prepared.session, pair

    async def connect(self, tenant: str = "a") -> tuple[str, SoftPair]:
        session, pair = await self.prepare(tenant)
        assert self.server.ready(tenant, session)
        return session, pair

    def is_there(self, session: str, tenant: str = "a") -> bool:
        return self.server.ready(tenant, session)

    async def until_gone(self, session: str) -> None:
        await until(lambda: not self.server.sessions_of("a"))
        assert not self.is_there(session)

    async def sweeps(self) -> None:
        """Lets the server look after its sessions a few times."""
        for _ in range(5):
            await asyncio.sleep(0.005)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    await lab.server.start()
    yield lab
    await lab.server.close()
    assert not lab.fabric.pairs or all(
        pair.device is lab.client for pair in lab.fabric.pairs.values()
    )
    lab.client.close()


async def test_a_session_that_is_never_ready_ends(lab: Lab) -> None:
    await lab.prepare()
    assert lab.server.sessions_of("a") == 1
    lab.clock.now += PREPARE_SECONDS
    await until(lambda: not lab.server.sessions_of("a"))


async def test_a_session_that_is_not_used_ends(lab: Lab) -> None:
    session, _ = await lab.connect()
    lab.clock.now += 59
    await lab.sweeps()
    assert lab.server.sessions_of("a") == 1
    lab.clock.now += 1
    await lab.until_gone(session)


async def test_a_session_in_use_does_not_end(lab: Lab) -> None:
    session, _ = await lab.connect()
    transfer = lab.server.claim("a", Token(session, 0, 0, 0, 0))
    assert transfer is not None
    lab.clock.now += 600
    await lab.sweeps()
    assert lab.server.sessions_of("a") == 1
    await transfer.close()
    # And counts from the end of its use.
    await lab.sweeps()
    assert lab.server.sessions_of("a") == 1


async def test_a_client_that_died_leaves_nothing(lab: Lab) -> None:
    session, pair = await lab.connect()
    pair.close()
    lab.clock.now += 15
    await lab.until_gone(session)
    await until(lambda: not lab.fabric.pairs)
    assert lab.server.buffers_free == BUFFERS


async def test_a_client_that_rests_is_asked_and_stays(lab: Lab) -> None:
    _, pair = await lab.connect()
    posted = lab.fabric.posted
    lab.clock.now += 15
    await until(lambda: lab.fabric.posted != posted)
    await lab.sweeps()
    assert lab.server.sessions_of("a") == 1
    assert lab.fabric.posted == posted + 1
    assert not pair.failed


async def test_each_tenant_has_its_share() -> None:
    lab = Lab(sessions=3, sessions_per_tenant=2)
    await lab.server.start()
    for _ in range(2):
        await lab.connect("a")
    with pytest.raises(TooManySessions):
        await lab.prepare("a")
    session, _ = await lab.connect("b")
    with pytest.raises(TooManySessions):
        await lab.prepare("c")
    # What ends makes room; another's cannot be ended.
    lab.server.cancel("a", session)
    assert lab.server.sessions_of("b") == 1
    lab.server.cancel("b", session)
    await lab.connect("c")
    await lab.server.close()
    lab.client.close()


async def test_other_nodes_have_half_of_the_sessions_and_one_share_of_the_buffers() -> None:
    lab = Lab(sessions=80, buffers=16 * 1024**2)
    await lab.server.start()
    for number in range(40):
        await lab.connect(f"node:n{number}")
    with pytest.raises(TooManySessions, match="half"):
        await lab.prepare("node:late")
    session, _ = await lab.connect("a")
    transfer = lab.server.claim("a", Token(session, 0, 0, 4 * 1024**2, 0))
    assert transfer is not None
    # Forty nodes and a tenant are two: each has a third, and a third is left for whoever comes.
    share = lab.server._shares["a"]
    taken = [share.take_now() for _ in range(6)]
    assert [each is None for each in taken] == [*[False] * 5, True]
    # A node that goes makes room for the next.
    node = next(each for each in lab.server._table if each.tenant == "node:n7")
    node.line.fail("cancelled")
    await lab.prepare("node:late")
    for each in taken:
        if each is not None:
            share.give(each)
    await transfer.close()
    await lab.server.close()
    lab.client.close()


async def test_the_completion_queue_bounds_them_all() -> None:
    lab = Lab(sessions=65_536, sessions_per_tenant=65_536, depth=16)
    device = lab.fabric.device()
    device.max_completions = 40
    lab.server = RdmaServer(RdmaConfig(), lab.metrics, open_device=lambda *_: device)
    await lab.server.start()
    await lab.connect()
    await lab.connect()
    with pytest.raises(TooManySessions):
        await lab.prepare()
    await lab.server.close()
    lab.client.close()


async def test_who_cannot_be_connected_is_not_listened_to_for_a_while(lab: Lab) -> None:
    pair = lab.client.pair(depth=1, remote=True)
    address = pair.address
    strange = PairAddress(address.qpn, address.psn, address.gid, address.mtu, "infiniband")
    before = len(lab.fabric.pairs)
    with pytest.raises(VerbFailed):
        await lab.server.prepare("a", strange)
    assert len(lab.fabric.pairs) == before
    with pytest.raises(TooManySessions):
        await lab.server.prepare("a", address)
    await lab.connect("b")
    lab.clock.now += 10
    await lab.connect("a")


async def test_a_claim_is_for_a_ready_session_of_ones_own(lab: Lab) -> None:
    session, _ = await lab.prepare()
    token = Token(session, 0, 0, 0, 0)
    assert lab.server.claim("a", token) is None
    assert lab.server.ready("a", session)
    assert lab.server.claim("b", token) is None
    transfer = lab.server.claim("a", token)
    assert transfer is not None
    await transfer.close()
    with pytest.raises(BadToken):
        lab.server.claim("a", token)


async def test_closing_ends_what_is_under_way() -> None:
    lab = Lab(transfer_timeout_seconds=30.0)
    await lab.server.start()
    session, _ = await lab.connect()
    memory = memoryview(bytearray(1024**2))
    region = lab.client.register(memory, remote=True)
    lab.fabric.held = True
    transfer = lab.server.claim("a", Token(session, 0, region.address, 1024**2, region.rkey))
    assert transfer is not None
    writing = asyncio.create_task(_write(transfer))
    await until(lambda: lab.fabric.posted)
    await lab.server.close()
    with pytest.raises(Exception, match="closed"):
        await writing
    region.close()
    lab.client.close()


async def _write(transfer: Any) -> None:
    try:
        await transfer.write(bytes(1024**2))
        await transfer.finish()
    finally:
        await transfer.close()


@pytest.mark.parametrize("verbs", [True, False])
async def test_without_a_device_everything_is_declined(verbs: bool) -> None:
    def none(*_: object) -> Device:
        raise RdmaUnavailable("there is no RDMA device", verbs=verbs)

    lab = Lab()
    server = RdmaServer(RdmaConfig(), lab.metrics, open_device=none)
    await server.start()
    assert not server.available
    with pytest.raises(RdmaUnavailable, match="no RDMA device"):
        await server.prepare("a", lab.client.pair(depth=1, remote=True).address)
    assert server.claim("a", Token("0" * 32, 0, 0, 0, 0)) is None
    await server.close()
    required = RdmaServer(RdmaConfig(mode="required"), lab.metrics, open_device=none)
    with pytest.raises(TierUnavailable, match="no RDMA device"):
        await required.start()
    lab.client.close()


async def test_memory_that_cannot_be_registered_means_no_rdma(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VerbFailed("Cannot allocate memory")

    lab = Lab()
    monkeypatch.setattr(SoftDevice, "register", refuse)
    await lab.server.start()
    assert lab.server.reason == "Cannot allocate memory"
    await lab.server.close()
    lab.client.close()


async def test_switched_off_it_asks_for_no_device() -> None:
    def never(*_: object) -> Device:
        raise AssertionError

    server = RdmaServer(RdmaConfig(mode="off"), Metrics(), open_device=never)
    await server.start()
    assert server.reason == "switched off"
    await server.close()
