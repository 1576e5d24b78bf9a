"""The peers' port: nobody gets in, bad input costs little, and bytes go out as they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.cluster.members import Member, Members
from gateway.cluster.proof import Prover
from gateway.config import Secret
from gateway.peers.port import PeerPort
from gateway.peers.request import PeerAnswer, PeerRequest, Route
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.client import PeerClient, PeerFailed
from tests.waiting import until

OURS = Prover(Secret("between us"))


class Bench:
    """A port with a few routes, and a client of it."""

    def __init__(self, port: PeerPort, metrics: Metrics) -> None:
        self.port = port
        self.metrics = metrics
        self.seen: list[PeerRequest] = []
        self.slow = asyncio.Event()
        self.members = Members("asker")
        self.client = PeerClient(self.members, OURS, Metrics(), answer_seconds=1.5)

    def member(self, id_: str = "asked") -> Member:
        return Member(
            id=id_,
            incarnation="1",
            rack="r",
            zone="z",
            peers=f"127.0.0.1:{self.port.port}",
            s3="",
            admin="",
            capacity_bytes=1,
            version="0",
        )

    async def raw(self, data: bytes) -> bytes:
        """What comes back until the end, for bytes of somebody's."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def running(**how: object) -> AsyncIterator[Bench]:
    metrics = Metrics()
    port = PeerPort("asked", "127.0.0.1:0", OURS, metrics, **how)  # type: ignore[arg-type]
    bench = Bench(port, metrics)

    async def echo(request: PeerRequest) -> PeerAnswer:
        bench.seen.append(request)
        return PeerAnswer(200, {"x-feedrack-said": request.query}, body=request.body)

    async def slow(request: PeerRequest) -> PeerAnswer:
        await bench.slow.wait()
        return PeerAnswer(200, body=b"at last")

    async def broken(request: PeerRequest) -> PeerAnswer:
        raise RuntimeError("a bug")

    port.add(Route("GET", "/v1/echo", echo))
    port.add(Route("POST", "/v1/echo", echo))
    port.add(Route("GET", "/v1/slow", slow))
    port.add(Route("GET", "/v1/broken", broken))
    await port.start()
    bench.members.set([bench.member()])
    try:
        yield bench
    finally:
        bench.client.close()
        await port.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with running() as made:
        yield made


async def test_a_member_is_answered(bench: Bench) -> None:
    answer = await bench.client.ask(bench.member(), "/v1/echo?a=b%20c", what="echo")
    assert (answer.status, answer.headers["x-feedrack-said"]) == (200, "a=b%20c")
    assert bench.seen[0].asker == "asker"


async def test_a_body_arrives(bench: Bench) -> None:
    said = await bench.client.ask_whole(
        bench.member(), "/v1/echo", what="echo", method="POST", body=b"x" * 100_000
    )
    assert said == (200, b"x" * 100_000)


async def test_one_connection_serves_many_requests_and_the_nonce_is_asked_for_once(
    bench: Bench,
) -> None:
    for _ in range(20):
        await bench.client.ask_whole(bench.member(), "/v1/echo", what="echo")
    codes = bench.metrics.peer_answers
    assert codes.labels("/v1/echo", "200")._value.get() == 20
    assert codes.labels("", "401")._value.get() == 1
    assert len(bench.port._wires) == 1


async def test_an_answer_that_takes_long_is_waited_for_while_somebody_is_at_work(
    bench: Bench,
) -> None:
    asking = asyncio.create_task(bench.client.ask_whole(bench.member(), "/v1/slow", what="slow"))
    # Longer than the client waits for a node that says nothing.
    await asyncio.wait([asking], timeout=2.5)
    assert not asking.done()
    bench.slow.set()
    assert await asking == (200, b"at last")


async def test_a_node_that_leaves_is_not_waited_for(bench: Bench) -> None:
    asking = asyncio.create_task(bench.client.ask_whole(bench.member(), "/v1/slow", what="slow"))
    await until(lambda: bench.port._requests)
    bench.members.set([])
    async with asyncio.timeout(5):
        with pytest.raises(PeerFailed):
            await asking


async def test_what_is_not_there_and_what_fails_are_told_apart(bench: Bench) -> None:
    assert (await bench.client.ask_whole(bench.member(), "/v1/no", what="x"))[0] == 404
    assert (await bench.client.ask_whole(bench.member(), "/v1/broken", what="x"))[0] == 500


async def test_a_node_under_another_name_is_not_who_was_asked(bench: Bench) -> None:
    with pytest.raises(PeerFailed, match="not who was asked"):
        await bench.client.ask_whole(bench.member("other"), "/v1/echo", what="echo")


async def test_more_requests_than_it_can_bear_are_turned_away() -> None:
    async with running(most_requests=1) as bench:
        asking = asyncio.create_task(
            bench.client.ask_whole(bench.member(), "/v1/slow", what="slow")
        )
        await until(lambda: bench.port._requests)
        assert (await bench.client.ask_whole(bench.member(), "/v1/echo", what="x"))[0] == 503
        bench.slow.set()
        assert (await asking)[0] == 200


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET /v1/echo HTTP/1.1\r\n\r\n", b"403"),
        (b"GET /v1/echo HTTP/1.1\r\nx-feedrack-signature: " + b"0" * 64 + b"\r\n\r\n", b"403"),
        (b"GET /v1/span?key=k HTTP/1.1\r\nx-feedrack-node: asker\r\n\r\n", b"403"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
        (b"x" * 100_000, b""),
    ],
)
async def test_whoever_is_no_peer_hears_nothing_but_no(
    bench: Bench, sent: bytes, said: bytes
) -> None:
    heard = await bench.raw(sent)
    assert heard.split(b" ", 2)[1:2] == ([said] if said else heard.split(b" ", 2)[1:2])
    assert heard.partition(b"\r\n\r\n")[2] == b""
    assert not bench.seen


async def test_a_connection_that_asks_nothing_is_closed() -> None:
    async with running(idle_seconds=0.2) as bench:
        assert await bench.raw(b"GET /v1/ec") == b""


async def test_a_request_that_was_heard_on_the_wire_is_not_answered_again(bench: Bench) -> None:
    headers = OURS.signed_request(
        "GET", "/v1/echo", {}, node="asker", server_nonce=bench.port._verifier.nonce
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"GET /v1/echo HTTP/1.1\r\n{lines}\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port.port)
    writer.write(request)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.write(request)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
    writer.close()
    assert len(bench.seen) == 1


async def test_nothing_secret_is_logged(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerFailed):
        await bench.client.ask_whole(bench.member("other"), "/v1/echo", what="echo")
    await bench.client.ask_whole(bench.member(), "/v1/broken", what="x")
    shown = "".join(capsys.readouterr())
    assert "between us" not in shown
    assert "signature" not in shown.replace("x-feedrack-signature:", "")
