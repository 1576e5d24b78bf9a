"""The table of `conformance.py` over real verbs; over HTTP it runs in the ordinary suite, where
processors are not emulated (`tests/rdma/test_conformance.py`)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.rdma.verbs import open_device
from tests.rdma import conformance
from tests.rdma.conformance import BATCHES, READS, SIZES, UPLOADS, OverRdma, Transport
from tests.rdma.raw import RawClient
from tests.s3.running import running

MIB = 1024**2
BUFFERS = 16

# One gateway and one client for all: registering takes seconds where it is emulated.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RawClient]:
    folder: Path = tmp_path_factory.mktemp("node")
    device = open_device()
    cache = {"chunk_size": "8MiB", "capacity": "256MiB", "small_object_limit": "1MiB"}
    rdma = {"mode": "required", "buffers": f"{BUFFERS}MiB"}
    async with running(folder, rdma=rdma, cache=cache) as node:
        (node.root / "train").mkdir()
        client = RawClient(node, device, size_bytes=65 * MIB)
        await client.connect()
        yield client
        client.close()
    device.close()


@pytest.fixture(scope="module")
def transport(client: RawClient) -> Transport:
    return OverRdma(client)


@pytest.fixture(autouse=True)
def _every_buffer_comes_back(client: RawClient) -> object:
    yield
    assert client.running.node.parts.rdma.buffers_free == BUFFERS


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_of_a_size(transport: Transport, client: RawClient, size: int) -> None:
    await conformance.check_size(transport, client, size)


async def test_reads(transport: Transport, client: RawClient) -> None:
    for case in READS:
        await conformance.check_read(transport, client, case)


async def test_what_is_refused_is_not_stored(transport: Transport, client: RawClient) -> None:
    await conformance.check_refused_writes(transport, client)


@pytest.mark.parametrize("sizes", UPLOADS)
async def test_parts(transport: Transport, client: RawClient, sizes: tuple[int, ...]) -> None:
    await conformance.check_parts(transport, client, sizes)


async def test_a_batch(transport: Transport, client: RawClient) -> None:
    # Of 64 MiB, too, it is asked over a soft device: here that would take a quarter of a minute.
    await conformance.check_batch(transport, client, BATCHES[0])
