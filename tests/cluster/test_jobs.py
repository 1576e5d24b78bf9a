"""The queue of prefetches, in Redis and in process: the most urgent first, each item once, and
nothing lost with a node."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.cluster import jobs as jobs_module
from gateway.cluster.jobs import Claim, Jobs, Page, RedisJobs, TooManyJobs, Walk
from gateway.cluster.local_jobs import LocalJobs
from gateway.cluster.warming import Found, Item, Spec, decode_item, item_of
from gateway.index.cluster import Link
from tests.cluster.listed import member
from tests.cluster.one_redis import OneRedis, one_redis

SPEC = Spec("bucket", "a/", (), ("r1",), (), "job-7")


@pytest.fixture
def redis() -> Iterator[OneRedis]:
    with one_redis() as server:
        yield server


@pytest.fixture
async def link(redis: OneRedis) -> AsyncIterator[Link]:
    link = Link(redis.url, "test", patience_seconds=2.0)
    await link.start()
    yield link
    await link.close()


@pytest.fixture(params=["redis", "local"])
async def jobs(request: pytest.FixtureRequest) -> AsyncIterator[Jobs]:
    if request.param == "local":
        yield LocalJobs()
        return
    with one_redis() as server:
        link = Link(server.url, "test", patience_seconds=2.0)
        await link.start()
        yield RedisJobs(link, "a")
        await link.close()


def item(walk: Walk, place: int, *, node: str = "a", object_id: int | None = None) -> Item:
    number = walk.number + 2 * place
    found = Found("bucket", f"a/{place}", "e", 100, "main", "bucket")
    object_id = number if object_id is None else object_id
    return item_of(number + 1, object_id, found, member(node, "r1"), 0, 1)


async def test_whether_any_job_runs_is_told(jobs: Jobs) -> None:
    assert not await jobs.any()
    id_ = await jobs.create(SPEC, 0)
    assert await jobs.any()
    await jobs.cancel(id_)
    assert not await jobs.any()


async def walk_whole(jobs: Jobs, count: int, *, node: str = "a", alive: str = "a") -> Walk:
    """Finds `count` objects of 100 bytes for one node, and the job's end."""
    walk = await jobs.walk([alive])
    assert walk is not None
    items = [(node, item(walk, place, node=node)) for place in range(count)]
    await jobs.walked(walk, Page(b"k", True, items, count, 100 * count, 0))
    return walk


async def claim_one(jobs: Jobs) -> Claim:
    (claim,) = await jobs.claim(1)
    return claim


async def test_a_job_is_done_once_all_of_it_is(jobs: Jobs) -> None:
    id_ = await jobs.create(SPEC, 0)
    await walk_whole(jobs, 2)

    await jobs.finish(await claim_one(jobs), done_bytes=100, failed_bytes=0)
    halfway = await jobs.get(id_)
    await jobs.finish(await claim_one(jobs), done_bytes=40, failed_bytes=60)
    whole = await jobs.get(id_)

    assert halfway is not None
    assert whole is not None
    assert (halfway.state, halfway.objects_found, halfway.objects_done) == ("running", 2, 1)
    assert (whole.state, whole.objects_done, whole.objects_failed) == ("done", 1, 1)
    assert (whole.bytes_found, whole.bytes_done, whole.bytes_failed) == (200, 140, 60)
    assert whole.bytes_by_rack == {"r1": 140}
    assert whole.spec == SPEC
    assert await jobs.claim(9) == []


async def test_an_item_that_is_finished_twice_counts_once(jobs: Jobs) -> None:
    id_ = await jobs.create(SPEC, 0)
    await walk_whole(jobs, 2)
    claim = await claim_one(jobs)

    for _ in range(3):
        await jobs.finish(claim, done_bytes=100, failed_bytes=0)

    found = await jobs.get(id_)
    assert found is not None
    assert (found.bytes_done, found.objects_done, found.state) == (100, 1, "running")


async def test_a_step_of_a_walk_that_was_taken_already_is_not_taken_again(jobs: Jobs) -> None:
    id_ = await jobs.create(SPEC, 0)
    walk = await walk_whole(jobs, 2)

    await jobs.walked(walk, Page(b"k", True, [("a", item(walk, 0))], 1, 100, 0))

    found = await jobs.get(id_)
    assert found is not None
    assert found.objects_found == 2
    assert len(await jobs.claim(9)) == 2


async def test_the_most_urgent_job_comes_first_and_then_the_oldest(jobs: Jobs) -> None:
    made = [await jobs.create(SPEC, priority) for priority in (0, 5, 0)]
    for _ in made:
        await walk_whole(jobs, 1)

    assert [each.id for each in await jobs.all()] == [made[1], made[0], made[2]]
    assert (await claim_one(jobs)).job == made[1]
    assert await jobs.set_priority(made[2], 1)
    assert (await claim_one(jobs)).job == made[2]
    assert (await claim_one(jobs)).job == made[0]


