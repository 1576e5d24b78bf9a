"""What a client does when RDMA fails: it asks over HTTP, and nobody else writes to its memory."""

import contextlib
import gc
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access
from feedrack.errors import MissingObject, Unavailable, WrongMemory
from feedrack.rdma import Client, Result, opening
from feedrack.rdma.link import Link
from feedrack.rdma.memory import of_buffer
from feedrack.rdma.opening import NoRdma, Wanted
from gateway.rdma import verbs
from gateway.rdma.device import RdmaUnavailable
from gateway.rdma.wire import Prepared
from tests.feedrack.endpoint import Asked, Reply, Script, scripted
from tests.feedrack.rdma_node import OPTIONS, RdmaNode, rdma_node
from tests.rdma.soft import Fabric, SoftDevice

GATEWAY = {"x-feedrack-node": "n1"}
DATA = b"1234567890"


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """What the client's device and the other end's hang on."""
    fabric = Fabric()
    monkeypatch.setattr(opening, "_absent", {})
    monkeypatch.setattr(verbs, "open_device", lambda *_: fabric.device())
    return fabric


@pytest.fixture
def node(fabric: Fabric, tmp_path: Path) -> Iterator[RdmaNode]:
    with rdma_node(tmp_path, fabric) as node:
        node.put("k", DATA)
        yield node


def client_of(url: str, **options: Any) -> Client:
    return Client("s3://train", endpoint_url=url, **{**OPTIONS, "attempts": 2, **options})


@pytest.fixture
def client(node: RdmaNode) -> Iterator[Client]:
    with client_of(node.url) as client:
        yield client


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


# An endpoint that does not keep to the wire


class Gateway:
    """Answers the session's steps; `then` the requests with a token, and `plain` all others."""

    def __init__(self, fabric: Fabric, then: Script) -> None:
        self.device = fabric.device()
        self.steps: list[str] = []
        self.then = then
        self.refuse: dict[str, Reply] = {}
        self.node = dict(GATEWAY)

    def __call__(self, asked: Asked) -> Reply:
        if asked.target.startswith("/?feedrack-rdma="):
            step = asked.target.partition("=")[2]
            self.steps.append(step)
            if step in self.refuse:
                return self.refuse[step]
            if step == "prepare":
                pair = self.device.pair(depth=2, remote=False)
                prepared = Prepared(f"{len(self.steps):032x}", pair.address, 300.0)
                return Reply(200, msgspec.json.encode(prepared), GATEWAY)
            return Reply(204, b"", GATEWAY)
        if "x-amz-rdma-token" in asked.headers:
            return self.then(asked)
        return Reply(200, DATA if asked.method == "GET" else b"", self.node)


