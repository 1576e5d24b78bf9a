"""Prefetching by real nodes: each rack gets everything once, whoever dies; and what cannot be done
is refused with a reason."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.cluster.jobs import Claim, RedisJobs, Walk
from gateway.cluster.local_jobs import LocalJobs
from gateway.config import CacheConfig, NodeConfig
from gateway.errors import CoordinatorUnavailable, NoSuchBucket
from gateway.index.cluster import Link
from gateway.store.prefetch import Prefetcher
from tests.cluster.one_redis import one_redis
from tests.cluster.processes import Nodes, age, nodes
from tests.cluster.test_jobs import SPEC, walk_whole
from tests.node.conftest import MakeNode, make_node
from tests.node.process import GatewayProcess
from tests.waiting import until, until_it, wait_until

KIB = 1024
MIB = 1024 * KIB
RACKS = {"n1": "r1", "n2": "r1", "n3": "r2"}

__all__ = ["make_node"]


@pytest.fixture
def three(tmp_path: Path) -> Any:
    with nodes(tmp_path, RACKS) as made:
        yield made


def state(made: Nodes, node: str, id_: str) -> Any:
    status, document = made.ask(node, "GET", f"/v1/prefetch/{id_}")
    assert status == 200, document
    return document


class Asked(LocalJobs):
    """A queue that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = self.others = 0

    async def any(self) -> bool:
        self.looks += 1
        return await super().any()

    async def claim(self, limit: int) -> list[Claim]:
        self.others += 1
        return await super().claim(limit)

    async def walk(self, alive: Sequence[str]) -> Walk | None:
        self.others += 1
        return await super().walk(alive)


async def test_while_no_job_runs_one_small_question_at_a_time_is_all_there_is() -> None:
    jobs, service = Asked(), cast("Any", None)
    prefetcher = Prefetcher(jobs, service, NodeConfig(), CacheConfig(), idle_seconds=0.001)
    prefetcher.start()
    await until(lambda: jobs.looks > 1)
    asked = jobs.others
    await until(lambda: jobs.looks > 20)
    await prefetcher.close()
    assert jobs.others == asked


def test_each_rack_gets_a_dataset_once_and_the_origin_gives_it_once(three: Nodes) -> None:
    total = 0
    for number in range(12):
        size_bytes = 3 * MIB + number if number % 3 else 10 * KIB
        three.put(f"data/a/{number}", size_bytes)
        total += size_bytes
    three.put("other/b", MIB)

    status, document = three.ask(
        "n1", "POST", "/v1/prefetch", {"dataset": "s3://bucket/data/", "racks": ["r1", "r2"]}
    )
    assert status == 202, document
    wait_until(lambda: state(three, "n3", document["id"])["state"] == "done")

    done = state(three, "n2", document["id"])
    assert done["objects"] == {"found": 12, "done": 12, "failed": 0}
    assert done["bytes"] == {"found": 2 * total, "done": 2 * total, "failed": 0}
    assert done["by_rack"] == [{"rack": "r1", "bytes": total}, {"rack": "r2", "bytes": total}]
    wait_until(lambda: sum(three.held("n2", "s3://bucket/data/").values()) == 2 * total)
    held = three.held("n1", "s3://bucket/data/a/")
    assert held["n1"] > 0
    assert held["n2"] > 0
    assert held["n1"] + held["n2"] == held["n3"] == total
    # One GET for each chunk.
    assert three.origin_gets() == 8 * 4 + 4
    # A key's folder is finer than the counters' here: the nodes are asked.
    assert three.held("n1", "s3://bucket/data/a/1") == {
        id_: sum(size for key, size in _by_key(three, id_).items() if key.startswith("data/a/1"))
        for id_ in RACKS
    }


def _by_key(made: Nodes, id_: str) -> dict[str, int]:
    keys = [f"data/a/{number}" for number in range(12)]
    # Of a whole key nothing else begins with, the node itself says.
    exact = {}
    for key in keys:
        size = made.held(id_, f"s3://bucket/{key}")[id_]
        longer = [other for other in keys if other != key and other.startswith(key)]
        exact[key] = size - sum(made.held(id_, f"s3://bucket/{other}")[id_] for other in longer)
    return exact


def test_a_nodes_death_loses_nothing_of_a_prefetch(three: Nodes) -> None:
    total = 0
    for number in range(60):
        three.put(f"data/{number}", 4 * MIB)
        total += 4 * MIB
    _, document = three.ask(
        "n2", "POST", "/v1/prefetch", {"dataset": "s3://bucket/data/", "racks": ["r1"]}
    )
    wait_until(lambda: state(three, "n1", document["id"])["objects"]["done"] > 3)

    three.of["n2"].kill()

    wait_until(lambda: state(three, "n1", document["id"])["state"] == "done")
    done = state(three, "n1", document["id"])
    assert done["objects"] == {"found": 60, "done": 60, "failed": 0}
    assert done["bytes"]["done"] == total


