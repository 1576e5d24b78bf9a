"""`feedrack status` says what a real node's admin port says."""

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from gateway.admin.status import Status, StatusError, TierReads, fetch, render
from tests.node.process import ADMIN_TOKEN, GatewayProcess


def test_it_counts_what_a_node_has_served_by_tier(tmp_path: Path) -> None:
    node = GatewayProcess(tmp_path).start()
    try:
        client = node.client()
        client.create_bucket(Bucket="train")
        client.put_object(Bucket="train", Key="k", Body=b"x" * 1000)
        for _ in range(3):
            client.get_object(Bucket="train", Key="k")["Body"].read()
        found = asyncio.run(fetch(node.admin_url, ADMIN_TOKEN))
        with pytest.raises(StatusError, match="401"):
            asyncio.run(fetch(node.admin_url, "wrong"))
    finally:
        node.kill()
    assert [member["id"] for member in found.members] == ["n1"]
    assert TierReads("disk", 3, 3000) in found.tiers
    assert found.fills == []


def test_it_shows_members_shares_and_what_is_filling() -> None:
    status = Status(
        members=[
            {
                "id": "n1",
                "rack": "r1",
                "zone": "z1",
                "state": "serving",
                "s3": "http://127.0.0.1:9000",
                "cache_bytes": 5_000_000,
                "cache_capacity_bytes": 10_000_000,
                "cache_degraded": "full",
            }
        ],
        tiers=[TierReads("disk", 3, 30), TierReads("origin", 1, 10)],
        fills=[{"bucket": "b", "key": "k", "chunk": 2, "bytes": 100, "received_bytes": 40}],
        origin_requests=7,
        origin_read_bytes=10,
    )
    out = io.StringIO()
    render(status, Console(file=out, width=160))
    text = out.getvalue()
    for said in (
        "n1",
        "5.0 MB of 10.0 MB",
        "takes nothing in: full",
        "75.0 %",
        "b/k",
        "7 requests",
    ):
        assert said in text
