"""`feedrack serve` with workers, as an operator runs it, over real verbs: the keeper has the
device, and may be killed under its clients."""

import hashlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feedrack import Unavailable
from feedrack.rdma import Client, Result
from tests.node.family import Family
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess

MIB = 1024**2
_SECONDS = 200
_ROUNDS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Two workers and their keeper."""
    settings = {
        "node": {"workers": 2},
        "rdma": {"mode": "required", "buffers": "16MiB"},
        "cache": {"chunk_size": "8MiB"},
        "buckets": {"train": {"freshness_seconds": 0}},
    }
    # Four processes that begin at once: emulated processors take their time.
    node = GatewayProcess(tmp_path_factory.mktemp("node"), settings, start_seconds=240)
    (node.folder / "origin" / "train").mkdir()
    try:
        yield node.start()
    finally:
        node.kill()


@pytest.fixture
def client(node: GatewayProcess) -> Iterator[Client]:
    with Client(
        "s3://train", endpoint_url=node.endpoint_url, access_key=ACCESS_KEY, secret_key=SECRET_KEY
    ) as client:
        yield client


def stored(node: GatewayProcess, key: str) -> Path:
    """An object as the origin has it."""
    return node.folder / "origin" / "train" / key


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def until(holds: Callable[[], bool]) -> None:
    by = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < by
        time.sleep(0.05)


@pytest.mark.parametrize("size", [MIB + 1, 8 * MIB + 1])
def test_objects_move_by_rdma_through_a_node_of_two_workers(
    node: GatewayProcess, client: Client, size: int
) -> None:
    assert len(Family(node).workers) == 2
    data = os.urandom(size)
    with client.register(bytearray(data)) as memory:
        assert client.put_from("k", memory).transport == "rdma"
    assert sha256(stored(node, "k").read_bytes()) == sha256(data)
    with client.register(bytearray(size)) as memory:
        found = client.get_into("k", memory)
        assert (found.transport, found.size_bytes) == ("rdma", size)
        assert sha256(memory.contents()) == sha256(data)
    assert client.counts.fallbacks == {}


def test_a_keeper_killed_midway_of_a_read_costs_its_session_and_no_bytes(
    node: GatewayProcess, client: Client
) -> None:
    data = os.urandom(32 * MIB)
    stored(node, "big").write_bytes(data)
    pages = mmap.mmap(-1, len(data))

    def read() -> Result | Unavailable:
        try:
            return client.get_into("big", memory)
        except Unavailable as error:
            # The next keeper may take longer than a client tries.
            return error

    def by_rdma() -> bool:
        found = read()
        return isinstance(found, Result) and found.transport == "rdma"

    with client.register(pages) as memory, ThreadPoolExecutor(1) as thread:
        for _ in range(_ROUNDS):
            # Held from here on: what moves does not wait for the origin.
            until(by_rdma)
            pages[:] = bytes(len(data))
            session = client._link._session
            assert session is not None
            keeper = Family(node).keeper.pid
            reading = thread.submit(read)
            until(lambda: any(pages[:64]))
            os.kill(keeper, signal.SIGKILL)
            found = reading.result(_SECONDS)
            if not (isinstance(found, Result) and found.transport == "rdma"):
                break
            # All of it was there before; another keeper, then.
        else:
            pytest.fail("no keeper was killed in the midst of a read")
        # The worker has asked the next keeper, which knows nothing of the session; or the client.
        if isinstance(found, Result):
            assert found.reason in ("gateway", "transfer")
            assert sha256(pages) == sha256(data)
        # Whoever has the token cannot write to the memory any more.
        assert session._pair not in session.opened._pairs
        pages[:] = bytes(len(data))
        until(by_rdma)
        assert sha256(pages) == sha256(data)
    assert Family(node).keeper.pid != keeper
