"""What real nodes hold of every dataset, asked of any of them: with packs, with nodes that die,
with Redis away; and of a node that has no cluster."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Nodes, nodes
from tests.node.conftest import MakeNode, make_node
from tests.node.process import ACCESS_KEY, ADMIN_TOKEN, SECRET_KEY, GatewayProcess
from tests.node.real_files import PACKER
from tests.waiting import wait_until

KIB = 1024
MIB = 1024 * KIB
RACKS = {"n1": "r1", "n2": "r2"}

__all__ = ["make_node"]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, RACKS) as made:
        yield made


def listing(made: Nodes, id_: str, query: str = "") -> Any:
    status, page = made.ask(id_, "GET", f"/v1/datasets{query}")
    assert status == 200, page
    return page


def held(made: Nodes, id_: str) -> dict[str, dict[str, int]]:
    """By dataset and node, as a node tells."""
    return {each["dataset"]: each["nodes"] for each in listing(made, id_)["datasets"]}


def warm(made: Nodes, id_: str, dataset: str) -> None:
    """Has a node bring in a dataset."""
    status, answer = made.ask(
        "n1", "POST", "/v1/prefetch", {"dataset": dataset, "nodes": [id_], "job": "7"}
    )
    assert status == 202, answer
    wait_until(lambda: made.ask("n1", "GET", f"/v1/prefetch/{answer['id']}")[1]["state"] == "done")


def test_any_node_tells_what_each_holds_of_every_dataset(two: Nodes) -> None:
    two.put("imagenet/train/cats/1", 3 * MIB)
    two.put("imagenet/val/1", 10 * KIB)
    two.put("imagenet/labels", 5 * KIB)
    two.put("coco/1", 2 * MIB)
    for id_, dataset in (
        ("n1", "s3://bucket/imagenet/"),
        ("n2", "s3://bucket/imagenet/val/"),
        ("n2", "s3://bucket/coco/"),
    ):
        warm(two, id_, dataset)

    # What a node fetches for another stays with it, so that others may hold some as well.
    full = {
        "s3://bucket/coco/": ("n2", 2 * MIB),
        "s3://bucket/imagenet/": ("n1", 5 * KIB),
        "s3://bucket/imagenet/train/": ("n1", 3 * MIB),
        "s3://bucket/imagenet/val/": ("n2", 10 * KIB),
    }
    finer = {
        "s3://bucket/coco/": "s3://bucket/coco/1",
        "s3://bucket/imagenet/train/": "s3://bucket/imagenet/train/cats/",
    }

    def tells_all(id_: str) -> bool:
        found = held(two, id_)
        return all(
            found.get(dataset, {}).get(node) == size for dataset, (node, size) in full.items()
        ) and all(
            # What is finer than the counters each node says by itself.
            found[dataset] == {node: size for node, size in two.held(id_, part).items() if size}
            for dataset, part in finer.items()
        )

    for id_ in RACKS:
        wait_until(partial(tells_all, id_))
        assert list(held(two, id_)) == list(full)
    page = listing(two, "n2", "?limit=2")
    assert [each["dataset"] for each in page["datasets"]] == list(full)[:2]
    assert page["next"] == "s3://bucket/imagenet/"
    page = listing(two, "n1", f"?limit=2&after={page['next']}")
    assert [each["dataset"] for each in page["datasets"]] == list(full)[2:]
    assert {"readers": ["demo"]}.items() <= page["datasets"][0].items()
    # One dataset, asked for, is the sum of those that begin with it.
    of_imagenet = [nodes for each, nodes in held(two, "n1").items() if "imagenet" in each]
    assert two.held("n1", "s3://bucket/imagenet/") == {
        id_: sum(each.get(id_, 0) for each in of_imagenet) for id_ in RACKS
    }
    assert two.ask("n1", "GET", "/v1/datasets?dataset=s3://bucket/")[1]["readers"] == ["demo"]


def test_who_is_gone_holds_nothing_and_without_redis_nobody_knows(two: Nodes) -> None:
    two.put("a/1", 2 * MIB)
    for id_ in RACKS:
        warm(two, id_, "s3://bucket/a/")
    wait_until(lambda: held(two, "n1") == {"s3://bucket/a/": {"n1": 2 * MIB, "n2": 2 * MIB}})

    two.of["n2"].kill()
    wait_until(lambda: held(two, "n1") == {"s3://bucket/a/": {"n1": 2 * MIB}})

    two.redis.stop()
    wait_until(lambda: two.ask("n1", "GET", "/v1/datasets")[0] == 503)
    assert two.ask("n1", "GET", "/v1/datasets")[1]["error"]
    # What is asked of this node alone it still says.
    wait_until(lambda: two.ask("n1", "GET", "/v1/datasets?dataset=s3://bucket/a/")[0] == 200)
    assert two.held("n1", "s3://bucket/a/")["n1"] == 2 * MIB

    two.redis.start()

    def again() -> bool:
        status, page = two.ask("n1", "GET", "/v1/datasets")
        return status == 200 and {each["dataset"]: each["nodes"] for each in page["datasets"]} == {
            "s3://bucket/a/": {"n1": 2 * MIB}
        }

    wait_until(again)


def test_a_pack_counts_as_the_prefix_that_was_packed(two: Nodes) -> None:
    for number in range(40):
        two.put(f"deep/er/p/{number}", 20 * KIB)
    two.put("deep/er/beside", 7 * KIB)
    _pack(two.of["n1"], "s3://bucket/deep/er/p/")
    client = two.of["n1"].client()
    client.get_object(Bucket="bucket", Key="deep/er/beside")["Body"].read()
    warm(two, "n1", "s3://bucket/deep/er/p/")

    def told(id_: str) -> dict[str, int]:
        found = held(two, id_)
        assert not any(".feedrack" in each for each in found), found
        return {each: nodes.get("n1", 0) for each, nodes in found.items()}

    def holds_it(id_: str) -> bool:
        return told(id_).get("s3://bucket/deep/er/p/", 0) >= 800 * KIB

    # The other node has had nothing to do with the bucket: it has to find out whose pack that is.
    for id_ in ("n2", "n1"):
        wait_until(partial(holds_it, id_))
        assert told(id_)["s3://bucket/deep/er/"] >= 7 * KIB
        assert listing(two, id_)["uncounted"] == {}
    assert not list((two.of["n2"].folder / "cache" / "packs").glob("*"))


def test_members_tell_what_they_have_evicted(tmp_path: Path) -> None:
    with nodes(tmp_path, RACKS) as made:
        keys = [f"a/{number}" for number in range(20)]
        for key in keys:
            made.put(key, 4 * MIB)
        small = made.of["n2"]
        small.stop()
        small.settings["cache"]["capacity"] = "32MiB"
        small.start()
        wait_until(lambda: _evicted(made, "n1") == {"n1": 0, "n2": 0})
        client = small.client()
        for key in keys:
            client.get_object(Bucket="bucket", Key=key)["Body"].read()

        wait_until(lambda: _evicted(made, "n1").get("n2", 0) > 32 * MIB)
        wait_until(
            lambda: (
                _evicted(made, "n2")["n2"]
                == small.counter("feedrack_evicted_bytes_total")
                == _evicted(made, "n1").get("n2")
            )
        )


def test_a_node_without_a_cluster_tells_what_it_holds_itself(make_node: MakeNode) -> None:
    node = make_node({"buckets": {"open": {"public_read": True}}})
    client = node.client()
    for bucket in ("train", "open"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="train", Key="x/y/large", Body=b"b" * 3_000_000)
    client.put_object(Bucket="train", Key="x/y/z/small", Body=b"a" * 1000)
    client.put_object(Bucket="train", Key="top", Body=b"a" * 10)
    client.put_object(Bucket="open", Key="o", Body=b"a" * 20)

    status, page = _ask(node, "/v1/datasets")

    assert (status, page) == (
        200,
        {
            "datasets": [
                {"dataset": "s3://open/", "nodes": {"n1": 20}, "readers": ["*"]},
                {"dataset": "s3://train/", "nodes": {"n1": 10}, "readers": ["demo"]},
                {"dataset": "s3://train/x/y/", "nodes": {"n1": 3_001_000}, "readers": ["demo"]},
            ],
            "uncounted": {},
            "next": None,
        },
    )
    assert _ask(node, "/v1/datasets?dataset=s3://open/")[1]["readers"] == ["*"]


def _pack(node: GatewayProcess, dataset: str) -> None:
    done = subprocess.run(
        [str(PACKER), "pack", dataset, "--settle", "0", "--endpoint-url", node.endpoint_url],
        env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _evicted(made: Nodes, id_: str) -> dict[str, int]:
    members = made.ask(id_, "GET", "/v1/members")[1]["members"]
    return {each["id"]: each["evicted_bytes"] for each in members}


def _ask(node: GatewayProcess, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        node.admin_url + path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
