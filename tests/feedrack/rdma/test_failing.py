"""What a client does when RDMA fails: it asks over HTTP, and nobody else writes to its memory."""

import contextlib
import gc
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedrack.errors import Unavailable
from feedrack.rdma import Client, Result, opening
from feedrack.rdma.opening import NoRdma, Wanted
from gateway.rdma import verbs
from gateway.rdma.device import RdmaUnavailable
from tests.feedrack.endpoint import Asked, Reply, scripted
from tests.feedrack.rdma.ends import DATA, Gateway, client_of, told
from tests.feedrack.rdma.node import RdmaNode, rdma_node
from tests.rdma.soft import Fabric, SoftDevice


def none_there(*, verbs: bool) -> Callable[..., SoftDevice]:
    def open_device(*_: object) -> SoftDevice:
        opened.append(1)
        raise RdmaUnavailable("there is none", verbs=verbs)

    opened: list[int] = []
    open_device.opened = opened  # type: ignore[attr-defined]
    return open_device


@pytest.mark.parametrize(("verbs_missing", "reason"), [(True, "no-verbs"), (False, "no-device")])
def test_a_host_without_rdma_finds_out_once(
    node: RdmaNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verbs_missing: bool,
    reason: str,
) -> None:
    open_device: Any = none_there(verbs=verbs_missing)
    monkeypatch.setattr(verbs, "open_device", open_device)
    for _ in range(2):
        with client_of(node.url) as client:
            memory = client.register(bytearray(10))
            for _ in range(3):
                result = client.get_into("k", memory)
                assert (result.transport, result.reason) == ("http", reason)
                assert memory.contents() == DATA
            assert client.counts == (0, 0, {reason: 3})
    assert len(open_device.opened) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert node.counted("rdma_fallbacks_total", reason=reason) == 6