async def test_of_a_cancelled_job_nothing_is_left_to_do(jobs: Jobs) -> None:
    id_ = await jobs.create(SPEC, 0)
    await walk_whole(jobs, 3)
    claim = await claim_one(jobs)

    assert await jobs.runs(id_)
    assert await jobs.cancel(id_)
    assert not await jobs.cancel(id_)
    assert not await jobs.set_priority(id_, 3)
    assert not await jobs.runs(id_)

    await jobs.finish(claim, done_bytes=100, failed_bytes=0)
    found = await jobs.get(id_)
    assert found is not None
    assert (found.state, found.bytes_done) == ("cancelled", 0)
    assert await jobs.claim(9) == []
    assert await jobs.walk(["a"]) is None


async def test_a_job_that_finds_nothing_is_done(jobs: Jobs) -> None:
    id_ = await jobs.create(SPEC, 0)

    await walk_whole(jobs, 0)

    found = await jobs.get(id_)
    assert found is not None
    assert found.state == "done"


async def test_a_walk_waits_while_enough_is_queued(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MOST_OPEN", 3)
    monkeypatch.setattr("gateway.cluster.local_jobs.MOST_OPEN", 3)
    await jobs.create(SPEC, 0)
    walk = await jobs.walk(["a"])
    assert walk is not None
    items = [("a", item(walk, place)) for place in range(3)]
    await jobs.walked(walk, Page(b"k1", False, items, 3, 300, 0))

    assert await jobs.walk(["a"]) is None
    await jobs.finish(await claim_one(jobs), done_bytes=100, failed_bytes=0)

    again = await jobs.walk(["a"])
    assert again is not None
    assert again.position == b"k1"


async def test_no_more_jobs_run_than_there_may(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 2)
    monkeypatch.setattr("gateway.cluster.local_jobs.MOST_JOBS", 2)
    for _ in range(2):
        await jobs.create(SPEC, 0)

    with pytest.raises(TooManyJobs):
        await jobs.create(SPEC, 0)


async def test_a_job_is_not_known_that_never_was(jobs: Jobs) -> None:
    assert await jobs.get("nothing") is None
    assert not await jobs.cancel("nothing")


async def test_ended_jobs_are_forgotten_after_an_hour(link: Link, redis: OneRedis) -> None:
    jobs = RedisJobs(link, "a")
    id_ = await jobs.create(SPEC, 0)
    await jobs.cancel(id_)

    with redis.client() as client:
        assert 3590 <= client.ttl(f"{{test}}:pf:j:{id_}") <= 3600
        client.zadd("{test}:pf:ended", {id_: 0})
        client.delete(f"{{test}}:pf:j:{id_}")
        assert await jobs.all() == []
        # Of a job that has ended nothing is left but what it came to.
        assert client.keys("*:pf:*") == [b"{test}:pf:number"]


async def test_one_node_walks_a_job_at_a_time_and_another_once_it_is_gone(link: Link) -> None:
    a, b = RedisJobs(link, "a"), RedisJobs(link, "b")
    await a.create(SPEC, 0)

    assert await a.walk(["a", "b"]) is not None
    assert await b.walk(["a", "b"]) is None
    assert await b.walk(["b"]) is not None


async def test_what_a_dead_node_had_is_shared_out_anew(link: Link) -> None:
    a, b = RedisJobs(link, "a"), RedisJobs(link, "b")
    id_ = await a.create(SPEC, 0)
    await walk_whole(a, 3)
    lost = await claim_one(a)

    walk = await b.walk(["b"])
    assert walk is not None
    assert len(walk.orphans) == 3
    shared = [
        ("b", item(walk, place, node="b", object_id=old.object_id))
        for place, old in enumerate(decode_item(raw) for raw in walk.orphans)
    ]
    await b.shared_out(walk, shared, 0)
    # Said once more, it changes nothing; and what the dead node says late, counts no more.
    await b.shared_out(walk, shared, 0)
    await a.finish(lost, done_bytes=100, failed_bytes=0)

    claims = await b.claim(9)
    for claim in claims:
        await b.finish(claim, done_bytes=100, failed_bytes=0)
    found = await b.get(id_)
    assert len(claims) == 3
    assert found is not None
    assert (found.state, found.objects_done, found.bytes_done) == ("done", 3, 300)


async def test_items_that_nobody_can_take_have_failed(link: Link) -> None:
    a, b = RedisJobs(link, "a"), RedisJobs(link, "b")
    id_ = await a.create(SPEC, 0)
    await walk_whole(a, 2)

    walk = await b.walk(["b"])
    assert walk is not None
    await b.shared_out(walk, [], 2)

    found = await b.get(id_)
    assert found is not None
    assert (found.state, found.objects_failed) == ("done", 2)


async def test_a_node_that_restarts_finds_its_own_again(link: Link) -> None:
    jobs = RedisJobs(link, "a")
    await jobs.create(SPEC, 0)
    await walk_whole(jobs, 2)
    claim = await claim_one(jobs)

    await RedisJobs(link, "a").begin()

    assert claim in await jobs.claim(9)
