"""A node that is told to leave hands over what only it holds, and leaves; the origin is not asked
again."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import BUCKET, Nodes, nodes
from tests.waiting import wait_until

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def three(tmp_path: Path) -> Any:
    with nodes(tmp_path, {"n1": "r1", "n2": "r1", "n3": "r2"}) as made:
        yield made


def read(made: Nodes, id_: str, key: str) -> bytes:
    body: bytes = made.of[id_].client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


def test_what_only_a_leaving_node_holds_is_handed_over(three: Nodes) -> None:
    bodies = {f"data/{n}": three.put(f"data/{n}", 3 * MIB + n) for n in range(12)}
    bodies |= {f"data/small/{n}": three.put(f"data/small/{n}", 20 * KIB) for n in range(12)}
    total = sum(map(len, bodies.values()))
    _, document = three.ask(
        "n1", "POST", "/v1/prefetch", {"dataset": "s3://bucket/data/", "racks": ["r1"]}
    )
    path = f"/v1/prefetch/{document['id']}"
    wait_until(lambda: three.ask("n1", "GET", path)[1]["state"] == "done")
    wait_until(lambda: three.held("n1", "s3://bucket/")["n2"] > 0)
    before = three.of["n1"].origin_gets()

    assert three.ask("n2", "POST", "/v1/drain")[0] == 202
    process = three.of["n2"].process
    assert process is not None
    assert process.wait(timeout=60) == 0

    wait_until(lambda: three.of["n1"].counter("feedrack_members") == 2)
    wait_until(lambda: three.held("n3", "s3://bucket/data/")["n1"] == total)
    for key, body in bodies.items():
        assert read(three, "n1", key) == body
    # In its rack nothing is asked of the origin again.
    assert three.of["n1"].origin_gets() == before
    # In another the first chunk may be, by whoever is now to tell what a key holds.
    gets = three.origin_gets()
    for key, body in bodies.items():
        assert read(three, "n3", key) == body
    assert three.origin_gets() - gets <= len(bodies)


def test_the_last_node_leaves_with_nobody_to_hand_over_to(tmp_path: Path) -> None:
    with nodes(tmp_path, {"n1": "r1"}) as one:
        body = one.put("data/x", 2 * MIB)
        assert read(one, "n1", "data/x") == body

        assert one.ask("n1", "POST", "/v1/drain")[0] == 202

        process = one.of["n1"].process
        assert process is not None
        assert process.wait(timeout=60) == 0


def test_a_leaving_node_is_not_ready_and_says_so(three: Nodes) -> None:
    for n in range(40):
        three.put(f"data/{n}", 4 * MIB)
        read(three, "n2", f"data/{n}")

    three.ask("n2", "POST", "/v1/drain")

    status, document = three.ask("n2", "GET", "/readyz")
    assert (status, document["state"]) == (503, "draining")
