"""An endpoint that does not keep to the wire, or ends a session: what a client makes of it."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access
from feedrack.errors import MissingObject, WrongMemory
from feedrack.rdma import Client, opening
from feedrack.rdma.link import Link
from feedrack.rdma.memory import of_buffer
from feedrack.rdma.opening import NoRdma, Wanted
from tests.feedrack.endpoint import Asked, Reply, scripted
from tests.feedrack.rdma.ends import DATA, GATEWAY, Gateway, client_of, told
from tests.rdma.soft import Fabric


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
        assert connecting.result(60).session is not first.session
        with contextlib.suppress(NoRdma):
            assert waiting.result(60).session is connecting.result().session
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
        assert connecting.result(60).reason == "connect"
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
    busy = b"<Code>SlowDown</Code><Message>The origin is busy.</Message>"
    refusals = [(404, b"<Code>NoSuchKey</Code>"), (400, small), (503, busy)]
    replies = (
        Reply(each, body, {**GATEWAY, "x-amz-rdma-reply": str(each)}) for each, body in refusals
    )
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