def told(reply: str = "200", moved: str = "10", **more: str) -> dict[str, str]:
    return {
        **GATEWAY,
        "x-amz-rdma-reply": reply,
        "x-amz-rdma-bytes-transferred": moved,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


@pytest.mark.parametrize(
    ("byte_range", "reply"),
    [
        (None, Reply(200, b"", told(moved="11"))),
        (None, Reply(200, b"", told(moved="-1"))),
        (None, Reply(200, b"", told(moved=""))),
        (None, Reply(200, b"more", told())),
        (None, Reply(200, b"", told("201"))),
        ("bytes=0-9", Reply(200, b"", told())),
        ("bytes=0-9", Reply(206, b"", told("206", content_range="bytes 0-8/20"))),
        ("bytes=0-9", Reply(206, b"", told("206"))),
        (None, Reply(500, b"<Code>RDMATransferFailed</Code>", GATEWAY)),
        (None, Reply(502, b"from a proxy")),
        (None, Reply(200, b"1234567890", told("501"), cut=3)),
    ],
)
def test_an_answer_that_cannot_be_is_not_believed(
    fabric: Fabric, byte_range: str | None, reply: Reply
) -> None:
    gateway = Gateway(fabric, lambda _: reply)

    def script(asked: Asked) -> Reply:
        answer = gateway(asked)
        return (
            answer._replace(status=206)
            if "range" in asked.headers and ("x-amz-rdma-token" not in asked.headers)
            else answer
        )

    with scripted(script) as endpoint, client_of(endpoint.url) as client:
        target = bytearray(10)
        memory = client.register(target)
        before = set(fabric.pairs)
        result = client.get_into("k", memory, byte_range)
        assert result.transport == "http"
        assert target == DATA
        assert client._link._session is None
        # The client's pair of that session is no more; the gateway's own is.
        assert len(set(fabric.pairs) - before) == 1
        # Nothing had ever moved, so connecting waits a while.
        assert client.get_into("k", memory, byte_range).transport == "http"
        assert gateway.steps.count("prepare") == 1


@pytest.mark.parametrize("body", [b"", b"{", b'{"objects":[],"bytes":10,"failed":0}'])
def test_a_table_that_cannot_be_is_not_believed(fabric: Fabric, body: bytes) -> None:
    rows = b'{"objects":[{"status":200,"offset":5,"length":9}],"bytes":10,"failed":0}'
    replies = iter([Reply(200, body, told()), Reply(200, rows, told())])
    gateway = Gateway(fabric, lambda _: next(replies))
    for _ in range(2):
        with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
            memory = client.register(bytearray(10))
            with pytest.raises(Exception, match="batches"):
                # Over HTTP this endpoint has none.
                client.batch_into(["k"], memory)
            assert client._link._session is None
            assert client.counts.fallbacks == {"transfer": 1}


@pytest.mark.parametrize(
    ("step", "reply", "reason"),
    [
        ("prepare", Reply(501), "gateway"),
        ("prepare", Reply(503), "connect"),
        ("prepare", Reply(200, b"{}", GATEWAY), "connect"),
        ("prepare", Reply(200, b"{}", GATEWAY, cut=1), "connect"),
        ("ready", Reply(404), "connect"),
        ("ready", Reply(200, b"x", GATEWAY, cut=0), "connect"),
    ],
)
def test_a_session_that_cannot_be_had_is_tried_for_again_after_a_while(
    fabric: Fabric, step: str, reply: Reply, reason: str
) -> None:
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    gateway.refuse[step] = reply
    clock = [0.0]
    with scripted(gateway) as endpoint:
        http = HttpClient("train", Access(endpoint_url=endpoint.url, anonymous=True, attempts=1))
        link = Link(http, Wanted(), now=lambda: clock[0])
        memory = of_buffer(bytearray(10))
        before = set(fabric.pairs)
        tried = []
        for second in range(200):
            clock[0] = float(second)
            with pytest.raises(NoRdma) as caught:
                link.lease(memory)
            assert caught.value.reason == reason
            tried.append(gateway.steps.count("prepare"))
        assert tried[0] == 1
        # Ever less often.
        assert 5 <= tried[-1] <= 12
        assert not [
            number
            for number in set(fabric.pairs) - before
            if (fabric.pairs[number].device is not gateway.device)
        ]
        if step == "ready":
            assert gateway.steps.count("cancel") == tried[-1]
        gateway.refuse.clear()
        clock[0] += 100.0
        link.lease(memory)
        link.close()
        http.close()


@pytest.fixture
def slow(fabric: Fabric) -> Iterator[tuple[Gateway, threading.Event, threading.Event]]:
    """A gateway whose second session takes as long as nobody sets the second event."""
    came, go_on = threading.Event(), threading.Event()

    class Slow(Gateway):
        def __call__(self, asked: Asked) -> Reply:
            if asked.target.endswith("=prepare") and "prepare" in self.steps:
                came.set()
                go_on.wait(60)
            return super().__call__(asked)

    yield Slow(fabric, lambda _: Reply(200, b"", told())), came, go_on
    go_on.set()


def test_nobody_waits_long_for_a_thread_that_connects(
    slow: tuple[Gateway, threading.Event, threading.Event],
) -> None:
    gateway, came, go_on = slow
    clock = [0.0]
    with scripted(gateway) as endpoint, ThreadPoolExecutor(4) as threads:
        http = HttpClient("train", Access(endpoint_url=endpoint.url, anonymous=True, attempts=1))
        link = Link(http, Wanted(), now=lambda: clock[0])
        memory = of_buffer(bytearray(10))
        try:
            first = link.lease(memory)
            link.succeeded(first)
            link.fence(first, opening.Cause("transfer", "it failed"))
            connecting = threads.submit(link.lease, memory)
            assert came.wait(60)
            # In time it is waited for.
            waiting = threads.submit(link.lease, memory)
            threads.submit(link.fence, first, opening.Cause("transfer", "again")).result(20)
            clock[0] = 3.0
            with pytest.raises(NoRdma) as caught:
                threads.submit(link.lease, memory).result(20)
            assert caught.value.reason == "connect"
        finally:
            go_on.set()
        assert connecting.result(20).session is not first.session
        with contextlib.suppress(NoRdma):
            assert waiting.result(20).session is connecting.result().session
        assert gateway.steps.count("prepare") == 2
        link.close()
        http.close()


def test_a_client_that_is_closed_while_it_connects_keeps_no_session(
    slow: tuple[Gateway, threading.Event, threading.Event], fabric: Fabric
) -> None:
    gateway, came, go_on = slow
    with (
        scripted(gateway) as endpoint,
        client_of(endpoint.url) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        memory = client.register(bytearray(10))
        client.get_into("k", memory)
        client.close()
        connecting = threads.submit(client.get_into, "k", memory)
        try:
            assert came.wait(60)
            threads.submit(client.close).result(20)
        finally:
            go_on.set()
        assert connecting.result(20).reason == "connect"
        assert [pair for pair in fabric.pairs.values() if pair.device is not gateway.device] == []
        assert gateway.steps[-1] == "cancel"
        assert client.get_into("k", memory).transport == "rdma"


def test_another_gateway_behind_the_same_name_costs_the_session(fabric: Fabric) -> None:
    """Whoever sent the token there may have sent it to the session's own gateway before."""
    moved, other = Reply(200, b"", told()), {**told("501"), "x-feedrack-node": "n2"}
    replies = iter([moved, Reply(200, DATA, other), moved])
    gateway = Gateway(fabric, lambda _: next(replies))
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        assert client.get_into("k", memory).transport == "rdma"
        assert client.get_into("k", memory).reason == "gateway"
        assert client._link._session is None
        assert client.get_into("k", memory).transport == "rdma"
        assert gateway.steps == ["prepare", "ready"] * 2


def test_what_the_sessions_own_gateway_refuses_costs_no_session(fabric: Fabric) -> None:
    small = b"<Code>InvalidRDMAToken</Code><BytesNeeded>11</BytesNeeded>"
    busy = b"<Code>SlowDown</Code><Message>No buffer for RDMA came free in time.</Message>"
    refusals = [(404, b"<Code>NoSuchKey</Code>"), (400, small), (503, busy)]
    replies = (Reply(status, body, GATEWAY) for status, body in refusals)
    gateway = Gateway(fabric, lambda _: next(replies))
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        for error in (MissingObject, WrongMemory):
            with pytest.raises(error):
                client.get_into("k", memory)
        assert client.get_into("k", memory).reason == "transfer"
        assert client._link._session is not None
        assert gateway.steps == ["prepare", "ready"]


def test_a_session_that_rested_too_long_is_not_used_again(fabric: Fabric) -> None:
    clock = [0.0]
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    with scripted(gateway) as endpoint:
        http = HttpClient("train", Access(endpoint_url=endpoint.url, anonymous=True, attempts=1))
        link = Link(http, Wanted(), now=lambda: clock[0])
        memory = of_buffer(bytearray(10))
        first = link.lease(memory)
        clock[0] = 299.0
        second = link.lease(memory)
        assert second.session is first.session
        link.give_back(first)
        # What is in use does not rest, however long it takes.
        clock[0] = 600.0
        third = link.lease(memory)
        assert third.session is first.session
        link.give_back(second)
        link.give_back(third)
        clock[0] = 899.0
        link.give_back(link.lease(memory))
        clock[0] = 1199.0
        assert link.lease(memory).session is not first.session
        link.close()
        http.close()


def test_an_endpoint_that_stored_an_empty_body_is_sent_the_bytes(fabric: Fabric) -> None:
    stored: list[bytes] = []

    def store(asked: Asked) -> Reply:
        stored.append(asked.body)
        return Reply(200, b"", GATEWAY)

    gateway = Gateway(fabric, store)

    def script(asked: Asked) -> Reply:
        return store(asked) if asked.method == "PUT" else gateway(asked)

    with scripted(script) as endpoint, client_of(endpoint.url) as client:
        result = client.put_from("k", client.register(bytearray(DATA)))
        assert (result.transport, result.reason) == ("http", "gateway")
        assert stored == [b"", DATA]


def test_a_token_goes_out_once_also_where_a_connection_has_ended(fabric: Fabric) -> None:
    tokens: list[str] = []

    def answer(asked: Asked) -> Reply:
        tokens.append(asked.headers["x-amz-rdma-token"])
        return Reply(200, b"", told(), hang_up=True)

    with scripted(Gateway(fabric, answer)) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        for _ in range(5):
            client.get_into("k", memory)
        assert len(set(tokens)) == len(tokens)
        assert client.counts.transfers + client.counts.fallbacks.get("transfer", 0) == 5
        assert len(tokens) <= 5


def test_what_is_missing_is_missing_either_way(client: Client) -> None:
    memory = client.register(bytearray(10))
    with pytest.raises(MissingObject):
        client.get_into("gone", memory)
    assert client.get_into("k", memory).transport == "rdma"
    assert client.counts == (1, 10, {})
