"""Tunnels: what may be sent again is, through the next keeper; what may not breaks; nothing is done
twice, and nothing waits for ever."""

import asyncio
import multiprocessing
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.s3 import line as line_module
from gateway.s3 import tunnel
from gateway.s3.connection import Connection
from gateway.s3.frames import FrameReader, Kind, counted, frame
from gateway.s3.line import Line, connect
from gateway.s3.tunnel_end import TunnelledConnection
from tests.s3 import running as made
from tests.s3.running import Running, call, running
from tests.s3.test_server import ask
from tests.s3.tunnelled import TunnelledNode
from tests.waiting import until


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(made, "Node", TunnelledNode)
    async with running(tmp_path) as started:
        (started.root / "train").mkdir()
        yield started


def tunnelled(node: Running) -> TunnelledNode:
    assert isinstance(node.node, TunnelledNode)
    return node.node


async def kill_keeper(node: Running) -> None:
    """Every tunnel breaks, as when the process is gone; the socket is still there."""
    there = tunnelled(node)
    there.tunnel_door.close()
    for connection in list(there.keeper._connections):
        connection.abort()
    await there.tunnel_door.end()
    await there.keeper.close()


async def next_keeper(node: Running) -> None:
    there = tunnelled(node)
    there.keeper = there.make_keeper()
    await there.keeper.start()


# What may be sent again