@pytest.fixture
def single(make_node: MakeNode, tmp_path: Path) -> GatewayProcess:
    return make_node()


def test_one_node_without_a_cluster_prefetches_by_itself(single: GatewayProcess) -> None:
    made = _alone(single)
    folder = single.folder / "origin" / "bucket" / "data"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}").write_bytes(bytes(2 * MIB))
        age(folder / f"{number}")

    keys = [f"s3://bucket/data/{number}" for number in (0, 1, 9)]
    status, document = made.ask("n1", "POST", "/v1/prefetch", {"keys": keys, "job": "42"})
    assert status == 202
    wait_until(lambda: state(made, "n1", document["id"])["state"] == "done")

    done = state(made, "n1", document["id"])
    assert done["objects"] == {"found": 3, "done": 2, "failed": 1}
    assert (done["job"], done["keys"], done["dataset"]) == ("42", 3, None)
    assert made.held("n1", "s3://bucket/data/") == {"n1": 4 * MIB}
    assert made.ask("n1", "GET", "/v1/prefetch")[1]["prefetches"] == [done]
    assert made.ask("n1", "DELETE", f"/v1/prefetch/{document['id']}")[0] == 409


def test_what_a_job_is_to_have_is_asked_by_its_name(single: GatewayProcess) -> None:
    made = _alone(single)
    (single.folder / "origin" / "bucket").mkdir()
    asked = [
        made.ask("n1", "POST", "/v1/prefetch", {"dataset": "s3://bucket/", "job": job})[1]["id"]
        for job in ("4711", "4711", "47", "")
    ]

    def of(query: str) -> set[str]:
        status, answer = made.ask("n1", "GET", f"/v1/prefetch{query}")
        assert status == 200
        return {each["id"] for each in answer["prefetches"]}

    assert of("") == set(asked)
    assert of("?job=4711") == set(asked[:2])
    assert of("?job=47") == {asked[2]}
    assert of("?job=") == {asked[3]}
    assert of("?job=471") == of("?job=%FF%00") == set()


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"dataset": "s3://bucket/", "racks": ["r9"]}, 409),
        ({"dataset": "s3://bucket/", "nodes": ["n9"]}, 409),
        ({"dataset": "nothing"}, 400),
        ({"dataset": "s3://no-such-bucket/"}, 404),
    ],
)
def test_what_cannot_be_prefetched_is_refused(
    single: GatewayProcess, document: Any, status: int
) -> None:
    (single.folder / "origin" / "bucket").mkdir()

    got, answer = _alone(single).ask("n1", "POST", "/v1/prefetch", document)

    assert (got, bool(answer["error"])) == (status, True)


def test_a_prefetch_that_is_not_there_is_not_found(single: GatewayProcess) -> None:
    made = _alone(single)
    assert made.ask("n1", "GET", "/v1/prefetch/nothing")[0] == 404
    assert made.ask("n1", "DELETE", "/v1/prefetch/nothing")[0] == 404
    assert made.ask("n1", "PATCH", "/v1/prefetch/nothing", {"priority": 1})[0] == 404
    assert made.ask("n1", "PATCH", "/v1/prefetch/nothing", {"speed": 1})[0] == 400


def _alone(node: GatewayProcess) -> Nodes:
    made = Nodes.__new__(Nodes)
    made.of = {"n1": node}
    return made


class Deaf(RedisJobs):
    """A node's queue of which some answers are lost on their way."""

    claims_lost = ends_lost = 1

    async def claim(self, limit: int) -> list[Claim]:
        claims = await super().claim(limit)
        if claims and self.claims_lost:
            self.claims_lost -= 1
            raise CoordinatorUnavailable("lost")
        return claims

    async def finish(self, claim: Claim, *, done_bytes: int, failed_bytes: int) -> None:
        await super().finish(claim, done_bytes=done_bytes, failed_bytes=failed_bytes)
        if self.ends_lost:
            self.ends_lost -= 1
            raise CoordinatorUnavailable("lost")


class Nowhere:
    """A service that has nothing."""

    async def spans_to_bring(self, name: str, *_: Any) -> Any:
        raise NoSuchBucket(fields={"BucketName": name})


async def test_a_job_ends_though_answers_of_redis_were_lost() -> None:
    with one_redis() as server:
        link = Link(server.url, "test")
        await link.start()
        jobs = Deaf(link, "a")
        service = cast("Any", Nowhere())
        prefetcher = Prefetcher(jobs, service, NodeConfig(id="a"), CacheConfig())
        id_ = await jobs.create(SPEC, 0)
        await walk_whole(jobs, 3)
        prefetcher.start()

        async def is_over() -> bool:
            job = await jobs.get(id_)
            return job is not None and job.state != "running"

        await until_it(is_over, "the job is over")
        await prefetcher.close()
        await link.close()
        assert not jobs.claims_lost
        assert not jobs.ends_lost
