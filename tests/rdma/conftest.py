"""A gateway over a soft device, and one client of it. What wants verbs runs where they are: in a
virtual machine (`make test-rdma`), never skipped."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rdma.raw import RawClient
from tests.rdma.soft import Fabric
from tests.s3.running import Running, running

# The machine's role: "one" alone, "first" or "second" of two on one wire.
_ROLE = os.environ.get("FEEDRACK_RDMA_GUEST")

collect_ignore = [
    folder for folder, role in (("verbs", "one"), ("link", "second")) if role != _ROLE
]


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


@pytest.fixture
async def node(tmp_path: Path, fabric: Fabric) -> AsyncIterator[Running]:
    async with running(
        tmp_path,
        rdma={"buffers": "4MiB", "transfer_timeout_seconds": 0.5},
        policy=[{"allow": ["*"], "buckets": ["other"]}],
        open_device=lambda *_: fabric.device(),
    ) as started:
        (started.root / "train").mkdir()
        yield started


@pytest.fixture
async def client(node: Running, fabric: Fabric) -> AsyncIterator[RawClient]:
    device = fabric.device()
    client = RawClient(node, device)
    await client.connect()
    yield client
    client.close()
    device.close()
