"""The counters say which buckets and folders there are and what members hold, and no more once
nobody holds anything."""

from collections.abc import Iterator

import pytest

from gateway.cluster import counters as counters_module
from gateway.cluster.datasets import Counter
from gateway.errors import CoordinatorUnavailable
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


def version(bucket: str, key: str) -> ObjectVersion:
    return ObjectVersion(ObjectRef("main", bucket, key), "e1", CHUNK_BYTES)


def counter(bucket: bytes, folder: bytes) -> Counter:
    return Counter("main", bucket, folder)


async def _told(node: Listed) -> bool:
    return node.directory.told


async def test_buckets_and_folders_are_found_in_order(redis: OneRedis) -> None:
    async with listed(redis, "a", TWO) as a, listed(redis, "b", TWO) as b:
        for folder in ("z/", "a/b/", "", "a/"):
            a.hold(version("train", f"{folder}k"), 0)
        b.hold(version("a:b", "x/y/k"), 0)
        await until_it(lambda: _told(a))
        await until_it(lambda: _told(b))
        counters = a.directory.counters

        assert await counters.buckets() == [("main", b"a:b"), ("main", b"train")]
        assert await counters.folders("main", b"train", b"", 10) == [b"", b"a/", b"a/b/", b"z/"]
        assert await counters.folders("main", b"train", b"a/\0", 1) == [b"a/b/"]
        assert await counters.folders("main", b"nothing", b"", 10) == []


async def test_what_members_hold_is_told_in_the_order_asked(
    redis: OneRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters_module, "_COUNTERS_AT_ONCE", 2)
    async with listed(redis, "a", TWO) as a, listed(redis, "b", TWO) as b:
        for number in range(5):
            a.hold(version("train", f"{number}/k"), 0)
        b.hold(version("train", "3/l"), 0)
        await until_it(lambda: _told(a))
        await until_it(lambda: _told(b))
        wanted = [counter(b"train", b"%d/" % number) for number in (3, 0, 9, 1)]
        counters = a.directory.counters

        held = await counters.held(wanted)

        one = CHUNK_BYTES
        assert held == [{"a": one, "b": one}, {"a": one}, {}, {"a": one}]
        assert await counters.total(wanted) == {"a": 3 * one, "b": one}


async def test_what_is_told_of_nodes_that_are_gone_and_what_is_no_number_counts_for_nothing(
    redis: OneRedis,
) -> None:
    async with listed(redis, "a", TWO, reconciling=False) as a:
        key = a.directory.counters.key(counter(b"train", b"x/"))
        with redis.client() as client:
            client.hset(key, mapping={"a": "5", "gone": "7", "b": "no number"})
            client.hset(a.directory.counters.key(counter(b"train", b"y/")), "a", b"\xff 1")

        held = await a.directory.counters.held([counter(b"train", b"x/"), counter(b"train", b"y/")])

        assert held == [{"a": 5}, {}]


async def test_without_redis_nothing_is_said(redis: OneRedis) -> None:
    async with listed(redis, "a", TWO) as a:
        redis.stop()

        with pytest.raises(CoordinatorUnavailable):
            await a.directory.counters.buckets()
        with pytest.raises(CoordinatorUnavailable):
            await a.directory.counters.held([counter(b"train", b"x/")])


async def test_folders_and_buckets_of_which_nobody_holds_anything_are_struck(
    redis: OneRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.reconcile._BATCH", 2)
    async with (
        listed(redis, "a", TWO, reconciling=False) as a,
        listed(redis, "b", TWO, reconciling=False) as b,
    ):
        for number in range(5):
            b.hold(version("train", f"{number}/k"), 0)
        b.hold(version("other", "k"), 0)
        await until_it(lambda: _told(b))
        for number in (0, 2, 3):
            b.drop(version("train", f"{number}/k"), 0)
        b.drop(version("other", "k"), 0)
        await until_it(lambda: _told(b))

        # The member of the first id tidies, whoever held it.
        await a.reconciliation.once()

        counters = a.directory.counters
        assert await counters.buckets() == [("main", b"train")]
        assert await counters.folders("main", b"train", b"", 9) == [b"1/", b"4/"]


async def test_a_bucket_that_was_told_before_buckets_were_is_known_after_a_comparison(
    redis: OneRedis,
) -> None:
    async with listed(redis, "b", TWO, Clock(), reconciling=False) as b:
        b.hold(version("train", "x/k"), 0)
        await until_it(lambda: _told(b))
        with redis.client() as client:
            client.delete(b.directory.counters.buckets_key)

        await b.reconciliation.once()

        assert await b.directory.counters.buckets() == [("main", b"train")]
        assert b.reconciliation.repaired == 0
