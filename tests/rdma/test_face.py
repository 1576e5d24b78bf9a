"""Payloads by RDMA at the S3 port, over a soft device: what moves, what is declined, what is
refused."""

import asyncio
import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from gateway.rdma.device import VerbFailed
from gateway.rdma.token import TOKEN_HEADER
from gateway.rdma.wire import FALLBACK_HEADER, REPLY_HEADER, TRANSFERRED_HEADER, Table
from tests.rdma.raw import RawClient, checksum, counted, put
from tests.rdma.soft import Fabric, SoftDevice
from tests.s3.running import RESTRICTED, Running, running
from tests.waiting import until, until_it

MIB = 1024**2


SIZES = [0, 1, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB + 17]


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_lands_in_memory(client: RawClient, node: Running, size: int) -> None:
    data = os.urandom(size)
    put(node, "k", data)
    for _ in range(2):
        client.memory[:] = bytes(len(client.memory))
        reply = await client.move("GET", "/train/k")
        assert reply.status == 200
        assert reply.headers[REPLY_HEADER] == "200"
        assert reply.headers[TRANSFERRED_HEADER] == str(size)
        assert reply.headers["content-length"] == "0"
        assert reply.body == b""
        assert client.memory[:size] == data
        assert not any(client.memory[size : size + 4096])
        assert reply.headers["etag"]
    assert counted(node, "rdma_bytes_total", operation="GetObject") == 2 * size
    # An object's bytes count as ever, by tier.
    tiers = (counted(node, "read_bytes_total", tier=tier) for tier in ("origin", "disk"))
    assert sum(tiers) == 2 * size


async def test_a_range_lands_at_the_beginning_of_the_memory(
    client: RawClient, node: Running
) -> None:
    data = os.urandom(2 * MIB)
    put(node, "k", data)
    reply = await client.move("GET", "/train/k", {"range": f"bytes=100-{MIB + 99}"})
    assert reply.status == 206
    assert reply.headers[REPLY_HEADER] == "206"
    assert reply.headers["content-range"] == f"bytes 100-{MIB + 99}/{2 * MIB}"
    assert client.memory[:MIB] == data[100 : MIB + 100]


async def test_what_lies_on_the_disk_is_sent_without_a_copy(
    client: RawClient, node: Running
) -> None:
    data = os.urandom(3 * MIB)
    put(node, "k", data)
    # Young files may still be written to, and are not kept.
    os.utime(node.root / "train" / "k", (1e9, 1e9))

    async def copied() -> float:
        before = counted(node, "rdma_copied_bytes_total", operation="GetObject")
        reply = await client.move("GET", "/train/k")
        assert (reply.status, client.memory[: 3 * MIB] == data) == (200, True)
        return counted(node, "rdma_copied_bytes_total", operation="GetObject") - before

    async def is_sent_as_it_lies() -> bool:
        return not await copied()

    assert await copied() == 3 * MIB
    # The first read from the disk checks every block.
    await until_it(is_sent_as_it_lies, "nothing is copied")


