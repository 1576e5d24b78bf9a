"""The S3 port, byte by byte: what a client may hold up, and what it is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.s3.running import Running, Wire, call, running
from tests.waiting import until


async def ask(node: Running, request: bytes, method: str = "GET") -> Any:
    wire = await node.connect()
    await wire.send(request)
    return await wire.reply(method)


# Expect: 100-continue


async def test_a_body_is_asked_for_only_after_the_signature_is_found_good(node: Running) -> None:
    request = node.signed("PUT", "/train/a", {"Expect": "100-continue"}, b"hello")
    head, body = request[:-5], request[-5:]
    wire = await node.connect()
    await wire.send(head)
    assert (await wire.reply()).status == 100
    await wire.send(body)
    assert (await wire.reply()).status == 200
    await wire.send(node.signed("GET", "/train/a"))
    assert (await wire.reply()).body == b"hello"


async def test_an_empty_body_is_asked_for_as_well(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", {"Expect": "100-continue"}, b""))
    assert (await wire.reply()).status == 100
    assert (await wire.reply()).status == 200


async def test_a_refused_empty_body_ends_the_connection(node: Running) -> None:
    wire = await node.connect()
    headers = {"Expect": "100-continue"}
    await wire.send(node.signed("PUT", "/train/a", headers, b"", secret="wrong"))
    assert (await wire.reply()).status == 403
    assert await wire.ended()


async def test_a_body_with_a_bad_signature_is_never_asked_for(node: Running) -> None:
    wire = await node.connect()
    headers = {"Expect": "100-continue"}
    await wire.send(node.signed("PUT", "/train/a", headers, length=10**9, secret="wrong"))
    reply = await wire.reply()
    assert (reply.status, reply.code) == (403, "SignatureDoesNotMatch")
    assert reply.headers["connection"] == "close"
    assert await wire.ended()


async def test_a_body_that_would_be_refused_anyway_is_never_asked_for(node: Running) -> None:
    wire = await node.connect()
    headers = {"Expect": "100-continue"}
    await wire.send(node.signed("PUT", "/train/a", headers, length=6 * 1024**3))
    assert (await wire.reply()).code == "EntityTooLarge"
    assert await wire.ended()


# What is not HTTP, or not one request


@pytest.mark.parametrize(
    "head",
    [
        "GARBAGE",
        "GET /train/a HTTP/9.9\r\nHost: x",
        "GET /train/a HTTP/1.1",
        "GET /train/a HTTP/1.1\r\nHost: x\r\nHost: y",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: +5",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: -1",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length : 5",
        "PUT /train/a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999",
        "GET /train/a HTTP/1.1\r\nHost: x\r\n folded: y",
        "GET /train/a HTTP/1.1\r\nHost: x\r\nbad\x00name: y",
        "GET /train/a HTTP/1.1\r\nHost: x\r\nx-amz-meta-a: b\x00c",
    ],
)
async def test_what_is_not_one_clear_request_is_a_bad_request_and_the_end(
    node: Running, head: str
) -> None:
    wire = await node.connect()
    smuggled = "GET /train/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    await wire.send(f"{head}\r\n\r\n{smuggled}".encode("latin-1"))
    reply = await wire.reply()
    assert (reply.status, reply.code) == (400, "BadRequest")
    assert reply.headers["x-amz-request-id"]
    assert await wire.ended()


async def test_a_target_with_a_host_is_an_invalid_uri(node: Running) -> None:
    reply = await ask(node, b"GET http://127.0.0.1/train/a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.code == "InvalidURI"


@pytest.mark.parametrize(
    ("method", "code"),
    [("TRACE", "MethodNotAllowed"), ("PATCH", "MethodNotAllowed"), ("OPTIONS", "AccessForbidden")],
)
async def test_methods_that_s3_has_not_get_an_s3_answer(
    node: Running, method: str, code: str
) -> None:
    assert (await ask(node, node.signed(method, "/train/a"))).code == code


@pytest.mark.parametrize(
    "headers", [{"x-a": "y" * 20_000}, {f"x-{n}": "y" * 500 for n in range(40)}]
)
async def test_a_head_too_large_is_refused_as_s3_does(
    node: Running, headers: dict[str, str]
) -> None:
    wire = await node.connect()
    await wire.send(node.signed("GET", "/train/a", headers))
    reply = await wire.reply()
    assert (reply.status, reply.code) == (400, "RequestHeaderSectionTooLarge")


async def test_a_head_without_an_end_is_refused_at_the_limit(node: Running) -> None:
    wire = await node.connect()
    await wire.send(b"GET /train/a HTTP/1.1\r\nHost: x\r\n")
    for number in range(40):
        await wire.send(f"x-{number}: {'y' * 500}\r\n".encode())
    assert (await wire.reply()).code == "RequestHeaderSectionTooLarge"
    assert await wire.ended()


# Keep-alive


async def test_pipelined_requests_are_answered_in_order(node: Running, s3: Any) -> None:
    for key in "abc":
        await call(s3.put_object, Bucket="train", Key=key, Body=key.encode())
    wire = await node.connect()
    await wire.send(b"".join(node.signed("GET", f"/train/{key}") for key in "abca"))
    bodies = [(await wire.reply()).body for _ in range(4)]
    assert bodies == [b"a", b"b", b"c", b"a"]


async def test_an_error_leaves_the_connection_sane(node: Running) -> None:
    wire = await node.connect()
    body = b"GET /train/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    await wire.send(node.signed("PUT", "/missing/a", {"x-amz-acl": "public-read"}, body))
    assert (await wire.reply()).code == "NotImplemented"
    await wire.send(node.signed("PUT", "/train/a", {}, b"after"))
    assert (await wire.reply()).status == 200
    await wire.send(node.signed("GET", "/train/a"))
    assert (await wire.reply()).body == b"after"


async def test_a_tunnel_or_another_protocol_is_not_to_be_had(node: Running) -> None:
    wire = await node.connect()
    await wire.send(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.reply()).code == "MethodNotAllowed"
    wire = await node.connect()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    await wire.send(node.signed("GET", "/train/a", upgrade) + node.signed("GET", "/train/b"))
    assert [(await wire.reply()).code for _ in range(2)] == ["NoSuchKey", "NoSuchKey"]


async def test_a_large_body_that_nobody_wants_ends_the_connection(node: Running) -> None:
    wire = await node.connect()
    headers = {"x-amz-acl": "public-read"}
    await wire.send(node.signed("PUT", "/train/a", headers, b"x" * 100_000, length=10**9))
    reply = await wire.reply()
    assert reply.code == "NotImplemented"
    assert reply.headers["connection"] == "close"
    assert await wire.ended()


async def test_an_error_to_a_head_has_no_body_and_leaves_the_connection_sane(
    node: Running, s3: Any
) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"there")
    wire = await node.connect()
    await wire.send(node.signed("HEAD", "/train/missing") + node.signed("GET", "/train/a"))
    assert (await wire.reply("HEAD")).status == 404
    assert (await wire.reply()).body == b"there"


async def test_an_http_1_0_client_is_answered_and_closed(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("GET", "/train/a").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await wire.reply()).code == "NoSuchKey"
    assert await wire.ended()


# Bodies


async def test_a_truncated_upload_is_an_incomplete_body_and_stores_nothing(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", {}, b"half", length=8))
    wire.writer.write_eof()
    reply = await wire.reply()
    assert (reply.status, reply.code) == (400, "IncompleteBody")
    assert await wire.ended()
    assert (await ask(node, node.signed("GET", "/train/a"))).code == "NoSuchKey"


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_gives_up_a_refused_upload_is_no_fault_of_ours(
    node: Running, caplog: pytest.LogCaptureFixture, *, reset: bool
) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", body=b"x", length=1000, secret="wrong"))
    assert (await wire.reply()).code == "SignatureDoesNotMatch"
    if reset:
        await wire.close()
    else:
        wire.writer.write_eof()
        assert await wire.ended()
    gauge = node.node.metrics.connections
    await until(lambda: next(iter(gauge.collect())).samples[0].value == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_upload_whose_client_goes_away_stores_nothing(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", {}, b"x" * 300_000, length=10**6))
    wire.writer.transport.abort()
    gauge = node.node.metrics.connections
    await until(lambda: gauge._value.get() == 0)
    assert (await ask(node, node.signed("GET", "/train/a"))).code == "NoSuchKey"


async def test_a_body_without_a_length_must_have_one(node: Running) -> None:
    request = node.signed("PUT", "/train/a", {}, b"").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    reply = await ask(node, request + b"5\r\nhello\r\n0\r\n\r\n")
    assert (reply.status, reply.code) == (411, "MissingContentLength")


async def test_a_compressed_body_is_kept_as_it_was_sent(node: Running) -> None:
    wire = await node.connect()
    headers = {"Content-Encoding": "gzip"}
    await wire.send(node.signed("PUT", "/train/a", headers, b"not gzip at all"))
    assert (await wire.reply()).status == 200
    await wire.send(node.signed("GET", "/train/a"))
    reply = await wire.reply()
    assert (reply.body, reply.headers["content-encoding"]) == (b"not gzip at all", "gzip")


async def test_a_body_that_stops_coming_times_out(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"body_timeout_seconds": 0.1}) as node:
        (node.root / "train").mkdir()
        wire = await node.connect()
        await wire.send(node.signed("PUT", "/train/a", {}, b"half", length=8))
        reply = await wire.reply()
        assert (reply.code, reply.headers["connection"]) == ("RequestTimeout", "close")
        assert (await ask(node, node.signed("GET", "/train/a"))).code == "NoSuchKey"


# Time and number


async def test_a_head_that_trickles_in_times_out(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"header_timeout_seconds": 0.2}) as node:
        wire = await node.connect()
        await wire.send(b"GET /train/a HTTP/1.1\r\n")

        async def trickle() -> None:
            while True:
                await wire.send(b"x: y\r\n")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert (await wire.reply()).code == "RequestTimeout"
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)


async def test_a_connection_that_says_nothing_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"header_timeout_seconds": 0.2}) as node:
        wire = await node.connect()
        assert (await wire.reply()).code == "RequestTimeout"
        assert await wire.ended()


async def test_an_upload_may_take_longer_than_a_head(tmp_path: Path) -> None:
    limits = {"header_timeout_seconds": 0.1, "body_timeout_seconds": 5}
    async with running(tmp_path, limits=limits) as node:
        (node.root / "train").mkdir()
        wire = await node.connect()
        request = node.signed("PUT", "/train/a", {}, b"0123456789")
        await wire.send(request[:-10])
        for byte in b"0123456789":
            await asyncio.sleep(0.05)
            await wire.send(bytes([byte]))
        assert (await wire.reply()).status == 200


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"idle_timeout_seconds": 0.2}) as node:
        wire = await node.connect()
        await wire.send(node.signed("GET", "/"))
        assert (await wire.reply()).status == 200
        assert await wire.ended()


async def test_a_reader_that_takes_nothing_is_cut_and_one_that_is_slow_is_not(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, limits={"write_timeout_seconds": 0.4}) as node:
        (node.root / "train").mkdir()
        (node.root / "train" / "large").write_bytes(bytes(32 * 1024**2))
        stuck = await node.connect(receive_bytes=4096)
        slow = await node.connect(receive_bytes=65_536)
        for wire in (stuck, slow):
            await wire.send(node.signed("GET", "/train/large"))
        cut = node.node.metrics.connections_refused.labels("write timeout")
        received = 0
        while cut._value.get() == 0:
            received += len(await slow.reader.read(65_536))
            await asyncio.sleep(0.01)
        assert cut._value.get() == 1
        assert received > 0
        assert len(await slow.reader.read(65_536)) > 0


async def test_connections_over_the_limit_are_told_to_slow_down(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"connections": 2}) as node:
        first, second = await node.connect(), await node.connect()
        for wire in (first, second):
            await wire.send(node.signed("GET", "/"))
            assert (await wire.reply()).status == 200
        third = await node.connect()
        await third.send(node.signed("GET", "/"))
        reply = await third.reply()
        assert (reply.status, reply.code) == (503, "SlowDown")
        assert await third.ended()
        await first.close()
        gauge = node.node.metrics.connections
        await until(lambda: gauge._value.get() == 1)
        assert (await ask(node, node.signed("GET", "/"))).status == 200


# Ends


async def test_an_answer_whose_object_changes_midway_breaks_off(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        (node.root / "train").mkdir()
        large = node.root / "train" / "large"
        large.write_bytes(b"a" * 32 * 1024**2)
        wire = await node.connect(receive_bytes=65_536)
        await wire.send(node.signed("GET", "/train/large"))
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK\r\n" in head
        replacement = node.root / "train" / "new"
        replacement.write_bytes(b"b" * 32 * 1024**2)
        replacement.rename(large)
        received = bytearray()
        try:
            while block := await wire.reader.read(65_536):
                received += block
        except ConnectionError:
            pass
        assert len(received) < 32 * 1024**2
        assert set(received) == {ord("a")}


async def test_draining_ends_uploads_in_flight_and_takes_no_new_connection(node: Running) -> None:
    idle, busy = await node.connect(), await node.connect()
    await idle.send(node.signed("GET", "/"))
    assert (await idle.reply()).status == 200
    request = node.signed("PUT", "/train/a", {}, b"0123456789")
    await busy.send(request[:-5])
    in_flight = node.node.metrics.requests_in_flight
    await until(lambda: in_flight._value.get() == 1)
    port = node.port
    draining = asyncio.create_task(node.node.s3.drain(10))
    assert await idle.ended()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
    await busy.send(request[-5:])
    reply = await busy.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await busy.ended()
    await draining
    assert (node.root / "train" / "a").read_bytes() == b"0123456789"


async def test_draining_cuts_what_lasts_too_long(node: Running) -> None:
    wire: Wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", {}, b"half", length=8))
    in_flight = node.node.metrics.requests_in_flight
    await until(lambda: in_flight._value.get() == 1)
    await node.node.s3.drain(0.1)
    assert await wire.ended()
    assert not (node.root / "train" / "a").exists()
