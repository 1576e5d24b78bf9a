"""Nodes whose views of the members differ take each other for the home, and do not hang."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.cluster.members import Member
from tests.cluster.running import CHUNK_BYTES, cluster
from tests.cluster.test_reading_near import put


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("reader", "other"), [("a1", "a2"), ("a2", "a1")])
async def test_two_nodes_that_take_each_other_for_the_home_both_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, other: str, hot: bool
) -> None:
    async with cluster(tmp_path, {"a1": "a", "a2": "a"}) as nodes:
        body = put(tmp_path, "large", CHUNK_BYTES * 3)
        members = {id_: nodes[id_].member() for id_ in ("a1", "a2")}

        def seen_by(home: str) -> list[Member]:
            return [
                replace(member, capacity_bytes=10**18 if id_ == home else 1)
                for id_, member in members.items()
            ]

        nodes[reader].members.set(seen_by(other))
        nodes[other].members.set(seen_by(reader))
        for id_ in members:
            # Both fill what they read, be it at home elsewhere.
            monkeypatch.setattr(nodes[id_].parts.near, "is_hot", lambda _: hot)
        async with asyncio.timeout(20):
            assert await nodes[reader].read("large") == body