def test_what_is_remembered_of_a_failure_keeps_no_memory(
    node: RdmaNode, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(url: str, reason: str) -> list[int]:
        """Which of several requests still has its memory after it."""
        with client_of(url) as client:
            held = []
            for _ in range(3):
                memory = client.register(bytearray(10))
                assert client.get_into("k", memory).reason == reason
                held.append(weakref.ref(memory))
                del memory
            gc.collect()
            return [number for number, one in enumerate(held) if one() is not None]

    other = Gateway(fabric, lambda _: Reply(200, b"", told()))
    other.refuse["prepare"] = Reply(503)
    with scripted(other) as endpoint:
        assert kept(endpoint.url, "connect") == []
    with scripted(lambda _: Reply(200, DATA)) as endpoint:
        assert kept(endpoint.url, "gateway") == []
    for missing, reason in ((False, "no-device"), (True, "no-verbs")):
        monkeypatch.setattr(opening, "_absent", {})
        monkeypatch.setattr(verbs, "open_device", none_there(verbs=missing))
        assert kept(node.url, reason) == []


def test_a_device_that_was_not_there_may_come_later(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(verbs, "open_device", none_there(verbs=False))
    for _ in range(2):
        with pytest.raises(NoRdma):
            opening.open_once(Wanted(), lambda: clock[0])
    monkeypatch.setattr(verbs, "open_device", lambda *_: fabric.device())
    with pytest.raises(NoRdma):
        opening.open_once(Wanted(), lambda: clock[0])
    clock[0] = 301.0
    opening.open_once(Wanted(), lambda: clock[0]).close()


def test_a_gateway_without_rdma_is_asked_seldom(fabric: Fabric, tmp_path: Path) -> None:
    with rdma_node(tmp_path, fabric, mode="off") as node, client_of(node.url) as client:
        node.put("k", DATA)
        memory = client.register(bytearray(10))
        for _ in range(5):
            result = client.get_into("k", memory)
            assert (result.transport, result.reason) == ("http", "gateway")
            assert memory.contents() == DATA
        assert client.counts.fallbacks == {"gateway": 5}
        assert node.counted("rdma_fallbacks_total", reason="gateway") == 5
        asked = {"operation": "PrepareRdma", "tenant": "demo"}
        assert node.counted("requests_total", code="501", **asked) == 1


def test_another_service_never_sees_what_is_not_s3s(fabric: Fabric) -> None:
    def script(asked: Asked) -> Reply:
        return Reply(200, DATA if asked.method == "GET" else b"")

    with scripted(script) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        for _ in range(2):
            assert client.get_into("k", memory).reason == "gateway"
        assert [asked.method for asked in endpoint.asked] == ["HEAD", "GET", "GET"]
        assert not any("x-amz-rdma-token" in asked.headers for asked in endpoint.asked)


def test_a_session_that_the_gateway_ended_is_made_anew(client: Client, node: RdmaNode) -> None:
    memory = client.register(bytearray(10))
    assert client.get_into("k", memory).transport == "rdma"
    for _ in range(2):
        node.end_sessions()
        # The answer that declines brings the bytes.
        result = client.get_into("k", memory)
        assert (result.transport, result.reason) == ("http", "gateway")
        assert memory.contents() == DATA
        assert client.get_into("k", memory).transport == "rdma"
    node.end_sessions()
    assert client.put_from("p", memory).reason == "gateway"
    assert node.read("p") == DATA
    assert client.put_from("p", memory).transport == "rdma"
    node.end_sessions()
    rows = client.batch_into(["k", "gone"], memory)
    assert [row.status for row in rows] == [200, 404]
    assert client.counts.fallbacks == {"gateway": 4}


@pytest.mark.parametrize("operation", ["get", "put", "batch"])
def test_memory_is_fenced_before_it_is_used_after_a_time_out(
    node: RdmaNode, fabric: Fabric, operation: str
) -> None:
    with client_of(node.url, timeout_seconds=0.5) as client:
        target = bytearray(b"." * 10)
        memory = client.register(target)
        assert client.get_into("k", memory).transport == "rdma"
        pairs = dict(fabric.pairs)
        fabric.held = True
        if operation == "get":
            result = client.get_into("k", memory)
            assert (result.transport, result.reason) == ("http", "transfer")
        elif operation == "put":
            result = client.put_from("p", memory)
            assert (result.transport, result.reason) == ("http", "transfer")
            assert node.read("p") == DATA
        else:
            [row] = client.batch_into(["k"], memory)
            assert row.memory.contents() == DATA
        assert target == DATA
        # The client's end is gone, so that what the gateway still holds comes to nothing.
        assert set(pairs) - set(fabric.pairs)
        target[:] = b"mine alone"
        node.moves_again()
        assert target == b"mine alone"
        assert client.counts.fallbacks == {"transfer": 1}
        assert client.get_into("k", memory).transport == "rdma"


@pytest.mark.parametrize("operation", ["get", "put", "batch"])
def test_much_memory_is_given_more_time(fabric: Fabric, operation: str) -> None:
    size_bytes = 512 * 1024**2
    row = {"status": 200, "offset": 0, "length": 10}
    table = msgspec.json.encode({"objects": [row], "bytes": 10, "failed": 0})
    came, go_on = threading.Event(), threading.Event()

    def move(asked: Asked) -> Reply:
        came.set()
        go_on.wait(60)
        body = table if operation == "batch" else b""
        return Reply(200, body, told(moved=str(size_bytes) if operation == "put" else "10"))

    def transfers(client: Client, size_bytes: int) -> int:
        memory = client.register(mmap.mmap(-1, size_bytes))
        if operation == "get":
            client.get_into("k", memory)
        elif operation == "put":
            client.put_from("k", memory, crc32=0)
        else:
            with contextlib.suppress(Unavailable):
                client.batch_into(["k"], memory)
        return client.counts.transfers

    with (
        scripted(Gateway(fabric, move)) as endpoint,
        client_of(endpoint.url, timeout_seconds=0.3) as much,
        client_of(endpoint.url, timeout_seconds=0.3) as little,
        ThreadPoolExecutor(1) as thread,
    ):
        try:
            moved = thread.submit(transfers, much, size_bytes)
            assert came.wait(60)
            # Begins later, and is over first.
            assert transfers(little, 10) == 0
        finally:
            go_on.set()
        assert moved.result(60) == 1


def test_a_transfer_that_fails_is_done_over_http(
    client: Client, node: RdmaNode, fabric: Fabric
) -> None:
    memory = client.register(bytearray(10))
    assert client.get_into("k", memory).transport == "rdma"

    def break_off(_: object) -> None:
        fabric.on_move = lambda _: None
        for device in [client._link._opened]:
            assert device is not None
            for pair in device._pairs:
                pair.fail()

    asks: list[Callable[[], Result]] = [
        lambda: client.get_into("k", memory),
        lambda: client.put_from("p", memory),
    ]
    for ask in asks:
        fabric.on_move = break_off
        result = ask()
        assert (result.transport, result.reason) == ("http", "transfer")
        assert memory.contents() == DATA
        assert client.get_into("k", memory).transport == "rdma"
    assert node.read("p") == DATA
    assert client.counts.fallbacks == {"transfer": 2}


def test_memory_that_cannot_be_registered_is_good_for_http(client: Client, node: RdmaNode) -> None:
    memory = client.register(bytearray(0))
    assert client.put_from("empty", memory).reason == "memory"
    assert client.get_into("empty", memory).reason == "memory"
    assert node.read("empty") == b""
    assert client.counts.fallbacks == {"memory": 2}


def test_a_child_leaves_its_parents_device_alone(client: Client, node: RdmaNode) -> None:
    target = bytearray(10)
    memory = client.register(target)
    assert client.get_into("k", memory).transport == "rdma"
    child = os.fork()
    if child == 0:
        # Fabrics do not reach from one process to another, so its transfer fails.
        result = client.get_into("k", memory)
        good = result.transport == "http" and target == DATA and client.counts.transfers == 0
        memory.close()
        client.close()
        gc.collect()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    target[:] = b".........."
    assert client.get_into("k", memory).transport == "rdma"
    assert target == DATA
    assert client.counts == (2, 20, {})


def test_a_fork_among_busy_threads_finds_locks_free(client: Client, node: RdmaNode) -> None:
    over = threading.Event()

    def work() -> None:
        with client.register(bytearray(10)) as memory:
            while not over.is_set():
                client.get_into("k", memory)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                memory = client.register(bytearray(10))
                client.get_into("k", memory)
                os._exit(0 if memory.contents() == DATA else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_what_is_dropped_is_ended(node: RdmaNode, fabric: Fabric) -> None:
    before = set(fabric.pairs)
    client = client_of(node.url)
    client.get_into("k", client.register(bytearray(10)))
    assert set(fabric.pairs) - before
    opened = client._link._opened
    assert opened is not None
    device = opened._device
    assert isinstance(device, SoftDevice)
    del client, opened
    gc.collect()
    assert not device._open
