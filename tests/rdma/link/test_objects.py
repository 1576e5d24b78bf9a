"""Objects between two machines: over a good wire, over one that loses packets, and over one that is
cut midway."""

import hashlib
import json
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from feedrack.rdma import Client, Result
from tests.rdma.link.gateway import ACCESS_KEY, ADDRESS, BUFFERS, SECRET_KEY, TOLD

MIB = 1024**2
CARD = "eth0"
_SECONDS = 180


def until(holds: Callable[[], bool]) -> None:
    """As `tests.waiting.wait_until`, for longer: emulated processors take their time."""
    by = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < by
        time.sleep(0.05)


def told(name: str) -> float:
    """How the gateway is doing; -1 before it does."""
    try:
        figures: dict[str, float] = json.loads(TOLD.read_text())
    except (OSError, ValueError):
        return -1
    return figures[name]


@pytest.fixture
def client() -> Iterator[Client]:
    until(lambda: told("buffers") == BUFFERS)
    with Client(
        "s3://train",
        endpoint_url=f"http://{ADDRESS}",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        timeout_seconds=_SECONDS,
    ) as client:
        yield client
    until(lambda: told("buffers") == BUFFERS)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def there_and_back(client: Client, size: int) -> None:
    """Out of memory into an object, and back into memory."""
    data = os.urandom(size)
    with client.register(bytearray(data) if size else bytearray(1)) as memory:
        stored = client.put_from("k", memory[:size])
        assert stored.transport == "rdma"
    # As it was stored, past RDMA.
    assert sha256(client.get("k")) == sha256(data)
    with client.register(bytearray(size + 1)) as memory:
        found = client.get_into("k", memory)
        assert (found.transport, found.size_bytes) == ("rdma", size)
        assert sha256(memory.contents()[:size]) == sha256(data)


@pytest.mark.parametrize("size", [0, 1, 4096, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1])
def test_objects_cross_the_wire(client: Client, size: int) -> None:
    there_and_back(client, size)
    assert client.counts.fallbacks == {}


@pytest.fixture
def lossy() -> Iterator[None]:
    run("tc", "qdisc", "add", "dev", CARD, "root", "netem", "loss", "0.5%")
    yield
    run("tc", "qdisc", "del", "dev", CARD, "root")


def test_what_the_wire_loses_is_sent_again(client: Client, lossy: None) -> None:
    # Now and then none of so many packets is lost.
    for _ in range(5):
        there_and_back(client, 4 * MIB)
        if "dropped 0," not in run("tc", "-s", "qdisc", "show", "dev", CARD):
            return
    pytest.fail("the wire has lost nothing")


def test_a_wire_cut_midway_costs_the_session_and_no_bytes(client: Client) -> None:
    data = os.urandom(64 * MIB)
    with client.register(bytearray(data)) as memory:
        client.put_from("big", memory)
    failed = told("failed")
    found: list[Result] = []
    pages = mmap.mmap(-1, len(data))
    with client.register(pages) as memory:
        reading = threading.Thread(target=lambda: found.append(client.get_into("big", memory)))
        reading.start()
        until(lambda: any(pages[:64]))
        run("ip", "link", "set", CARD, "down")
        try:
            # The gateway has given up: the client does not answer.
            until(lambda: told("failed") == failed + 1)
            until(lambda: told("buffers") == BUFFERS)
            assert not any(pages[-64:])
        finally:
            run("ip", "link", "set", CARD, "up")
        reading.join(_SECONDS)
        assert found
        assert (found[0].transport, found[0].reason) == ("http", "transfer")
        assert sha256(pages[:]) == sha256(data)
        until(lambda: client.get_into("big", memory).transport == "rdma")
        assert sha256(pages[:]) == sha256(data)
