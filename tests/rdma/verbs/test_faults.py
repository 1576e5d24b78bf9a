"""Clients that do wrong, break off, or die: nothing is left of them, and everybody else goes on."""

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

from feedrack.rdma import Client, Memory
from feedrack.rdma.link import Session
from gateway.rdma.token import Token, parse_token, render_token
from tests.feedrack.rdma.node import OPTIONS, RdmaNode, rdma_node
from tests.rdma.verbs import dying
from tests.s3.running import ACCESS_KEY, SECRET_KEY

MIB = 1024**2
BUFFERS = 16
BIG = 32 * MIB
_SECONDS = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaNode]:
    folder: Path = tmp_path_factory.mktemp("node")
    limits = {"buffers": f"{BUFFERS}MiB", "transfer_timeout_seconds": 20.0}
    with rdma_node(folder, None, mode="required", **limits) as node:
        yield node


@pytest.fixture(scope="module")
def big(node: RdmaNode) -> bytes:
    """What the object "big" holds."""
    data = os.urandom(BIG)
    node.put("big", data)
    node.put("small", data[:MIB])
    return data


def open_client(node: RdmaNode, **more: Any) -> Client:
    return Client("s3://train", endpoint_url=node.url, **OPTIONS, **more)


@pytest.fixture
def client(node: RdmaNode, big: bytes) -> Iterator[Client]:
    with open_client(node) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_is_left(node: RdmaNode) -> Iterator[None]:
    yield
    until(lambda: node.rdma.buffers_free == BUFFERS)


def until(holds: Callable[[], bool]) -> None:
    """As `tests.waiting.wait_until`, for longer: emulated processors take their time."""
    by = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < by
        time.sleep(0.05)


def test_eight_clients_at_once_have_their_own(node: RdmaNode, big: bytes) -> None:
    part = 2 * MIB + 1

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
    for number in range(8):
        stored = node.read(f"part{number}")
        assert _sha256(stored) == _sha256(big[number * part : (number + 1) * part])


@pytest.mark.parametrize("wrong", ["rkey", "past the end", "address"])
def test_a_token_of_memory_that_is_not_there_harms_nobody(
    node: RdmaNode, client: Client, big: bytes, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    page = mmap.mmap(-1, 2 * MIB)
    with client.register(memoryview(page)[:MIB]) as memory, open_client(node) as other:
        honest = tokens_of(client, memory)

        def token(_: object) -> str:
            told: Token = honest()
            changed = {
                "rkey": told._replace(rkey=told.rkey ^ 0xFF00),
                "past the end": told._replace(address=told.address + MIB // 2),
                "address": told._replace(address=4096),
            }
            return render_token(changed[wrong])

        failed = failures(node)
        with monkeypatch.context() as patch:
            lie(patch, token)
            found = client.get_into("small", memory)
        # Over HTTP, and the memory beyond was never written to.
        assert (found.transport, found.reason) == ("http", "transfer")
        assert memory.contents() == big[:MIB]
        assert not any(page[MIB:])
        assert failures(node) == failed + 1
        # Another client never noticed, and this one connects anew.
        with other.register(bytearray(MIB)) as elsewhere:
            assert other.get_into("small", elsewhere).transport == "rdma"
        until(lambda: client.get_into("small", memory).transport == "rdma")
        assert memory.contents() == big[:MIB]


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_client_killed_midway_leaves_nothing(
    node: RdmaNode, client: Client, big: bytes, method: str
) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        sessions = node.counted("rdma_sessions")
        shared = Path("/dev/shm") / f"dying-{method}"
        shared.write_bytes(bytes(BIG))
        process = dying.start(node.url, (ACCESS_KEY, SECRET_KEY), method, shared)
        try:
            with shared.open("r+b") as file, mmap.mmap(file.fileno(), BIG) as view:
                if method == "get":
                    # Its first bytes are there.
                    until(lambda: any(view[:64]))
                else:
                    # The gateway is reading its memory.
                    until(lambda: node.rdma.buffers_free < BUFFERS)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            shared.unlink()
        until(lambda: node.counted("rdma_sessions") == sessions)
        until(lambda: node.rdma.buffers_free == BUFFERS)
        assert client.get_into("small", memory).transport == "rdma"
        assert memory.contents() == big[:MIB]
    assert not (node.folder / "dying").exists()


def test_a_queue_pair_in_error_is_replaced(client: Client, big: bytes) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        break_pair(client)
        found = client.get_into("small", memory)
        assert memory.contents() == big[:MIB]
        assert found.transport == "http"
        until(lambda: client.get_into("small", memory).transport == "rdma")
        assert memory.contents() == big[:MIB]


def test_a_gateway_without_its_sessions_is_connected_to_anew(
    node: RdmaNode, client: Client, big: bytes
) -> None:
    with client.register(bytearray(MIB)) as memory:
        assert client.get_into("small", memory).transport == "rdma"
        node.end_sessions()
        # Declined, with the bytes in the same answer.
        found = client.get_into("small", memory)
        assert memory.contents() == big[:MIB]
        assert (found.transport, found.reason) == ("http", "gateway")
        until(lambda: client.get_into("small", memory).transport == "rdma")


def failures(node: RdmaNode) -> float:
    """How many transfers have failed."""
    names = ("GetObject", "PutObject")
    return sum(
        node.counted("rdma_transfers_total", operation=name, outcome="failed") for name in names
    )


def tokens_of(client: Client, memory: Memory) -> Callable[[], Token]:
    """Makes honest tokens of a client's own session."""

    def honest() -> Token:
        token = parse_token(client._link.lease(memory).token)
        assert token is not None
        return token

    return honest


def lie(patch: pytest.MonkeyPatch, token: Callable[[Any], str]) -> None:
    """Has all sessions send what `token` makes up."""
    asked: list[int] = []

    def told(self: Session, memory: Memory) -> str:
        if asked:
            # Asked by `token` itself, for an honest one.
            asked.pop()
            return real(self, memory)
        asked.append(1)
        return token(memory)

    real = Session.token
    patch.setattr(Session, "token", told)


def break_pair(client: Client) -> None:
    """Moves the client's queue pair to the error state, as its device does after a fault."""
    session = client._link._session
    assert session is not None
    session._pair.fail()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
