"""Memberships over a real Redis, several in one process, each with a memory that notes what it is
told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster.changes import Begun, Ended, encode_refs
from gateway.cluster.members import Member, Members
from gateway.cluster.membership import Membership, _ended
from gateway.cluster.session import Claimed, Mark
from gateway.cluster.writing import SharedChanges
from gateway.config import ClusterConfig
from gateway.errors import CoordinatorUnavailable
from gateway.index.cluster import Link
from gateway.model.objects import ObjectRef
from tests.cluster.conftest import absent
from tests.cluster.loopback import Loopback
from tests.cluster.services import RedisProcess, redis_server
from tests.waiting import until

LEASE = 0.6
KEY = ObjectRef("origin", "bucket", "key")
OTHER = ObjectRef("origin", "bucket", "other\udce4")


class Noting:
    """A memory that only notes."""

    def __init__(self) -> None:
        self.changing: dict[object, tuple[ObjectRef, ...]] = {}
        self.ever_changing: list[tuple[ObjectRef, ...]] = []
        self.ended_changes: list[Ended] = []
        self.misses: list[Sequence[ObjectRef] | None] = []
        self.stuck: asyncio.Event | None = None

    def begun(self, begun: Begun) -> Awaitable[None]:
        self.changing[begun.change] = begun.refs
        self.ever_changing.append(begun.refs)
        return self._written_down()

    def ended(self, ended: Ended) -> None:
        self.changing.pop(ended.change, None)
        self.ended_changes.append(ended)

    async def missed(self, refs: Sequence[ObjectRef] | None) -> None:
        self.misses.append(refs)
        self.changing.clear()

    async def _written_down(self) -> None:
        if self.stuck is not None:
            await self.stuck.wait()


class Node:
    """One membership and what goes with it."""

    def __init__(self, redis: RedisProcess, id_: str, folder: str = "") -> None:
        self.config = ClusterConfig(
            redis_url=redis.url,
            secret_file=Path("unused"),
            renew_seconds=LEASE / 6,
            lease_seconds=LEASE,
            changes_kept=1000,
        )
        self.link = Link(self.config.redis_url, self.config.name, patience_seconds=0.5)
        self.members = Members(id_)
        self.memory = Noting()
        self.id = id_
        self.folder = folder
        self.ahead = 0.0
        self.shape = (8, 1)
        self.membership = self._new()
        self.changes = SharedChanges(self.link, self.config, self.membership)

    async def start(self, mark: Mark | None = None) -> None:
        await self.link.start()
        member = Member(
            id=self.id, incarnation="", rack="r1", zone="z1", peers="", s3=f"http://{self.id}",
            admin="", capacity_bytes=1, version="1", shape=self.shape,
        )  # fmt: skip
        await self.membership.start(member, folder_token=self.folder, mark=mark)

    async def die(self) -> None:
        """Ends without leaving."""
        task = self.membership._task
        assert task is not None
        self.membership._leaving = True
        await _ended(task)
        await self.link.close()

    async def close(self) -> None:
        await self.membership.close()
        await self.link.close()

    def trusts(self) -> bool:
        return self.membership.now() < self.membership.trusted_until()

    def _new(self) -> Membership:
        loop = asyncio.get_running_loop()
        return Membership(
            self.link,
            self.config,
            self.members,
            self.memory,
            now=lambda: loop.time() + self.ahead,
        )


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    if redis_server() is None:
        absent("redis", "redis-server is not installed")
    network = Loopback()
    server = RedisProcess(tmp_path / "redis", network.services, network.port("redis"))
    server.start()
    yield server
    server.stop()


MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def make_node(redis: RedisProcess) -> AsyncIterator[MakeNode]:
    nodes: list[Node] = []

    async def make(id_: str, folder: str = "", mark: Mark | None = None) -> Node:
        node = Node(redis, id_, folder)
        nodes.append(node)
        await node.start(mark)
        return node

    yield make
    for node in nodes:
        await node.close()


async def test_members_see_each_other_come_and_go(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: len(one.members.all()) == len(two.members.all()) == 2)
    assert [each.id for each in one.members.all()] == ["n1", "n2"]
    await two.membership.close()
    await until(lambda: len(one.members.all()) == 1)


async def test_another_node_of_the_same_id_is_refused_while_the_first_is_alive(
    make_node: MakeNode,
) -> None:
    one = await make_node("n1", folder="folder-a")
    with pytest.raises(Claimed, match="http://n1"):
        await make_node("n1", folder="folder-b")
    assert one.trusts()


async def test_a_node_that_cuts_objects_otherwise_is_refused(
    redis: RedisProcess, make_node: MakeNode
) -> None:
    one = await make_node("n1")
    other = Node(redis, "n2")
    other.shape = (16, 1)
    with pytest.raises(Claimed, match=r"chunk_size.*\(16, 1\).*\(8, 1\) on 'n1'"):
        await other.start()
    await other.close()
    await until(lambda: [each.id for each in one.members.all()] == ["n1"])


async def test_a_node_that_restarts_over_its_folder_is_a_member_at_once(
    make_node: MakeNode,
) -> None:
    one = await make_node("n1", folder="folder")
    await until(one.trusts)
    await one.die()
    begun = asyncio.get_running_loop().time()
    again = await make_node("n1", folder="folder")
    assert again.members.here() is not None
    assert asyncio.get_running_loop().time() - begun < LEASE / 2


async def test_a_node_that_restarts_elsewhere_takes_over_once_the_lease_is_over(
    make_node: MakeNode,
) -> None:
    one = await make_node("n1", folder="folder-a")
    await one.die()
    again = await make_node("n1", folder="folder-b")
    assert again.members.here() is not None


async def test_a_write_waits_until_every_member_has_stopped_trusting(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and two.trusts())
    two.memory.stuck = asyncio.Event()
    change = one.changes.begin([KEY, OTHER])
    waiting = asyncio.create_task(change.settled())
    await until(lambda: len(two.memory.changing) == 1)
    assert not waiting.done()
    assert next(iter(two.memory.changing.values())) == (KEY, OTHER)
    two.memory.stuck.set()
    await waiting
    await change.confirm()
    change.end()
    await until(lambda: not two.memory.changing)
    assert not two.memory.ended_changes[-1].abandoned


async def test_a_write_waits_for_a_dead_member_no_longer_than_its_lease(
    make_node: MakeNode,
) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and len(one.members.all()) == 2)
    await two.die()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    change = one.changes.begin([KEY])
    await change.settled()
    assert loop.time() - begun < 2 * LEASE + 0.5
    assert [each.id for each in one.members.all()] == ["n1"]


async def test_what_a_dead_writer_was_changing_is_over_with_its_lease(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: len(one.members.all()) == 2)
    await two.changes.begin([KEY]).settled()
    assert list(one.memory.changing.values()) == [(KEY,)]
    await two.die()
    await until(lambda: not one.memory.changing)
    assert one.memory.ended_changes[-1].abandoned


async def test_who_joins_hears_of_what_a_dead_writer_has_left_undone(make_node: MakeNode) -> None:
    """The origin may do it yet: until that is unlikely the key is not to be trusted here either."""
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: len(one.members.all()) == 2)
    await two.changes.begin([KEY]).settled()
    await two.die()
    await until(lambda: len(one.members.all()) == 1)
    three = await make_node("n3")
    [left] = three.memory.ended_changes
    assert left.abandoned
    assert left.change.run.id == "n2"
    assert three.memory.ever_changing == [(KEY,)]


async def test_a_writer_that_starts_again_hears_of_what_it_has_left_undone(
    make_node: MakeNode,
) -> None:
    before = await make_node("n1", folder="f")
    await before.changes.begin([KEY, OTHER]).settled()
    await before.die()
    after = await make_node("n1", folder="f")
    assert after.memory.ever_changing == [(KEY, OTHER)]
    assert [each.abandoned for each in after.memory.ended_changes] == [True]


async def test_who_joins_hears_of_what_is_being_changed(make_node: MakeNode) -> None:
    one = await make_node("n1")
    change = one.changes.begin([KEY])
    await change.settled()
    two = await make_node("n2")
    assert list(two.memory.changing.values()) == [(KEY,)]
    assert two.memory.misses == [None]


async def test_a_node_that_was_away_drops_what_changed_meanwhile_and_keeps_the_rest(
    make_node: MakeNode,
) -> None:
    one, two = await make_node("n1"), await make_node("n2", folder="folder")
    await until(lambda: one.trusts() and two.trusts())
    mark = two.membership.mark
    await two.die()
    change = one.changes.begin([KEY])
    await change.settled()
    change.end()
    again = await make_node("n2", folder="folder", mark=mark)
    assert again.memory.misses == [[KEY]]


async def test_a_node_that_was_away_for_too_long_drops_everything(
    make_node: MakeNode, redis: RedisProcess
) -> None:
    one, two = await make_node("n1"), await make_node("n2", folder="folder")
    mark = two.membership.mark
    await two.die()
    await one.changes.begin([KEY]).settled()
    with redis.client() as client:
        client.xtrim(one.link.key("changes"), maxlen=1, approximate=False)
    again = await make_node("n2", folder="folder", mark=mark)
    assert again.memory.misses == [None]


async def test_a_node_whose_lease_has_run_out_trusts_nothing_until_it_renews_it(
    make_node: MakeNode, redis: RedisProcess
) -> None:
    one = await make_node("n1")
    await until(one.trusts)
    redis.stop()
    async with asyncio.timeout(LEASE + 1):
        await until(lambda: not one.trusts())
    with pytest.raises(CoordinatorUnavailable):
        await one.changes.begin([KEY]).settled()
    redis.start(empty=True)
    await until(one.trusts)
    await one.changes.begin([KEY]).settled()


async def test_after_redis_is_empty_nobody_writes_before_the_old_leases_are_over(
    make_node: MakeNode, redis: RedisProcess
) -> None:
    one = await make_node("n1")
    await until(one.trusts)
    redis.stop()
    redis.start(empty=True)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    session = one.membership.session
    await until(lambda: one.membership.session is not session)
    assert not one.trusts()
    await one.changes.begin([KEY]).settled()
    assert loop.time() - begun >= LEASE
    assert one.memory.misses[-1] is None


async def test_a_redis_that_came_back_with_old_data_is_not_believed_either(
    make_node: MakeNode, redis: RedisProcess
) -> None:
    one = await make_node("n1")
    await until(one.trusts)
    redis.stop(saving=True)
    redis.start(empty=False)
    session = one.membership.session
    await until(lambda: one.membership.session is not session)
    await until(one.trusts)
    assert one.memory.misses[-1] is None


async def test_a_change_is_announced_again_in_the_session_after(
    make_node: MakeNode, redis: RedisProcess
) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and two.trusts())
    change = one.changes.begin([KEY])
    await change.settled()
    redis.stop()
    redis.start(empty=True)
    before = one.membership.session
    await until(lambda: one.membership.session is not before)
    await until(lambda: one.members.get("n2") is not None)
    await change.confirm()
    assert list(two.memory.changing.values()) == [(KEY,)]
    change.end()
    await until(lambda: not two.memory.changing)


async def test_a_node_that_others_took_for_gone_joins_again_by_itself(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: len(one.members.all()) == 2)
    session = two.membership.session
    assert session is not None
    await one.membership._end_membership(session.run, "")
    await until(lambda: two.membership.session is not session and two.trusts())
    await until(lambda: len(one.members.all()) == 2)


async def test_many_writes_at_once_settle(make_node: MakeNode) -> None:
    nodes = [await make_node(f"n{number}") for number in range(3)]
    await until(lambda: all(node.trusts() for node in nodes))

    async def write(node: Node, number: int) -> None:
        change = node.changes.begin([ObjectRef("origin", "bucket", str(number))])
        await change.settled()
        await change.confirm()
        change.end()

    await asyncio.gather(*(write(node, number) for node in nodes for number in range(200)))
    await until(lambda: not any(node.memory.changing for node in nodes))


async def test_what_a_node_tells_of_itself_is_seen_by_others(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: len(one.members.all()) == 2)
    await two.membership.update(state="draining")
    await until(lambda: [each.id for each in one.members.serving()] == ["n1"])


class Gate:
    """Redis, as long as `open`; else away for this node alone."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = True
        script = node.link.script

        async def asked(*words: Any, **how: Any) -> Any:
            if not self.open:
                raise CoordinatorUnavailable("away")
            return await script(*words, **how)

        monkeypatch.setattr(node.link, "script", asked)