async def test_a_read_that_waits_for_its_answer_is_sent_to_the_next_keeper(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.root / "train/k").write_bytes(b"hello")
    asked, go_on = asyncio.Event(), asyncio.Event()
    opened = node.node.origins["main"].open

    async def slowly(*args: object, **kwargs: object) -> object:
        asked.set()
        await go_on.wait()
        return await opened(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(node.node.origins["main"], "open", slowly)
    reading = asyncio.create_task(ask(node, node.signed("GET", "/train/k")))
    await asyncio.wait_for(asked.wait(), 60)
    await kill_keeper(node)
    await next_keeper(node)
    go_on.set()
    reply = await reading
    assert (reply.status, reply.body) == (200, b"hello")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_what_comes_while_there_is_no_keeper_waits_for_the_next(
    node: Running, method: str
) -> None:
    (node.root / "train/k").write_bytes(b"hello")
    await kill_keeper(node)
    body = b"x" * 300_000 if method == "PUT" else b""
    asking = asyncio.create_task(ask(node, node.signed(method, "/train/k", body=body), method))
    await until(lambda: tunnelled(node).tunnels.waiting)
    await next_keeper(node)
    assert (await asking).status in (200, 204)
    if method == "PUT":
        assert (node.root / "train/k").read_bytes() == body


async def test_a_write_that_is_being_acted_upon_breaks_with_its_keeper(node: Running) -> None:
    wire = await node.connect()
    request = node.signed("PUT", "/train/k", body=b"x" * 100_000)
    await wire.send(request[:-50_000])
    there = tunnelled(node)
    await until(lambda: there.metrics.requests_in_flight._value.get() == 1)
    await kill_keeper(node)
    await next_keeper(node)
    assert await wire.ended()
    assert not (node.root / "train/k").exists()


async def test_an_answer_that_has_begun_breaks_with_its_keeper(node: Running) -> None:
    (node.root / "train/k").write_bytes(bytes(20_000_000))
    wire = await node.connect(receive_bytes=65_536)
    await wire.send(node.signed("GET", "/train/k"))
    await wire.reader.readexactly(1000)
    await kill_keeper(node)
    await next_keeper(node)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await wire.reader.readexactly(20_000_000)


async def test_a_request_that_meets_the_end_of_an_idle_tunnel_goes_through_another(
    node: Running,
) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/k", body=b"one"))
    assert (await wire.reply()).status == 200
    there = tunnelled(node)
    [connection] = there.keeper._connections
    for body in (b"two", b"three"):
        # At rest, the keeper may close at any time: the client has nothing to do with it.
        for connection in list(there.keeper._connections):
            connection.end()
        await wire.send(node.signed("PUT", "/train/k", body=body))
        assert (await wire.reply()).status == 200
        assert (node.root / "train/k").read_bytes() == body
    assert connection.gone.is_set()


async def test_a_keeper_that_drains_ends_its_tunnels_at_rest_and_no_client(node: Running) -> None:
    wires = [await node.connect() for _ in range(3)]
    for wire in wires:
        await wire.send(node.signed("PUT", "/train/k", body=b"one"))
        assert (await wire.reply()).status == 200
    busy = wires[0]
    request = node.signed("PUT", "/train/busy", body=b"y" * 10_000)
    await busy.send(request[:-5000])
    there = tunnelled(node)
    await until(lambda: there.metrics.requests_in_flight._value.get() == 1)
    ending = asyncio.create_task(there.end_keeper())
    await until(lambda: len(there.keeper._connections) == 1)
    await busy.send(request[-5000:])
    reply = await busy.reply()
    assert (reply.status, reply.headers.get("connection")) == (200, None)
    await asyncio.wait_for(ending, 10)
    await next_keeper(node)
    for wire in wires:
        await wire.send(node.signed("GET", "/train/k"))
        assert (await wire.reply()).body == b"one"


async def test_what_is_in_doubt_is_not_sent_again(node: Running) -> None:
    """Where the framing is not certain, a rest proves nothing, and the connection ends."""
    wire = await node.connect()
    head = node.signed("GET", "/train/none", {"TE": "trailers", "Upgrade": "h2c"})
    await wire.send(head)
    assert (await wire.reply()).status == 404
    await kill_keeper(node)
    await next_keeper(node)
    assert await wire.ended()


# What does not wait for ever


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
async def test_where_no_keeper_comes_the_client_is_told_to_come_again(
    node: Running, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    await kill_keeper(node)
    there = tunnelled(node)
    await until(lambda: not there.line.here)
    there.line.patience_seconds = 0.3
    wire = await node.connect()
    body = b"x" * 500_000 if method == "PUT" else b""
    await wire.send(node.signed(method, "/train/k", body=body)[:200_000])
    reply = await wire.reply(method)
    assert reply.status == 503
    assert (reply.headers["retry-after"], reply.headers["connection"]) == ("1", "close")
    await wire.reader.read()
    await next_keeper(node)
    # What was given up is not carried out after all.
    assert (await ask(node, node.signed("GET", "/train/k"))).status == 404


async def test_a_request_that_ends_every_keeper_is_given_up(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    received = Connection.data_received

    def data_received(connection: Connection, data: bytes) -> None:
        nonlocal seen
        if isinstance(connection, TunnelledConnection) and b"poison" in data:
            seen += 1
            connection.abort()
        else:
            received(connection, data)

    monkeypatch.setattr(Connection, "data_received", data_received)
    reply = await ask(node, node.signed("GET", "/train/poison"))
    assert reply.status == 503
    assert seen == tunnel._ATTEMPTS


# How much waits where


async def test_a_slow_reader_holds_up_the_keeper_not_the_worker(node: Running) -> None:
    size_bytes = 60_000_000
    with (node.root / "train/k").open("wb") as file:
        file.truncate(size_bytes)
    wire = await node.connect(receive_bytes=65_536)
    await wire.send(node.signed("GET", "/train/k"))
    await wire.reader.readuntil(b"\r\n\r\n")
    there = tunnelled(node)
    [connection] = there.s3._connections
    [kept] = there.keeper._connections

    def waiting() -> int:
        assert connection._transport is not None
        assert kept._transport is not None
        return (
            connection._transport.get_write_buffer_size() + kept._transport.get_write_buffer_size()
        )

    before = -1
    while waiting() != before:
        before = waiting()
        await asyncio.sleep(0.05)
    assert before < 2_000_000
    reply = await wire.reader.readexactly(size_bytes)
    assert len(reply) == size_bytes


async def test_no_more_of_an_upload_is_read_than_is_kept_until_a_keeper_takes_it(
    node: Running,
) -> None:
    await kill_keeper(node)
    body = bytes(5_000_000)
    wire = await node.connect()
    sending = asyncio.create_task(wire.send(node.signed("PUT", "/train/k", body=body)))
    there = tunnelled(node)
    await until(lambda: there.tunnels.waiting)
    [lane] = there.tunnels.waiting
    before = -1
    while lane._kept_bytes != before:
        before = lane._kept_bytes
        await asyncio.sleep(0.05)
    assert 65_536 < before < 1_000_000
    await next_keeper(node)
    assert (await wire.reply()).status == 200
    await sending
    assert (node.root / "train/k").stat().st_size == len(body)


# The socket


async def _greet(path: str, data: bytes) -> bytes:
    """Everything the keeper says to what no worker sends."""
    reader, writer = await asyncio.open_unix_connection(sock=connect(path))
    writer.write(data)
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(Kind.DATA, b"x"),
        frame(Kind.GO),
        frame(Kind.BEGIN, b"no JSON"),
        frame(Kind.BEGIN, b'{"remote":"x","secure":false,"leaving":false}') + frame(Kind.LINE),
        frame(Kind.LINE) + frame(Kind.DATA, b"x"),
        frame(Kind.READ, b"nothing"),
    ],
)
async def test_what_no_worker_says_ends_its_connection_and_nothing_else(
    node: Running, data: bytes
) -> None:
    answer = await _greet(tunnelled(node).path, data)
    assert answer in (b"", frame(Kind.HERE))
    assert (await ask(node, node.signed("GET", "/train/none"))).status == 404


def _knock_as_somebody_else(path: str, heard: "multiprocessing.Queue[bytes]") -> None:
    os.setuid(65_534)
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(20)
    try:
        wire.connect(path)
        wire.sendall(frame(Kind.LINE))
        heard.put(wire.recv(100))
    except OSError as error:
        heard.put(type(error).__name__.encode())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
async def test_another_user_is_not_let_in(node: Running) -> None:
    path = Path(tunnelled(node).path)
    path.parent.chmod(0o755)
    path.chmod(0o777)
    fork = multiprocessing.get_context("fork")
    heard = fork.Queue()
    other = fork.Process(target=_knock_as_somebody_else, args=(str(path), heard))
    other.start()
    assert await asyncio.to_thread(heard.get, timeout=30) in (
        b"",
        b"BrokenPipeError",
        b"ConnectionResetError",
    )
    await asyncio.to_thread(other.join, 30)
    assert tunnelled(node).lines == [1]


# Lines


async def test_a_tunnel_that_was_full_and_breaks_leaves_no_client_unread(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/k", body=b"one"))
    assert (await wire.reply()).status == 200
    [connection] = tunnelled(node).s3._connections
    lane = connection._long
    assert isinstance(lane, tunnel.TunnelLane)
    lane.hold_back(True)
    assert connection._transport is not None
    assert not connection._transport.is_reading()
    await kill_keeper(node)
    await next_keeper(node)
    await until(connection._transport.is_reading)
    await wire.send(node.signed("PUT", "/train/k", body=b"two"))
    assert (await wire.reply()).status == 200


async def test_a_line_tells_when_a_keeper_is_there_and_when_it_leaves(node: Running) -> None:
    there = tunnelled(node)
    await until(lambda: there.line.here)
    assert there.lines == [1]
    there.line.note(b"notes")
    await until(lambda: there.notes == [b"notes"])
    await there.end_keeper()
    await until(lambda: not there.line.here)
    drain_seconds = there.config.s3.limits.drain_timeout_seconds
    assert there.line.patience_seconds == drain_seconds + line_module._PATIENCE_SECONDS
    assert there.lines[-1] == 0
    await next_keeper(node)
    await until(lambda: there.line.here)
    assert there.line.patience_seconds == line_module._PATIENCE_SECONDS


async def test_a_line_is_asked_for_until_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "_AGAIN_SECONDS", 0.01)
    changes: list[bool] = []
    served = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="line") as folder:
        path = f"{folder}/keeper.sock"
        line = Line(path, on_change=lambda: changes.append(line.here))
        line.open()
        await asyncio.sleep(0.05)
        said: list[tuple[Kind, bytes]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said.extend(FrameReader().feed(await reader.read(100)))
            writer.write(frame(Kind.HERE) + counted(Kind.LEAVING, 7))
            await until(lambda: line.here)
            if len(said) < 2:
                writer.write(b"\xff no frame")
            await reader.read()
            writer.close()
            served.set()

        server = await asyncio.start_unix_server(serve, path)
        await until(lambda: changes == [True, False, True])
        assert said == [(Kind.LINE, b"")] * 2
        assert line.patience_seconds == 7 + line_module._PATIENCE_SECONDS
        served.clear()
        await line.close()
        await asyncio.wait_for(served.wait(), 60)
        server.close()


async def test_a_worker_that_leaves_says_so_in_the_next_answer_through_a_tunnel(
    node: Running,
) -> None:
    wires = [await node.connect() for _ in range(2)]
    for wire in wires:
        await wire.send(node.signed("PUT", "/train/k", body=b"one"))
        assert "connection" not in (await wire.reply()).headers
    retiring = asyncio.create_task(tunnelled(node).s3.retire())
    await asyncio.sleep(0)
    for wire in wires:
        assert not retiring.done()
        await wire.send(node.signed("PUT", "/train/k", body=b"two"))
        reply = await wire.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await wire.ended()
    await asyncio.wait_for(retiring, 60)


async def test_boto3_works_across_keepers(node: Running) -> None:
    s3 = node.client()
    for number in range(6):
        body = bytes([number]) * 200_000
        await call(s3.put_object, Bucket="train", Key="k", Body=body)
        if number % 2:
            await tunnelled(node).end_keeper()
        else:
            await kill_keeper(node)
        await next_keeper(node)
        answer = await call(s3.get_object, Bucket="train", Key="k")
        assert await call(answer["Body"].read) == body
    s3.close()
