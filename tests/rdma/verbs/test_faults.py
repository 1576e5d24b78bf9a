"""A gateway of its own process and clients that do wrong, break off, or die; nothing is left of
them, and everybody else goes on."""

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

from feedrack.rdma import Client
from gateway.rdma.token import Token, render_token
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.rdma.verbs import dying

MIB = 1024**2
BUFFERS = 16
BIG = 64 * MIB
_SECONDS = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    node = GatewayProcess(
        tmp_path_factory.mktemp("node"),
        {
            "rdma": {
                "mode": "required",
                "buffers": f"{BUFFERS}MiB",
                "transfer_timeout_seconds": 20.0,
            },
            "cache": {"chunk_size": "8MiB", "small_object_limit": "1MiB"},
        },
    ).start()
    yield node
    assert node.stop() == 0


@pytest.fixture(scope="module")
def big(node: GatewayProcess) -> bytes:
    """What the object "big" holds."""
    data = os.urandom(BIG)
    client = node.client()
    client.create_bucket(Bucket="train")
    client.put_object(Bucket="train", Key="big", Body=data)
    client.put_object(Bucket="train", Key="small", Body=data[:MIB])
    client.close()
    return data


def open_client(node: GatewayProcess, **more: Any) -> Client:
    return Client(
        "s3://train",
        endpoint_url=node.endpoint_url,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        **more,
    )


@pytest.fixture
def client(node: GatewayProcess, big: bytes) -> Iterator[Client]:
    with open_client(node) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_is_left(node: GatewayProcess) -> Iterator[None]:
    yield
    until(lambda: node.counter("feedrack_rdma_buffers_free") == BUFFERS)


def until(holds: Callable[[], bool]) -> None:
    by = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < by
        time.sleep(0.05)


def test_eight_clients_at_once_have_their_own(node: GatewayProcess, big: bytes) -> None:
    part = 3 * MIB + 1

    def one(number: int) -> None:
        with open_client(node) as client, client.register(bytearray(part)) as memory:
            start = number * part
            wanted = f"bytes={start}-{start + part - 1}"
            for _ in range(2):
                found = client.get_into("big", memory, wanted)
                assert (found.transport, found.size_bytes) == ("rdma", part)
                assert memory.contents() == big[start : start + part]
            assert client.put_from(f"part{number}", memory).transport == "rdma"
            assert client.counts.fallbacks == {}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    client = node.client()
    for number in range(8):
        body = client.get_object(Bucket="train", Key=f"part{number}")["Body"].read()
        assert _sha256(body) == _sha256(big[number * part : (number + 1) * part])
    client.close()


@pytest.mark.parametrize("wrong", ["rkey", "past the end", "address"])
def test_a_token_of_memory_that_is_not_there_harms_nobody(
    node: GatewayProcess, client: Client, big: bytes, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    page = mmap.mmap(-1, 2 * MIB)
    with client.register(memoryview(page)[:MIB]) as memory, open_client(node) as other:
        honest = dying.tokens_of(client, memory)

        def token(_: object) -> str:
            told: Token = honest()
            changed = {
                "rkey": told._replace(rkey=told.rkey ^ 0xFF00),
                "past the end": told._replace(address=told.address + MIB // 2),
                "address": told._replace(address=4096),
            }
            return render_token(changed[wrong])

        failed = node.counter("feedrack_rdma_transfers_total", outcome="failed")
        with monkeypatch.context() as patch:
            dying.lie(patch, token)
            found = client.get_into("small", memory)
        # Over HTTP, and the memory beyond was never written to.
        assert (found.transport, found.reason) == ("http", "transfer")
        assert memory.contents() == big[:MIB]
        assert not any(page[MIB:])
        assert node.counter("feedrack_rdma_transfers_total", outcome="failed") == failed + 1
        # Another client never noticed, and this one connects anew.
        with other.register(bytearray(MIB)) as elsewhere:
            assert other.get_into("small", elsewhere).transport == "rdma"
        until(lambda: client.get_into("small", memory).transport == "rdma")
        assert memory.contents() == big[:MIB]


def test_a_client_killed_midway_leaves_nothing(
    node: GatewayProcess, client: Client, big: bytes, tmp_path: Path
) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        sessions = node.counter("feedrack_rdma_sessions")
        for method in ("get", "put"):
            shared = Path("/dev/shm") / f"dying-{method}"
            shared.write_bytes(bytes(BIG))
            process = dying.start(node.endpoint_url, method, shared)
            try:
                if method == "get":
                    # Its first bytes are there, its last are not.
                    with shared.open("r+b") as file, mmap.mmap(file.fileno(), BIG) as view:
                        until(lambda view=view: any(view[:64]))  # type: ignore[misc]
                else:
                    # The gateway is reading its memory.
                    until(lambda: node.counter("feedrack_requests_in_flight") > 0)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
                shared.unlink()
            until(lambda: node.counter("feedrack_rdma_sessions") == sessions)
            until(lambda: node.counter("feedrack_rdma_buffers_free") == BUFFERS)
        assert client.get_into("small", memory).transport == "rdma"
        assert memory.contents() == big[:MIB]
    keys = [each["Key"] for each in node.client().list_objects_v2(Bucket="train")["Contents"]]
    assert "dying" not in keys


def test_a_queue_pair_in_error_is_replaced(client: Client, big: bytes) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        dying.break_pair(client)
        found = client.get_into("small", memory)
        assert memory.contents() == big[:MIB]
        assert found.transport == "http"
        until(lambda: client.get_into("small", memory).transport == "rdma")
        assert memory.contents() == big[:MIB]


def test_a_gateway_that_dies_and_comes_back_is_found_again(
    node: GatewayProcess, client: Client, big: bytes
) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        node.kill()
        node.start()
        # Its session is not known there: declined, with the bytes in the same answer.
        found = client.get_into("small", memory)
        assert memory.contents() == big[:MIB]
        assert found.transport == "http"
        until(lambda: client.get_into("small", memory).transport == "rdma")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