async def test_a_node_that_is_refused_after_its_start_goes_on_trying(
    redis: RedisProcess, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await make_node("n1")
    other = Node(redis, "n1")
    gate = Gate(other, monkeypatch)
    gate.open = False
    await other.start()
    gate.open = True
    await until(lambda: other.membership._first is None)
    await one.membership.close()
    await until(lambda: other.members.here() is not None)
    await other.close()


async def test_who_joins_trusts_no_lease_that_no_replica_has(
    redis: RedisProcess, make_node: MakeNode
) -> None:
    first = await make_node("n0")
    await until(lambda: first.membership.session is not None)
    await until(first.trusts)
    node = Node(redis, "n1")
    node.config = replace(node.config, redis_replicas=1)
    node.membership = node._new()
    await node.start()
    assert not node.trusts()
    await node.close()


async def test_a_write_that_has_to_be_announced_again_waits_no_longer_than_its_patience(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and two.trusts())
    change = one.changes.begin([KEY])
    await change.settled()
    gate = Gate(one, monkeypatch)
    gate.open = False
    await until(lambda: not one.trusts())
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(CoordinatorUnavailable):
        await change.confirm()
    assert loop.time() - begun < one.changes.patience_seconds + LEASE
    change.end()


async def test_many_that_die_at_once_are_gone_soon(make_node: MakeNode) -> None:
    nodes = [await make_node(f"n{number:02}") for number in range(9)]
    await until(lambda: len(nodes[0].members.all()) == 9)
    for each in nodes[3:]:
        await each.die()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await until(lambda: len(nodes[0].members.all()) == 3)
    assert loop.time() - begun < 4 * LEASE


async def test_a_member_whose_disk_hangs_stands_aside(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and two.trusts())
    two.memory.stuck = asyncio.Event()
    change = one.changes.begin([KEY])
    await change.settled()
    assert not two.trusts()
    assert [each.id for each in one.members.all()] == ["n1"]
    change.end()


async def test_what_a_dead_writer_is_told_is_not_left_behind(make_node: MakeNode) -> None:
    one, two = await make_node("n1"), await make_node("n2")
    session = two.membership.session
    assert session is not None
    await two.changes.begin([KEY]).settled()
    acks = one.link.key("acks", *session.run)
    assert 0 < await one.link.command("TTL", acks) <= 60


async def test_a_change_that_was_begun_after_all_is_ended(make_node: MakeNode) -> None:
    """Its writer had given it up: the command was on its way for longer than anybody waited."""
    one, two = await make_node("n1"), await make_node("n2")
    await until(lambda: one.trusts() and two.trusts())
    session = one.membership.session
    assert session is not None
    await one.changes._append(session, "begin", 77, encode_refs([KEY]))
    await until(lambda: (KEY,) in two.memory.ever_changing)
    await until(lambda: not two.memory.changing)
