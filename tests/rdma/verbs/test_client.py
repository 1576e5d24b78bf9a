"""`feedrack.rdma` over real verbs: what a soft device cannot show."""

import gc
import hashlib
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from feedrack import open_dataset
from feedrack.rdma import Client
from tests.feedrack.rdma.node import OPTIONS, RdmaNode, rdma_node

MIB = 1024**2
# `test_conformance.py` has them all.
SIZES = [0, 4096, 8 * MIB + 1]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaNode]:
    folder: Path = tmp_path_factory.mktemp("node")
    with rdma_node(folder, None, mode="required", buffers="8MiB") as node:
        yield node


@pytest.fixture(scope="module")
def client(node: RdmaNode) -> Iterator[Client]:
    with Client("s3://train", endpoint_url=node.url, **OPTIONS) as client:
        yield client


@pytest.fixture(scope="module")
def target(client: Client) -> mmap.mmap:
    # Registering takes long where it is emulated.
    return mmap.mmap(-1, 9 * MIB)


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", SIZES)
def test_an_object_goes_out_of_memory_and_back(
    client: Client, node: RdmaNode, target: mmap.mmap, size: int
) -> None:
    data = os.urandom(size)
    target[:size] = data
    with client.register(target) as memory:
        assert client.put_from("k", memory[:size]).transport == "rdma"
        assert sha256(node.read("k")) == sha256(data)
        target[:] = bytes(len(target))
        result = client.get_into("k", memory)
        assert (result.size_bytes, result.transport) == (size, "rdma")
        assert sha256(target[:size]) == sha256(data)
        assert not any(target[size : size + 4096])


def test_threads_share_a_session(client: Client, node: RdmaNode) -> None:
    objects = {f"t/{number}": os.urandom(100_000 + number) for number in range(8)}
    for key, data in objects.items():
        node.put(key, data)
    found: dict[str, tuple[str, str | None]] = {}

    def work(key: str) -> None:
        with client.register(bytearray(MIB)) as memory:
            for _ in range(3):
                result = client.get_into(key, memory)
                found[key] = (sha256(memory[: result.size_bytes].contents()), result.reason)

    threads = [threading.Thread(target=work, args=(key,)) for key in objects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {key: (sha256(data), None) for key, data in objects.items()}


def test_parent_and_child_move_by_rdma_each_on_their_own(client: Client, node: RdmaNode) -> None:
    node.put("f", bytes(range(256)) * 64)
    target = bytearray(256 * 64)
    memory = client.register(target)
    assert client.get_into("f", memory).transport == "rdma"
    child = os.fork()
    if child == 0:
        target[:] = bytes(len(target))
        result = client.get_into("f", memory)
        good = result.transport == "rdma" and target == bytes(range(256)) * 64
        memory.close()
        client.close()
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    target[:] = bytes(len(target))
    assert client.get_into("f", memory).transport == "rdma"
    assert target == bytes(range(256)) * 64
    memory.close()


def test_a_session_that_failed_is_made_anew(client: Client, node: RdmaNode) -> None:
    node.put("s", b"12345" * 1000)
    with client.register(bytearray(5000)) as memory:
        assert client.get_into("s", memory).transport == "rdma"
        opened = client._link.opened()
        for pair in list(opened._pairs):
            pair.fail()
        result = client.get_into("s", memory)
        assert (result.transport, result.reason) == ("http", "transfer")
        assert client.get_into("s", memory).transport == "rdma"
        assert memory.contents() == b"12345" * 1000


def test_a_dataset_reads_its_batches_by_rdma(node: RdmaNode) -> None:
    objects = {f"d/{number:02}": os.urandom(number * 3_001) for number in range(30)}
    for key, data in objects.items():
        node.put(key, data)
    with open_dataset("s3://train/d/", endpoint_url=node.url, **OPTIONS) as dataset:
        for _ in range(2):
            assert dataset.read_batch(range(30)) == list(objects.values())
        rdma = dataset._reader._rdma
        assert rdma is not None
        assert rdma.counts == (2, 2 * sum(map(len, objects.values())), {})


def test_a_client_may_be_closed_while_its_threads_register_and_read(node: RdmaNode) -> None:
    """What is asked of a closed device ends the process with a segmentation fault."""
    node.put("c", b"12345" * 1000)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with shared.register(bytearray(5000)) as memory:
                shared.get_into("c", memory)
                assert memory.contents() == b"12345" * 1000

    with (
        Client("s3://train", endpoint_url=node.url, **OPTIONS) as shared,
        ThreadPoolExecutor(3) as threads,
    ):
        working = [threads.submit(work) for _ in range(3)]
        try:
            for _ in range(10):
                # Each time somebody has begun anew.
                while shared._link._opened is None and not any(map(Future.done, working)):
                    over.wait(0.01)
                shared.close()
        finally:
            over.set()
        for one in working:
            one.result(60)