async def test_the_log_tells_what_moved(
    client: RawClient, node: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    put(node, "k", os.urandom(5000))
    await client.move("GET", "/train/k")
    await client.move("HEAD", "/train/k")
    text = ""

    def both_are_there() -> bool:
        nonlocal text
        text += capfd.readouterr().err
        return text.count('"key":"k"') == 2

    await until(both_are_there)
    lines = [json.loads(line) for line in text.splitlines()]
    moved, other = [line for line in lines if line.get("key") == "k"]
    assert (moved["rdma_bytes"], moved["bytes_out"]) == (5000, 0)
    assert "rdma_bytes" not in other


async def test_a_head_answers_as_any_head(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    reply = await client.move("HEAD", "/train/k")
    assert reply.status == 200
    assert reply.headers["content-length"] == "5"
    assert REPLY_HEADER not in reply.headers
    # And used no number up.
    assert (await client.move("GET", "/train/k", token=client.token(sequence=0))).status == 200


async def test_what_is_not_there_is_an_error_over_http(client: RawClient, node: Running) -> None:
    reply = await client.move("GET", "/train/none")
    assert (reply.status, reply.code) == (404, "NoSuchKey")
    assert reply.headers[REPLY_HEADER] == "404"
    put(node, "k", b"x")
    etag = (await client.move("GET", "/train/k")).headers["etag"]
    reply = await client.move("GET", "/train/k", {"if-none-match": etag})
    assert (reply.status, reply.headers[REPLY_HEADER]) == (304, "304")


async def test_memory_that_is_too_small_is_refused_untouched(
    client: RawClient, node: Running
) -> None:
    put(node, "k", os.urandom(5000))
    reply = await client.move("GET", "/train/k", token=client.token(4999))
    assert (reply.status, reply.code) == (400, "InvalidRDMAToken")
    assert b"<BytesNeeded>5000</BytesNeeded>" in reply.body
    assert reply.headers[REPLY_HEADER] == "400"
    assert not any(client.memory[:])
    assert (await client.move("GET", "/train/k", token=client.token(5000))).status == 200


@pytest.mark.parametrize("size", SIZES)
async def test_memory_is_stored(client: RawClient, node: Running, size: int) -> None:
    data = os.urandom(size)
    client.memory[:size] = data
    reply = await client.move("PUT", "/train/k", checksum(data), token=client.token(size))
    assert reply.status == 200, reply.body
    assert reply.headers[REPLY_HEADER] == "200"
    assert reply.headers[TRANSFERRED_HEADER] == str(size)
    assert (node.root / "train" / "k").read_bytes() == data
    assert reply.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'


async def test_parts_are_read_from_memory(client: RawClient, node: Running) -> None:
    began = await client.ask("POST", "/train/big?uploads")
    upload = began.body.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    data = os.urandom(5 * MIB + 3)
    wide = RawClient(node, client.device, size_bytes=6 * MIB)
    wide.session, wide._numbers = client.session, client._numbers
    etags = []
    for number, part in ((1, data), (2, data[:7])):
        wide.memory[: len(part)] = part
        target = f"/train/big?partNumber={number}&uploadId={upload}"
        reply = await wide.move("PUT", target, checksum(part), token=wide.token(len(part)))
        assert reply.status == 200, reply.body
        etags.append(reply.headers["etag"])
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        for number, etag in enumerate(etags, start=1)
    )
    document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    assert (await client.ask("POST", f"/train/big?uploadId={upload}", body=document)).status == 200
    assert (node.root / "train" / "big").read_bytes() == data + data[:7]
    wide.close()


async def test_what_does_not_match_its_checksum_is_not_stored(
    client: RawClient, node: Running
) -> None:
    client.memory[:9] = b"something"
    reply = await client.move("PUT", "/train/k", checksum(b"else"), token=client.token(9))
    assert (reply.status, reply.code) == (400, "BadDigest")
    assert not (node.root / "train" / "k").exists()


async def test_a_put_without_a_checksum_or_with_a_body_is_refused(
    client: RawClient, node: Running
) -> None:
    reply = await client.move("PUT", "/train/k", token=client.token(9))
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    data = bytes(9)
    reply = await client.move("PUT", "/train/k", checksum(data), data, token=client.token(9))
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert not (node.root / "train" / "k").exists()


async def test_a_batch_lies_back_to_back(client: RawClient, node: Running) -> None:
    objects = {f"k{n}": os.urandom(size) for n, size in enumerate((10, 0, 4096, 700_000))}
    for key, data in objects.items():
        put(node, key, data)
    asked = {
        "objects": [
            *({"key": key} for key in objects),
            {"key": "none"},
            {"key": "k2", "range": "bytes=5-9"},
        ]
    }
    reply = await client.move("POST", "/train?feedrack-batch", body=msgspec.json.encode(asked))
    assert reply.status == 200, reply.body
    table = msgspec.json.decode(reply.body, type=Table)
    whole = sum(map(len, objects.values()))
    assert (table.bytes, table.failed) == (whole + 5, 1)
    assert reply.headers[TRANSFERRED_HEADER] == str(whole + 5)
    *rows, missing, part = table.objects
    for row, data in zip(rows, objects.values(), strict=True):
        assert (row.status, row.length) == (200, len(data))
        assert client.memory[row.offset : row.offset + row.length] == data
    assert rows[1].offset == 10
    assert (missing.status, missing.code, missing.length) == (404, "NoSuchKey", 0)
    assert (part.status, part.range) == (206, "bytes 5-9/4096")
    assert client.memory[part.offset : part.offset + 5] == objects["k2"][5:10]


async def test_a_batch_stops_where_the_memory_ends(client: RawClient, node: Running) -> None:
    for key in ("a", "b", "c"):
        put(node, key, key.encode() * 1000)
    asked = {"objects": [{"key": key} for key in ("a", "b", "c")]}
    body = msgspec.json.encode(asked)
    reply = await client.move("POST", "/train?feedrack-batch", body=body, token=client.token(1999))
    table = msgspec.json.decode(reply.body, type=Table)
    assert [row.status for row in table.objects] == [200, 507, 507]
    assert [row.code for row in table.objects[1:]] == ["RDMAMemoryFull"] * 2
    assert client.memory[:1001] == b"a" * 1000 + b"\0"
    strict = msgspec.json.encode({**asked, "strict": True})
    reply = await client.move(
        "POST", "/train?feedrack-batch", body=strict, token=client.token(1999)
    )
    assert (reply.status, reply.code) == (400, "InvalidRDMAToken")


async def test_a_strict_batch_fails_with_its_first_object(client: RawClient, node: Running) -> None:
    put(node, "k", b"x")
    asked = {"objects": [{"key": "k"}, {"key": "none"}], "strict": True}
    reply = await client.move("POST", "/train?feedrack-batch", body=msgspec.json.encode(asked))
    assert (reply.status, reply.code) == (404, "NoSuchKey")


# Declined


async def test_a_session_nobody_knows_is_declined(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    token = client.token(session="0" * 32)
    reply = await client.move("GET", "/train/k", token=token)
    assert (reply.status, reply.body) == (200, b"12345")
    assert reply.headers[REPLY_HEADER] == "501"
    assert TRANSFERRED_HEADER not in reply.headers
    reply = await client.move("PUT", "/train/new", checksum(b"x"), token=token)
    assert (reply.status, reply.code) == (501, "NotImplemented")
    assert reply.headers[REPLY_HEADER] == "501"
    assert not (node.root / "train" / "new").exists()


async def test_a_token_of_another_transport_is_declined(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    token = "7f0000001000:100000:1f2e:0001:0000a1b2:1:fe80000000000000526b4bfffe4d1a2b"
    reply = await client.move("GET", "/train/k", token=token)
    assert (reply.status, reply.body) == (200, b"12345")
    assert reply.headers[REPLY_HEADER] == "501"


async def test_a_session_is_its_tenants_alone(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    (node.root / "other").mkdir()
    (node.root / "other" / "k").write_bytes(b"12345")
    thief = RawClient(node, fabric.device(), access_key=RESTRICTED)
    thief.session = client.session
    token = client.token()
    reply = await thief.move("GET", "/other/k", token=token)
    # As if there were none, and its number is not used up.
    assert (reply.status, reply.body, reply.headers[REPLY_HEADER]) == (200, b"12345", "501")
    assert not any(client.memory[:5])
    await thief.step("cancel", {"session": client.session})
    assert (await client.move("GET", "/other/k", token=token)).headers[REPLY_HEADER] == "200"
    thief.close()


async def test_a_key_of_anothers_memory_is_of_no_use(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    (node.root / "other").mkdir()
    (node.root / "other" / "k").write_bytes(b"12345")
    device = fabric.device()
    thief = RawClient(node, device, access_key=RESTRICTED)
    await thief.connect()
    token = thief.token(address=client.region.address, rkey=client.region.rkey)
    reply = await thief.move("GET", "/other/k", token=token)
    assert (reply.status, reply.code) == (500, "RDMATransferFailed")
    assert not any(client.memory[:])
    thief.close()
    device.close()


# Refused


async def test_a_token_is_good_once(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    token = client.token()
    assert (await client.move("GET", "/train/k", token=token)).status == 200
    client.memory[:5] = b"-----"
    reply = await client.move("GET", "/train/k", token=token)
    assert (reply.status, reply.code) == (400, "InvalidRDMAToken")
    # The first request may be at the memory still.
    assert REPLY_HEADER not in reply.headers
    assert client.memory[:5] == b"-----"


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "frdma1:" + "0" * 32,
        "frdma1:" + "0" * 32 + ":0:0:0:zz",
        "frdma1:" + "0" * 32 + ":0:ffffffffffffffff:2:0",
        "frdma1:" + "0" * 32 + ":0:0:1000000001:0",
        "1" * 129,
    ],
)
async def test_a_token_that_is_none_is_refused(
    client: RawClient, node: Running, token: str
) -> None:
    put(node, "k", b"12345")
    reply = await client.move("GET", "/train/k", token=token)
    assert (reply.status, reply.code) == (400, "InvalidRDMAToken")


async def test_a_token_must_be_signed(client: RawClient, node: Running) -> None:
    put(node, "k", b"12345")
    wire = await node.connect()
    plain = node.signed("GET", "/train/k")
    line = f"{TOKEN_HEADER}: {client.token()}\r\n\r\n".encode()
    await wire.send(plain.removesuffix(b"\r\n") + line)
    reply = await wire.reply()
    assert (reply.status, reply.code) == (403, "AccessDenied")
    assert b"<HeadersNotSigned>x-amz-rdma-token</HeadersNotSigned>" in reply.body


@pytest.mark.parametrize(
    ("step", "body"),
    [
        ("prepare", b""),
        ("prepare", b"{}"),
        ("prepare", b'{"address": 1}'),
        ("prepare", b'{"address": {"qpn": 1, "psn": 1, "gid": "no", "mtu": 4096,'
         b' "link": "ethernet"}}'),
        ("prepare", b'{"address": {"qpn": 16777216, "psn": 1, "gid": "::1", "mtu": 4096,'
         b' "link": "ethernet"}}'),
        ("ready", b'{"session": "x"}'),
        ("ready", b'{"session": "00000000000000000000000000000000"}'),
        ("cancel", b"[]"),
        ("other", b"{}"),
    ],
)  # fmt: skip
async def test_a_wrong_step_is_refused(client: RawClient, step: str, body: bytes) -> None:
    reply = await client.ask("POST", f"/?feedrack-rdma={step}", body=body)
    assert (reply.status, reply.code) == (400, "InvalidArgument")


async def test_nobody_unknown_is_connected(node: Running) -> None:
    wire = await node.connect()
    request = b"POST /?feedrack-rdma=prepare HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    await wire.send(request)
    reply = await wire.reply()
    assert (reply.status, reply.code) == (403, "AccessDenied")


# Failing


async def test_a_transfer_that_fails_ends_its_session(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    put(node, "k", os.urandom(2 * MIB))
    client.region.close()
    reply = await client.move("GET", "/train/k")
    assert (reply.status, reply.code) == (500, "RDMATransferFailed")
    assert REPLY_HEADER not in reply.headers
    assert counted(node, "rdma_sessions") == 0
    # Connected anew, it goes on.
    client.region = client.device.register(memoryview(client.memory), remote=True)
    reply = await client.move("GET", "/train/k")
    assert reply.headers[REPLY_HEADER] == "501"
    await client.connect()
    assert (await client.move("GET", "/train/k")).headers[REPLY_HEADER] == "200"
    assert node.node.parts.rdma.buffers_free == 4


async def test_a_client_that_takes_nothing_is_given_up(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    put(node, "k", os.urandom(2 * MIB))
    fabric.held = True
    reply = await client.move("GET", "/train/k")
    assert (reply.status, reply.code) == (500, "RDMATransferFailed")
    # Its queue pair was destroyed before the buffers came back: nothing can move any more.
    assert not any(pair.under_way for pair in fabric.pairs.values())
    assert node.node.parts.rdma.buffers_free == 4
    assert not any(client.memory[:])


async def test_a_put_whose_client_dies_stores_nothing(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    data = os.urandom(3 * MIB)
    client.memory[: len(data)] = data
    pair = client.pair
    assert pair is not None
    moved = []

    def die(work: object) -> None:
        moved.append(work)
        if len(moved) == 2:
            pair.close()

    fabric.on_move = die
    reply = await client.move("PUT", "/train/k", checksum(data), token=client.token(len(data)))
    assert (reply.status, reply.code) == (500, "RDMATransferFailed")
    assert not (node.root / "train" / "k").exists()
    assert list((node.root / "train").iterdir()) == []
    assert node.node.parts.rdma.buffers_free == 4


async def test_every_request_with_a_token_has_one_outcome(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    put(node, "k", b"12345")
    data = os.urandom(100)
    client.memory[:100] = data
    assert (await client.move("GET", "/train/k")).status == 200
    assert (await client.move("GET", "/train/gone")).status == 404
    small = await client.move("GET", "/train/k", token=client.token(4))
    assert small.code == "InvalidRDMAToken"
    wrong = checksum(b"other")
    assert (await client.move("PUT", "/train/p", wrong, token=client.token(100))).status == 400
    client.region.close()
    assert (await client.move("GET", "/train/k")).code == "RDMATransferFailed"
    assert (await client.move("GET", "/train/k")).headers[REPLY_HEADER] == "501"
    outcomes = {
        (operation, outcome): counted(
            node, "rdma_transfers_total", operation=operation, outcome=outcome
        )
        for operation in ("GetObject", "PutObject")
        for outcome in ("moved", "refused", "failed", "declined")
    }
    assert {key: count for key, count in outcomes.items() if count} == {
        ("GetObject", "moved"): 1,
        ("GetObject", "refused"): 2,
        ("GetObject", "failed"): 1,
        ("GetObject", "declined"): 1,
        ("PutObject", "refused"): 1,
    }


async def test_falling_back_is_counted_by_reason(client: RawClient, node: Running) -> None:
    put(node, "k", b"x")
    for reason in ("no-device", "no-device", "made up"):
        await client.ask("GET", "/train/k", {FALLBACK_HEADER: reason})
    assert counted(node, "rdma_fallbacks_total", reason="no-device") == 2
    assert counted(node, "rdma_fallbacks_total", reason="other") == 1


async def test_where_there_is_no_way_the_bytes_go_over_http(
    client: RawClient, node: Running, fabric: Fabric
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def nobody(_: object) -> None:
        asked.set()
        await answered.wait()
        raise VerbFailed("nobody is there")

    fabric.on_reach = nobody
    other = RawClient(node, client.device)
    other.pair = client.device.pair(depth=1, remote=True)
    preparing = asyncio.create_task(other.step("prepare", {"address": other.pair.address}))
    async with asyncio.timeout(60):
        await asked.wait()
    # All else goes on meanwhile.
    put(node, "k", b"x")
    assert (await client.move("GET", "/train/k")).headers[REPLY_HEADER] == "200"
    assert not preparing.done()
    answered.set()
    reply = await preparing
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert reply.headers[REPLY_HEADER] == "501"
    reply = await other.step("prepare", {"address": other.pair.address})
    assert (reply.status, reply.code) == (503, "SlowDown")
    other.close()


async def test_a_gateway_without_a_device_declines(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        (node.root / "train").mkdir()
        put(node, "k", b"12345")
        client = RawClient(node, SoftDevice(Fabric()))
        pair = client.device.pair(depth=1, remote=True)
        reply = await client.step("prepare", {"address": pair.address})
        assert (reply.status, reply.code) == (501, "NotImplemented")
        reply = await client.move("GET", "/train/k", token=client.token(session="a" * 32))
        assert (reply.body, reply.headers[REPLY_HEADER]) == (b"12345", "501")
        client.close()
