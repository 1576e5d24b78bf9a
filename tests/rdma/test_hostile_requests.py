"""What requests with a token can do at the S3 port that they should not."""

import asyncio
import os

import msgspec
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.auth.request import RequestHead
from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import REPLY_HEADER, Table
from gateway.s3 import relay
from gateway.store.batch import BatchReads
from gateway.store.reading import ReadAnswer
from tests.rdma.raw import RawClient, checksum, counted, put
from tests.rdma.soft import Fabric
from tests.s3.running import ACCESS_KEY, RESTRICTED, SECRET_KEY, Running
from tests.waiting import until

MIB = 1024**2


class Turns:
    """Counts how often the event loop came round."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._turn())

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def end(self) -> None:
        self._task.cancel()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_large_batch_leaves_others_their_turn(
    client: RawClient,
    node: Running,
    fabric: Fabric,
    monkeypatch: pytest.MonkeyPatch,
    allowed: bool,
) -> None:
    """As over HTTP, where at most 128 objects are answered in a row."""
    put(node, "k", b"x" * 100)
    # What is held is answered at once.
    assert (await client.ask("GET", "/train/k")).status == 200
    turns = Turns()
    in_a_row, most, before = 0, 0, 0
    take = BatchReads.take

    async def counted_take(self: BatchReads) -> ReadAnswer | Exception:
        nonlocal in_a_row, most, before
        in_a_row = in_a_row + 1 if turns.count == before else 1
        before, most = turns.count, max(most, in_a_row)
        return await take(self)

    monkeypatch.setattr(BatchReads, "take", counted_take)
    asker = client
    if not allowed:
        asker = RawClient(node, fabric.device(), access_key=RESTRICTED)
        await asker.connect()
    body = msgspec.json.encode({"objects": [{"key": "k"}] * 5000})
    reply = await asker.move("POST", "/train?feedrack-batch", body=body)
    turns.end()
    table = msgspec.json.decode(reply.body, type=Table)
    assert {row.status for row in table.objects} == {200 if allowed else 403}
    assert most <= 512


async def test_a_token_in_a_presigned_address_answers_alike_wherever_the_bytes_are(
    client: RawClient, node: Running
) -> None:
    put(node, "k", b"12345")
    url = f"http://127.0.0.1:{node.port}/train/k?{TOKEN_HEADER}={client.token()}"
    request = AWSRequest("GET", url)
    S3SigV4QueryAuth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
    assert request.url is not None
    target = request.url.removeprefix(f"http://127.0.0.1:{node.port}")
    wire = await node.connect()
    seen = []
    for _ in range(4):
        await wire.send(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{node.port}\r\n\r\n".encode())
        reply = await wire.reply()
        seen.append((reply.status, reply.code, reply.headers.get(REPLY_HEADER)))
        # What others read comes into the cache.
        assert (await client.ask("GET", "/train/k")).body == b"12345"
    assert len(set(seen)) == 1, seen


async def test_a_thief_writes_into_nobodys_memory_by_naming_his_queue_pair(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    (node.root / "other").mkdir()
    (node.root / "other" / "k").write_bytes(b"12345")
    thief = RawClient(node, fabric.device(), access_key=RESTRICTED)
    assert client.pair is not None
    reply = await thief.step("prepare", {"address": client.pair.address})
    if reply.status == 200:
        thief.session = msgspec.json.decode(reply.body)["session"]
        assert (await thief.step("ready", {"session": thief.session})).status == 204
        await thief.move(
            "GET",
            "/other/k",
            token=thief.token(address=client.region.address, rkey=client.region.rkey),
        )
    assert not any(client.memory[:16])
    thief.close()


async def test_a_connection_goes_on_after_each_refusal(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    data = b"some"
    good = client.token(4)
    wrong: list[tuple[str, str, dict[str, str], bytes]] = [
        ("GET", "/train/k", {TOKEN_HEADER: "x"}, b""),
        ("GET", "/train/k", {TOKEN_HEADER: client.token(4)}, b""),
        ("GET", "/train/none", {TOKEN_HEADER: client.token()}, b""),
        ("GET", "/train/k", {TOKEN_HEADER: client.token(), "range": "bytes=9-"}, b""),
        ("GET", "/train/k", {TOKEN_HEADER: client.token(), "if-none-match": "*"}, b""),
        ("PUT", "/train/n", {TOKEN_HEADER: client.token(4)}, b""),
        ("PUT", "/train/n", {TOKEN_HEADER: client.token(4), **checksum(data)}, data),
        ("PUT", "/train/n", {TOKEN_HEADER: client.token(session="0" * 32)}, b""),
        ("PUT", "/train/n", {TOKEN_HEADER: client.token(session="0" * 32)}, data * 1000),
        ("PUT", "/none/n", {TOKEN_HEADER: good, **checksum(data)}, b""),
        ("POST", "/train?feedrack-batch", {TOKEN_HEADER: client.token()}, b"{"),
    ]
    for method, target, headers, body in wrong:
        reply = await client.ask(method, target, headers, body)
        assert reply.status >= 300
        assert reply.headers.get("connection") != "close", (method, headers, reply.body)
        wire = client._wire
        assert (await client.ask("GET", "/train/k")).body == b"12345"
        assert client._wire is wire
    assert node.node.parts.rdma.buffers_free == 4
    assert counted(node, "rdma_sessions") == 1


async def test_what_asks_first_and_has_a_token_sends_nothing(
    client: RawClient, node: Running
) -> None:
    data = b"some"
    client.memory[:4] = data
    headers = {TOKEN_HEADER: client.token(4), "expect": "100-continue", **checksum(data)}
    reply = await client.ask("PUT", "/train/n", headers)
    if reply.status == 100:
        assert client._wire is not None
        reply = await client._wire.reply("PUT")
    assert reply.status == 200, reply.body
    assert (node.root / "train" / "n").read_bytes() == data


@pytest.mark.parametrize(
    "more",
    [
        {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": "9"},
        {"x-amz-decoded-content-length": "4"},
        {"x-amz-trailer": "x-amz-checksum-crc32"},
        {"x-amz-checksum-crc32c": "AAAAAA=="},
        {"if-none-match": "*"},
    ],
)
async def test_a_put_is_stored_as_it_lies_in_memory_or_refused(
    client: RawClient, node: Running, more: dict[str, str]
) -> None:
    data = b"some"
    client.memory[:4] = data
    put(node, "old", b"before")
    headers = {**checksum(data), **more}
    reply = await client.move("PUT", "/train/old", headers, token=client.token(4))
    found = (node.root / "train" / "old").read_bytes()
    assert found == (data if reply.status == 200 else b"before")
    assert reply.status in (200, 400, 412), reply.body
    assert node.node.parts.rdma.buffers_free == 4


async def test_two_tokens_are_none(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    one, other = client.token(), client.token()
    signed = node.signed("GET", "/train/k", {TOKEN_HEADER: f"{one},{other}"})
    lines = f"{TOKEN_HEADER}: {one}\r\n{TOKEN_HEADER}: {other}\r\n".encode()
    both = f"{TOKEN_HEADER}: {one},{other}\r\n".encode()
    assert both in signed
    wire = await node.connect()
    await wire.send(signed.replace(both, lines))
    reply = await wire.reply()
    assert (reply.status, reply.code) == (400, "InvalidRDMAToken")
    assert not any(client.memory[:16])


async def test_edges_of_numbers_cost_an_answer(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    put(node, "e", b"")
    top = (1 << 64) - 1
    for fields in (
        {"sequence": top},
        {"sequence": top - 1, "address": top, "size_bytes": 1},
        {"sequence": top - 2, "address": top - 4, "size_bytes": 5},
        {"sequence": top - 3, "rkey": 0xFFFFFFFF},
    ):
        for key in ("e", "k"):
            token = client.token(**{**fields, "sequence": fields["sequence"] - 7 * (key == "k")})
            reply = await client.move("GET", f"/train/{key}", token=token)
            assert reply.status in (200, 400, 500), reply.body
            assert reply.code in ("", "InvalidRDMAToken", "RDMATransferFailed"), reply.body
        if not counted(node, "rdma_sessions"):
            await client.connect()
    assert node.node.parts.rdma.buffers_free == 4


async def test_a_client_that_hangs_up_leaves_nothing_behind(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    data = os.urandom(4 * MIB)
    put(node, "k", data)
    for method in ("GET", "PUT"):
        fabric.held = True
        token = client.token(3 * MIB)
        target, size = ("/train/k", {"range": f"bytes=0-{3 * MIB - 1}"})
        headers = {TOKEN_HEADER: token, **(size if method == "GET" else checksum(b"none"))}
        wire = await node.connect()
        posted = fabric.posted
        await wire.send(node.signed(method, target if method == "GET" else "/train/n", headers))
        await until(lambda posted=posted: fabric.posted != posted)  # type: ignore[misc]
        await wire.close()
        await asyncio.sleep(0.05)
        fabric.held = False
        for pair in list(fabric.pairs.values()):
            pair.go_on()
        await until(lambda: node.node.parts.rdma.buffers_free == 4)
        await until(lambda: not any(each.transfers for each in node.node.parts.rdma._table))
        if not counted(node, "rdma_sessions"):
            await client.connect()
    assert not (node.root / "train" / "n").exists()


def test_no_origin_is_told_of_a_clients_memory() -> None:
    """What is relayed, an object under a customer's key for one, goes over HTTP alone: an origin
    that speaks RDMA would write there itself, past every session and fence."""
    token = f"frdma1:{'0' * 32}:0:7f0000000000:1000:1234"
    foreign = "7f0000001000:100000:1f2e:0001:0000a1b2:1:fe80000000000000526b4bfffe4d1a2b"
    for value in (token, foreign):
        head = RequestHead("GET", "/train/k", "", ((TOKEN_HEADER, value), ("range", "bytes=0-")))
        assert relay._headers(head) == {"range": "bytes=0-"}


@pytest.mark.parametrize(
    "gid",
    [
        "ff02::1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:224.0.0.1",
        "::ffff:255.255.255.255",
        "::ffff:0.0.0.0",
    ],
)
async def test_nobody_has_a_gateway_send_to_all(client: RawClient, gid: str) -> None:
    """Nor to itself: Linux connects a queue pair to most of these without a word."""
    address = {"qpn": 17, "psn": 1, "gid": gid, "mtu": 4096, "link": "ethernet"}
    reply = await client.step("prepare", {"address": address})
    assert (reply.status, reply.code) == (400, "InvalidArgument")
