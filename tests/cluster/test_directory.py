"""The directory says what the nodes hold: soon after it changes, after Redis was emptied or away,
and after nodes have died; what it says wrongly is repaired."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.cluster import holdings as holdings_module
from gateway.model.objects import ObjectRef, ObjectVersion
from tests.cluster.listed import Clock, Listed, listed, member
from tests.cluster.one_redis import OneRedis, one_redis
from tests.tiers.cached import CHUNK_BYTES
from tests.waiting import until_it

TWO = (member("a", "r1"), member("b", "r2"))


@pytest.fixture
def redis() -> Iterator[OneRedis]:
    with one_redis() as server:
        yield server


def version(key: str, chunks: int = 8) -> ObjectVersion:
    return ObjectVersion(ObjectRef("main", "bucket", key), "e1", chunks * CHUNK_BYTES)


async def test_a_rack_holds_what_one_of_its_nodes_does(redis: OneRedis) -> None:
    members = (*TWO, member("c", "r2"))
    clock = Clock()
    of = version("a/x")
    async with (
        listed(redis, "a", members, clock) as a,
        listed(redis, "b", members) as b,
        listed(redis, "c", members) as c,
    ):

        async def a_finds(number: int, *racks: str) -> bool:
            clock.seconds += 10
            return await a.racks(of, number) == list(racks)

        b.hold(of, 0, 1)
        c.hold(of, 1, 2)
        await until_it(lambda: a_finds(2, "r2"))
        await until_it(lambda: a_finds(0, "r2"))
        assert await a_finds(1, "r2")
        assert await a_finds(3)

        # What the other node of the rack still holds, the rack still holds.
        b.drop(of, 0, 1)
        await until_it(lambda: a_finds(0))
        assert await a_finds(1, "r2")
        # A node does not ask itself.
        assert await b.racks(of, 1) == ["r2"]
        assert await c.racks(of, 2) == []


async def test_an_answer_serves_for_a_few_seconds_and_askers_share_it(redis: OneRedis) -> None:
    clock = Clock()
    of = version("a/x")
    async with listed(redis, "a", TWO, clock) as a, listed(redis, "b", TWO) as b:
        b.hold(of, *range(8))

        async def found() -> bool:
            clock.seconds += 10
            return await a.racks(of) == ["r2"]

        await until_it(found)
        clock.seconds += 10
        await a.reconciliation.close()
        await a.directory.close()
        before = a.commands_sent

        answers = await asyncio.gather(*(a.racks(of, number) for number in range(8)))

        assert answers == [["r2"]] * 8
        assert a.commands_sent - before == 1


async def test_without_redis_the_directory_knows_nothing_and_nothing_fails(
    redis: OneRedis,
) -> None:
    async with listed(redis, "a", TWO) as a:
        redis.stop()

        a.hold(version("a/x"), 0)

        assert await a.racks(version("a/y")) == []


async def test_what_changes_at_once_is_told_in_one_batch(redis: OneRedis) -> None:
    async with listed(redis, "a", TWO, reconciling=False) as a:
        await until_it(lambda: _written(redis, "{test}:dir:token"))
        before = a.commands_sent

        for number in range(400):
            a.hold(version(f"a/{number % 20}", 64), number // 20)
        await until_it(lambda: _told(a))

        # One of each object, one counter with its folder's and bucket's names, and a look at the
        # token or two.
        assert a.commands_sent - before <= 20 + 3 + 4


async def test_after_a_flush_everything_is_told_again(redis: OneRedis) -> None:
    clock = Clock()
    async with listed(redis, "a", TWO, clock) as a, listed(redis, "b", TWO) as b:
        objects = [version(f"b/{number}") for number in range(1200)]
        for each in objects:
            b.hold(each, 1)

        async def found() -> bool:
            clock.seconds += 10
            held = await a.directory.dataset("main", "bucket", "b/")
            return held.nodes == {"a": 0, "b": 1200 * CHUNK_BYTES} and all(
                [await a.racks(each, 1) == ["r2"] for each in (objects[0], objects[-1])]
            )

        await until_it(found)
        with redis.client() as client:
            client.flushall()
        assert not await found()

        await until_it(found)
        with redis.client() as client:
            assert len(client.keys("*:dir:v:*")) == 1200
        assert not b.rebuilding.ratios or max(b.rebuilding.ratios.values()) <= 1


async def test_after_an_outage_what_changed_meanwhile_is_told(redis: OneRedis) -> None:
    clock = Clock()
    of, other = version("a/x"), version("a/y")
    async with listed(redis, "a", TWO, clock) as a, listed(redis, "b", TWO) as b:
        b.hold(of, 0)

        async def found(*expected: list[str]) -> bool:
            clock.seconds += 10
            return [await a.racks(of), await a.racks(other)] == list(expected)

        await until_it(lambda: found(["r2"], []))
        redis.stop()
        b.drop(of, 0)
        b.hold(other, 0)
        await until_it(lambda: _told(b))
        redis.start()

        await until_it(lambda: found([], ["r2"]))


async def test_without_redis_what_waits_to_be_told_takes_bounded_memory(
    redis: OneRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings_module, "_MOST_UNTOLD", 100)
    async with listed(redis, "a", TWO) as a:
        redis.stop()
        for number in range(1000):
            a.hold(version(f"a/{number}"), 0)
            assert len(a.holdings.untold) <= 100
        assert a.holdings.overflowed
        redis.start()

        async def told() -> bool:
            with redis.client() as client:
                return len(client.keys("*:dir:v:*")) == 1000

        await until_it(told)


async def test_entries_that_are_wrong_are_repaired_both_ways(redis: OneRedis) -> None:
    held, more, gone = version("a/x"), version("a/y"), version("b/z")
    async with listed(redis, "a", TWO, reconciling=False) as a:
        a.hold(held, 0, 1)
        a.hold(more, 3)
        await until_it(lambda: _told(a))
        wrong = a.directory
        with redis.client() as client:
            client.hset(wrong.stretch_key(_stretch(held)), "a", b"\0\xff")
            client.hdel(wrong.stretch_key(_stretch(more)), "a")
            client.hset(wrong.stretch_key(_stretch(gone)), "a", b"\0\x01")
            client.hset(wrong.stretch_key(_stretch(gone)), "b", b"\0\x01")
            (counter,) = client.keys("*:dir:b:*")
            client.hset(counter, "a", b"17")

        await a.reconciliation.once()

        assert a.reconciliation.repaired == 4
        with redis.client() as client:
            assert client.hget(wrong.stretch_key(_stretch(held)), "a") == b"\0\x03"
            assert client.hget(wrong.stretch_key(_stretch(more)), "a") == b"\0\x08"
            # The other node's is the other node's to clear.
            assert client.hgetall(wrong.stretch_key(_stretch(gone))) == {b"b": b"\0\x01"}
        assert (await a.directory.dataset("main", "bucket", "")).nodes["a"] == 3 * CHUNK_BYTES
        await a.reconciliation.once()
        assert a.reconciliation.repaired == 4


async def test_nodes_that_are_gone_count_for_nothing_and_are_cleared_away_in_time(
    redis: OneRedis,
) -> None:
    clock = Clock()
    of = version("b/x")
    async with listed(redis, "b", TWO) as b:
        b.hold(of, 0)
        await until_it(lambda: _told(b))
    async with listed(redis, "a", TWO, clock, reconciling=False) as a:
        assert await a.racks(of) == ["r2"]
        a.members.set(TWO[:1])

        assert await a.racks(of) == []
        assert (await a.directory.dataset("main", "bucket", "")).nodes == {"a": 0}

        await a.reconciliation.once()
        with redis.client() as client:
            assert client.keys("*:dir:v:*")
        clock.seconds += 61
        await a.reconciliation.once()
        with redis.client() as client:
            assert not client.keys("*:dir:[vb]:*")


async def test_a_dataset_finer_than_the_counters_says_so(redis: OneRedis) -> None:
    async with listed(redis, "a", TWO) as a:
        a.hold(version("a/b/c/x"), 0, 1)
        a.hold_small(ObjectVersion(ObjectRef("main", "bucket", "a/small"), "e", 1000))
        a.hold(version("other/x", 4), 0)
        await until_it(lambda: _told(a))

        whole = await a.directory.dataset("main", "bucket", "a/")
        finer = await a.directory.dataset("main", "bucket", "a/b/c/")

        assert (whole.nodes["a"], whole.exact) == (2 * CHUNK_BYTES + 1000, True)
        assert not finer.exact


async def test_chunks_far_into_an_object_are_found(redis: OneRedis) -> None:
    of = version("a/huge", 100_000)
    async with listed(redis, "a", TWO) as a, listed(redis, "b", TWO) as b:
        b.hold(of, 0, 70_001)
        await until_it(lambda: _told(b))

        assert await a.racks(of, 70_001) == ["r2"]
        assert await a.racks(of, 70_000) == []


async def _told(node: Listed) -> bool:
    return node.directory.told


async def _written(redis: OneRedis, key: str) -> bool:
    with redis.client() as client:
        return bool(client.exists(key))


def _stretch(of: ObjectVersion) -> bytes:
    return of.digest + bytes(3)
