"""The table of `conformance.py` over HTTP, and over RDMA on a soft device; the virtual machine runs
it over the real thing (`tests/rdma/verbs/test_conformance.py`)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rdma import conformance
from tests.rdma.conformance import (
    BATCHES,
    READS,
    SIZES,
    SMALL_SIZES,
    UPLOADS,
    OverHttp,
    OverRdma,
    Read,
    Transport,
)
from tests.rdma.raw import RawClient
from tests.rdma.soft import Fabric
from tests.s3.running import running

MIB = 1024**2


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    fabric = Fabric()
    device = fabric.device()
    async with running(
        tmp_path,
        rdma={"buffers": "4MiB"},
        cache={"capacity": "256MiB"},
        open_device=lambda *_: fabric.device(),
    ) as node:
        (node.root / "train").mkdir()
        client = RawClient(node, device, size_bytes=65 * MIB)
        await client.connect()
        yield client
        client.close()
    device.close()


@pytest.fixture(params=["http", "rdma"])
def transport(client: RawClient, request: pytest.FixtureRequest) -> Transport:
    return OverHttp(client) if request.param == "http" else OverRdma(client)


@pytest.mark.parametrize("case", READS, ids=lambda case: case.name)
async def test_a_read(transport: Transport, client: RawClient, case: Read) -> None:
    await conformance.check_read(transport, client, case)


@pytest.mark.parametrize("size", sorted({*SIZES, *SMALL_SIZES}))
async def test_an_object_of_a_size(transport: Transport, client: RawClient, size: int) -> None:
    await conformance.check_size(transport, client, size)


async def test_what_is_refused_is_not_stored(transport: Transport, client: RawClient) -> None:
    await conformance.check_refused_writes(transport, client)


@pytest.mark.parametrize("sizes", UPLOADS)
async def test_parts(transport: Transport, client: RawClient, sizes: tuple[int, ...]) -> None:
    await conformance.check_parts(transport, client, sizes)


@pytest.mark.parametrize("sizes", BATCHES)
async def test_a_batch(transport: Transport, client: RawClient, sizes: tuple[int, ...]) -> None:
    await conformance.check_batch(transport, client, sizes)
