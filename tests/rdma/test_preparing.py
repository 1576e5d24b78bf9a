"""Preparing a session while a way to its client is looked for: who waits, who does not, and what is
left of one who went."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.config import RdmaConfig
from gateway.rdma.device import RdmaUnavailable, VerbFailed
from gateway.rdma.server import RdmaServer
from gateway.rdma.sessions import TooManySessions
from gateway.rdma.token import Token
from gateway.rdma.wire import PairAddress
from tests.rdma.soft import Fabric, SoftPair
from tests.rdma.test_server import Lab
from tests.waiting import until


class Ways:
    """Whoever is asked for, in that order, until the test says what came of it."""

    def __init__(self, fabric: Fabric) -> None:
        self.asked: list[asyncio.Future[None]] = []
        fabric.on_reach = self.look

    async def look(self, _: PairAddress) -> None:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]

    async def until(self, count: int) -> None:
        """Returns once so many have been asked for."""
        await until(lambda: len(self.asked) >= count)

    def found(self) -> None:
        """There is a way to all of them."""
        for each in self.asked:
            if not each.done():
                each.set_result(None)

    def not_found(self, number: int) -> None:
        self.asked[number].set_exception(VerbFailed("nobody is there"))


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    await lab.server.start()
    yield lab
    await lab.server.close()
    assert not pairs_of_server(lab)
    lab.client.close()


@pytest.fixture
def ways(lab: Lab) -> Ways:
    return Ways(lab.fabric)


def pairs_of_server(lab: Lab) -> int:
    return sum(pair.device is not lab.client for pair in lab.fabric.pairs.values())


def preparing(lab: Lab, tenant: str, count: int = 1) -> list[asyncio.Task[tuple[str, SoftPair]]]:
    return [asyncio.create_task(lab.prepare(tenant)) for _ in range(count)]


async def test_nobody_waits_for_anothers_way(lab: Lab, ways: Ways) -> None:
    held = preparing(lab, "a", 6)
    await ways.until(4)
    lab.fabric.on_reach = Fabric().on_reach
    session, _ = await lab.connect("b")
    transfer = lab.server.claim("b", Token(session, 0, 0, 0, 0))
    assert transfer is not None
    await transfer.close()
    assert not any(each.done() for each in held)
    ways.found()
    await asyncio.gather(*held)
    assert lab.server.sessions_of("a") == 6


async def test_of_one_tenants_addresses_a_few_are_asked_at_a_time(lab: Lab, ways: Ways) -> None:
    held = preparing(lab, "a", 6)
    others = preparing(lab, "b", 6)
    await ways.until(8)
    await lab.sweeps()
    assert len(ways.asked) == 8
    ways.found()
    await ways.until(12)
    ways.found()
    await asyncio.gather(*held, *others)


async def test_who_waits_for_a_way_counts_as_a_session() -> None:
    lab = Lab(sessions=3, sessions_per_tenant=2)
    await lab.server.start()
    ways = Ways(lab.fabric)
    held = preparing(lab, "a", 2)
    await ways.until(2)
    with pytest.raises(TooManySessions):
        await lab.prepare("a")
    held += preparing(lab, "b")
    await ways.until(3)
    with pytest.raises(TooManySessions):
        await lab.prepare("c")
    assert len(ways.asked) == 3
    ways.found()
    await asyncio.gather(*held)
    assert (lab.server.sessions_of("a"), lab.server.sessions_of("b")) == (2, 1)
    with pytest.raises(TooManySessions):
        await lab.prepare("c")
    await lab.server.close()
    lab.client.close()


async def test_who_waits_for_a_way_has_room_in_the_completion_queue() -> None:
    lab = Lab()
    device = lab.fabric.device()
    device.max_completions = 40
    lab.server = RdmaServer(RdmaConfig(), lab.metrics, open_device=lambda *_: device)
    await lab.server.start()
    ways = Ways(lab.fabric)
    held = preparing(lab, "a", 2)
    await ways.until(2)
    with pytest.raises(TooManySessions):
        await lab.prepare("b")
    ways.found()
    await asyncio.gather(*held)
    await lab.server.close()
    lab.client.close()


async def test_who_cannot_be_reached_is_not_listened_to_for_a_while(lab: Lab, ways: Ways) -> None:
    nowhere, *others = preparing(lab, "a", 5)
    await ways.until(4)
    ways.not_found(0)
    with pytest.raises(VerbFailed, match="nobody"):
        await nowhere
    with pytest.raises(TooManySessions):
        await lab.prepare("a")
    # Nor are those who were asked for already, or wait for their turn.
    ways.found()
    for each in others:
        with pytest.raises(TooManySessions):
            await each
    assert len(ways.asked) == 4
    assert not pairs_of_server(lab)
    lab.clock.now += 10
    lab.fabric.on_reach = Fabric().on_reach
    await lab.connect("a")


async def test_where_it_cannot_be_found_out_one_connection_fails_at_a_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the kernel a second each, for which all stand still."""
    tried = []

    def fail(pair: SoftPair, peer: PairAddress) -> None:
        tried.append(peer)
        raise VerbFailed("nobody is there")

    async def look(_: PairAddress) -> None:
        await asyncio.sleep(0)

    lab.fabric.on_reach = look
    monkeypatch.setattr(SoftPair, "connect", fail)
    found = await asyncio.gather(*preparing(lab, "a", 6), return_exceptions=True)
    assert [type(each) for each in found] == [VerbFailed] + 5 * [TooManySessions]
    assert len(tried) == 1
    assert not pairs_of_server(lab)


async def test_who_hangs_up_while_a_way_is_looked_for_leaves_nothing() -> None:
    lab = Lab(sessions_per_tenant=5)
    await lab.server.start()
    ways = Ways(lab.fabric)
    # The last waits for its turn.
    held = preparing(lab, "a", 5)
    await ways.until(4)
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert all(each.cancelled() for each in ways.asked)
    assert lab.server.sessions_of("a") == 0
    assert not pairs_of_server(lab)
    # And is no reason not to listen.
    lab.fabric.on_reach = Fabric().on_reach
    for _ in range(5):
        await lab.connect("a")
    await lab.server.close()
    lab.client.close()


async def test_a_server_that_closes_connects_nobody(lab: Lab, ways: Ways) -> None:
    [held] = preparing(lab, "a")
    await ways.until(1)
    closing = asyncio.create_task(lab.server.close())
    await asyncio.sleep(0)
    ways.found()
    with pytest.raises(RdmaUnavailable, match="closed"):
        await held
    await closing
    assert not pairs_of_server(lab)


async def test_a_device_that_is_lost_meanwhile_connects_nobody(lab: Lab, ways: Ways) -> None:
    [held] = preparing(lab, "a")
    await ways.until(1)
    lab.server._lost("gone")
    ways.found()
    with pytest.raises(RdmaUnavailable, match="gone"):
        await held


async def test_a_queue_pair_that_is_prepared_twice_at_once_has_one_session(
    lab: Lab, ways: Ways
) -> None:
    pair = lab.client.pair(depth=1, remote=True)
    one, other = (asyncio.create_task(lab.server.prepare("a", pair.address)) for _ in range(2))
    await ways.until(2)
    # It is whose it was first, also before there is a way.
    with pytest.raises(TooManySessions):
        await lab.server.prepare("thief", pair.address)
    ways.asked[1].set_result(None)
    first = await other
    ways.asked[0].set_result(None)
    last = await one
    assert lab.server.sessions_of("a") == 1
    assert not lab.is_there(first.session)
    assert lab.is_there(last.session)
