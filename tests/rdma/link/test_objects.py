"""Objects between two machines: over a good wire, over one that loses packets, over one that is cut
midway, and from a gateway that is killed."""

import hashlib
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from feedrack.errors import Unavailable
from feedrack.rdma import Client, Result
from tests.rdma.link.gateway import (
    ACCESS_KEY,
    ADDRESS,
    BUFFERS,
    KILL,
    LOSS,
    SECRET_KEY,
    TOLD,
    counted,
    lose,
)

MIB = 1024**2
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


def told_anew(name: str) -> float:
    """How it is doing now, not how it was a moment ago."""
    before = told("time")
    until(lambda: told("time") > before)
    return told(name)


@pytest.fixture
def client() -> Iterator[Client]:
    until(lambda: told("buffers") == BUFFERS)
    with open_client() as client:
        yield client
    until(lambda: told("buffers") == BUFFERS)


def open_client(*, attempts: int = 6) -> Client:
    return Client(
        "s3://train",
        endpoint_url=f"http://{ADDRESS}",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        timeout_seconds=_SECONDS,
        attempts=attempts,
    )


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


@contextmanager
def losing(percent: float) -> Iterator[None]:
    """The cards of both machines lose so many of the packets that they are to send, this one's from
    the first moment on."""
    lose(percent)
    _tell_loss(percent)
    try:
        yield
    finally:
        lose(0)
        _tell_loss(0)


def _tell_loss(percent: float) -> None:
    draft = LOSS.with_suffix(".new")
    draft.write_text(str(percent))
    draft.rename(LOSS)
    until(lambda: told("loss") == percent)


def test_data_that_the_wire_loses_is_sent_again_either_way(client: Client) -> None:
    data = os.urandom(4 * MIB)
    of_gets = of_puts = 0.0
    with (
        client.register(bytearray(data)) as source,
        client.register(bytearray(len(data))) as target,
        losing(0.5),
    ):
        # Now and then none of so many packets is lost.
        for _ in range(5):
            before = told_anew("asked_again")
            stored = client.put_from("lossy", source)
            # The gateway READs a PUT's data, and asks again for what of it is missing. (For a READ
            # that was lost itself, too; but packets of data are some hundred times as many.)
            of_puts += told_anew("asked_again") - before
            before = counted("out_of_seq_request")
            found = client.get_into("lossy", target)
            # It WRITEs a GET's data, of which something was missing here.
            of_gets += counted("out_of_seq_request") - before
            assert (stored.transport, found.transport) == ("rdma", "rdma")
            assert sha256(target.contents()) == sha256(data)
            assert stored.etag == found.etag == hashlib.md5(data).hexdigest()
            target.put(0, bytes(len(data)))
            if of_gets and of_puts:
                return
    pytest.fail(f"the wire lost data of {of_gets} GETs and {of_puts} PUTs")


@pytest.fixture
def big(client: Client) -> bytes:
    """What the object "big" holds."""
    data = os.urandom(64 * MIB)
    with client.register(bytearray(data)) as memory:
        assert client.put_from("big", memory).transport == "rdma"
    return data


def test_a_wire_cut_midway_of_a_get_costs_the_session_and_no_bytes(
    client: Client, big: bytes
) -> None:
    pages = mmap.mmap(-1, len(big))
    with client.register(pages) as memory:
        with cut_midway(lambda: client.get_into("big", memory), lambda: any(pages[:64])) as found:
            assert not any(pages[-64:])
        assert (found[0].transport, found[0].reason) == ("http", "transfer")
        assert sha256(pages[:]) == sha256(big)
        until(lambda: client.get_into("big", memory).transport == "rdma")
        assert sha256(pages[:]) == sha256(big)


def test_a_wire_cut_midway_of_a_put_stores_nothing_and_costs_no_bytes(client: Client) -> None:
    data = os.urandom(64 * MIB)
    stored = told("stored")
    with client.register(bytearray(data)) as memory:

        def put() -> Result:
            return client.put_from("cut", memory)

        with cut_midway(put, lambda: told("buffers") < BUFFERS) as found:
            assert told("stored") == stored
        assert (found[0].transport, found[0].reason) == ("http", "transfer")
        assert sha256(client.get("cut")) == sha256(data)
        until(lambda: put().transport == "rdma")
        assert sha256(client.get("cut")) == sha256(data)


def test_a_gateway_killed_midway_is_an_error_and_the_next_one_connected_to_anew(big: bytes) -> None:
    killed = told("process")
    errors: list[Exception] = []
    pages = mmap.mmap(-1, len(big))
    # One that waits for no next one.
    with open_client(attempts=1) as client, client.register(pages) as memory:
        assert client.get_into("big", memory, "bytes=0-0").transport == "rdma"
        pages[0] = 0
        session = client._link._session
        assert session is not None

        def read() -> None:
            try:
                client.get_into("big", memory)
            except Unavailable as error:
                errors.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        until(lambda: any(pages[:64]))
        KILL.touch()
        reading.join(_SECONDS)
        assert len(errors) == 1
        assert not any(pages[-64:])
        # Whoever has the token cannot write to the memory any more.
        assert session._pair not in session.opened._pairs
        until(lambda: told("process") not in (-1, killed))
        until(lambda: client.get_into("big", memory).transport == "rdma")
        assert sha256(pages[:]) == sha256(big)


@contextmanager
def cut_midway(move: Callable[[], Result], is_midway: Callable[[], bool]) -> Iterator[list[Result]]:
    """Cuts the wire in the midst of a transfer. The `with` begins when the gateway has given it up,
    and the result is there when it has ended."""
    failed = told("failed")
    found: list[Result] = []
    moving = threading.Thread(target=lambda: found.append(move()))
    moving.start()
    try:
        until(is_midway)
        with losing(100):
            until(lambda: told("failed") == failed + 1)
            until(lambda: told("buffers") == BUFFERS)
            assert moving.is_alive()
            yield found
    finally:
        moving.join(_SECONDS)
    assert found
