"""Many objects in one request, over HTTP: every object in its place, or what speaks against it."""

import asyncio
import io
import os
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.s3.batch_request import DOCUMENT_BYTES
from tests.s3.batch_reading import (
    Answered,
    ask,
    document,
    frames_of,
    parse_frames,
    read_answer,
)
from tests.s3.running import RESTRICTED, Running, call, running
from tests.s3.stocked import OBJECTS, Stocked, stocked
from tests.waiting import until

MIB = 1024**2
CHANCE = random.Random(3)


@pytest.fixture
async def stock(tmp_path: Path) -> AsyncIterator[Stocked]:
    async with stocked(tmp_path) as made:
        yield made


def cold(node: Running, bodies: dict[str, bytes], bucket: str = "train") -> None:
    """Puts objects where the node has not looked yet."""
    for key, body in bodies.items():
        path = node.root / bucket / key
        path.write_bytes(body)
        os.utime(path, (1_000_000_000, 1_000_000_000))


def members(answer: Answered) -> list[tuple[str, bytes, dict[str, str]]]:
    """Name, content and pax records of every member, as a stream reads them."""
    assert (answer.status, answer.whole) == (200, True), answer.body
    assert answer.headers["content-type"] == "application/x-tar"
    found = []
    with tarfile.open(fileobj=io.BytesIO(answer.body), mode="r|*") as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found.append((member.name, content.read(), dict(member.pax_headers)))
    return found


# What is answered


async def test_objects_come_back_as_they_are_in_the_order_asked(stock: Stocked) -> None:
    cold(stock.running, {"cold": b"C" * 2 * MIB}, "open")
    names = [CHANCE.choice([*OBJECTS, "cold"]) for _ in range(60)]
    bodies = {**OBJECTS, "cold": b"C" * 2 * MIB}
    answer = await ask(stock.running, document(names, format="frames"), bucket="open")
    frames, told = parse_frames(answer.body)
    assert told == {"objects": 60, "failed": 0}
    assert [frame.body for frame in frames] == [bodies[name] for name in names]
    found = members(await ask(stock.running, document(names), bucket="open"))
    assert [(name, body) for name, body, _ in found] == [(name, bodies[name]) for name in names]


async def test_what_a_frame_tells_is_what_a_head_tells(node: Running, s3: Any) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"0123456789", ContentType="text/x")
    await call(s3.put_object, Bucket="train", Key="b", Body=b"")
    head = await call(s3.head_object, Bucket="train", Key="a")
    frames, _ = await frames_of(node, ["a", {"key": "a", "range": "bytes=2-4"}, "b"])
    for frame in frames[:2]:
        assert f'"{frame.told["etag"]}"' == head["ETag"]
        assert frame.told["modified_ms"] // 1000 == head["LastModified"].timestamp()
        assert frame.told["content_type"] == "text/x"
    assert "range" not in frames[0].told
    assert (frames[1].status, frames[1].body) == (206, b"234")
    assert frames[1].told["range"] == "bytes 2-4/10"
    assert frames[2].told["content_type"] == "binary/octet-stream"


async def test_what_cannot_be_had_is_marked_and_the_rest_still_comes(
    node: Running, s3: Any
) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"0123456789")
    asked = ["a", "missing", {"key": "a", "range": "bytes=10-"}, "dir/", "a"]
    frames, _ = await frames_of(node, asked)
    assert [(frame.status, frame.told.get("code")) for frame in frames] == [
        (200, None),
        (404, "NoSuchKey"),
        (416, "InvalidRange"),
        (404, "NoSuchKey"),
        (200, None),
    ]
    assert frames[1].told["message"] == "The specified key does not exist."
    found = members(await ask(node, document(asked)))
    assert [(name, body) for name, body, _ in found] == [
        ("a", b"0123456789"),
        ("missing", b""),
        ("a", b""),
        ("dir/", b""),
        ("a", b"0123456789"),
    ]
    assert found[1][2] == {"FEEDRACK.status": "404", "FEEDRACK.code": "NoSuchKey"}
    assert found[2][2] == {"FEEDRACK.status": "416", "FEEDRACK.code": "InvalidRange"}


async def test_odd_keys_come_through_both_formats(node: Running, s3: Any) -> None:
    keys = ["a" * 100, "b" * 101, "ä" * 400, "x/\u0001", "😀", "a b+c%2F", "../up", "/abs", "//x//"]
    for key in keys:
        await call(s3.put_object, Bucket="train", Key=key, Body=key.encode())
    frames, _ = await frames_of(node, keys)
    assert [frame.body.decode() for frame in frames] == keys
    found = members(await ask(node, document(keys)))
    assert [body.decode() for _, body, _ in found] == keys
    assert [name for name, _, _ in found] == keys


async def test_ten_thousand_objects_are_one_answer(node: Running, s3: Any) -> None:
    bodies = {f"k{number}": b"%d" % number for number in range(50)}
    cold(node, bodies)
    keys = [f"k{CHANCE.randrange(60)}" for _ in range(10_000)]
    frames, _ = await frames_of(node, keys)
    assert [frame.body for frame in frames] == [bodies.get(key, b"") for key in keys]


async def test_strict_breaks_off_where_an_object_cannot_be_had(stock: Stocked) -> None:
    for form in ("frames", "tar"):
        asked = document(["large", "missing", "small"], format=form, strict=True)
        answer = await ask(stock.running, asked, bucket="open")
        assert (answer.status, answer.whole) == (200, False)
        if form == "frames":
            assert parse_frames(answer.body)[1] is None
        else:
            assert not answer.body.endswith(bytes(1024))
        assert b"small" not in answer.body
    await until(lambda: stock.lines.kept)
    assert {line["broken"] for line in stock.lines.kept} == {
        "NoSuchKey: The specified key does not exist."
    }
    whole = await ask(stock.running, document(["large", "small"], strict=True), bucket="open")
    assert [body for _, body, _ in members(whole)] == [OBJECTS["large"], OBJECTS["small"]]


async def test_strict_answers_as_the_object_does_while_nothing_is_sent_yet(node: Running) -> None:
    answer = await ask(node, document(["a/ä"], strict=True))
    assert (answer.status, answer.code) == (404, "NoSuchKey")
    assert "<Key>a/ä</Key>" in answer.body.decode()


async def test_an_answer_tells_where_its_first_byte_came_from(node: Running, s3: Any) -> None:
    await call(s3.put_object, Bucket="train", Key="empty", Body=b"")
    await call(s3.put_object, Bucket="train", Key="warm", Body=b"w")
    cold(node, {"cold": b"c", "large": bytes(3 * MIB)})
    for keys, tier in (
        (["missing", "empty", "cold", "warm"], "origin"),
        (["large"], "origin"),
        (["empty", "warm", "missing"], "disk"),
        (["empty", "missing"], None),
    ):
        answer = await ask(node, document(keys))
        assert answer.headers.get("x-feedrack-tier") == tier, keys
        assert answer.headers["x-feedrack-node"] == "n1"


async def test_a_batch_is_counted_and_logged_as_one_request(stock: Stocked) -> None:
    cold(stock.running, {"cold": b"c" * 1000}, "open")
    counted = stock.node.metrics.read_bytes
    before = {tier: counted.labels(tier)._value.get() for tier in ("disk", "origin")}
    body = document(["small", "cold", "large", "missing"], format="frames")
    answer = await ask(stock.running, body, bucket="open")
    await until(lambda: stock.lines.kept)
    [line] = stock.lines.kept
    assert (line["operation"], line["bucket"], line["key"]) == ("GetObjects", "open", "")
    assert (line["status"], line["tier"], line["tenant"]) == (200, "disk", "demo")
    assert (line["bytes_in"], line["bytes_out"]) == (len(body), len(answer.body))
    sent = {tier: counted.labels(tier)._value.get() - count for tier, count in before.items()}
    assert sent == {"disk": len(OBJECTS["small"]) + len(OBJECTS["large"]), "origin": 1000}


async def test_what_was_written_is_what_is_read(node: Running, s3: Any) -> None:
    for number in range(20):
        body = b"%d" % number * CHANCE.choice([1, 50_000])
        await call(s3.put_object, Bucket="train", Key="k", Body=body)
        frames, _ = await frames_of(node, ["k", "k"])
        assert [frame.body for frame in frames] == [body, body]
    await call(s3.delete_object, Bucket="train", Key="k")
    frames, _ = await frames_of(node, ["k"])
    assert frames[0].status == 404


async def test_one_connection_serves_batches_and_other_requests_by_turns(stock: Stocked) -> None:
    wire = await stock.connect()
    batch = document(["small", "block"], format="frames")
    for _ in range(3):
        await wire.send(stock.running.signed("POST", "/open?feedrack-batch", {}, batch))
        frames, _ = parse_frames((await read_answer(wire)).body)
        assert [frame.body for frame in frames] == [OBJECTS["small"], OBJECTS["block"]]
        await wire.send(stock.get("small").data)
        assert (await wire.reply()).body == OBJECTS["small"]


async def test_http_1_0_knows_the_end_by_the_answer_itself(stock: Stocked) -> None:
    wire = await stock.connect()
    body = document(["small", "missing"], format="frames")
    request = stock.running.signed("POST", "/open?feedrack-batch", {}, body)
    await wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    head, _, data = (await wire.reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    frames, told = parse_frames(data)
    assert told == {"objects": 2, "failed": 1}
    assert frames[0].body == OBJECTS["small"]


# Who may


async def test_what_may_not_be_read_is_marked_and_not_even_looked_for(tmp_path: Path) -> None:
    policy = [{"allow": ["GetObject"], "buckets": ["train/mine/*"]}]
    async with running(tmp_path, policy=policy) as node:
        (node.root / "train").mkdir()
        s3 = node.client()
        for key in ("mine/a", "theirs/a"):
            await call(s3.put_object, Bucket="train", Key=key, Body=key.encode())
        s3.close()
        asked = document(["mine/a", "theirs/a", "theirs/b", "mine/b"], format="frames")
        wire = await node.connect()
        await wire.send(
            node.signed("POST", "/train?feedrack-batch", {}, asked, access_key=RESTRICTED)
        )
        frames, _ = parse_frames((await read_answer(wire)).body)
        assert [(frame.status, frame.told.get("code")) for frame in frames] == [
            (200, None),
            (403, "AccessDenied"),
            (403, "AccessDenied"),
            (404, "NoSuchKey"),
        ]
        assert frames[1].told["message"] == frames[2].told["message"]


async def test_anybody_may_read_batches_of_public_buckets_alone(stock: Stocked) -> None:
    body = document(["small", "missing"], format="frames")

    async def anonymous(bucket: str) -> Answered:
        wire = await stock.connect()
        head = f"POST /{bucket}?feedrack-batch HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        await wire.send(f"{head}\r\n\r\n".encode() + body)
        return await read_answer(wire)

    frames, told = parse_frames((await anonymous("open")).body)
    assert told is not None
    assert [frame.status for frame in frames] == [200, 404]
    assert frames[0].body == OBJECTS["small"]
    for bucket in ("train", "nowhere"):
        answer = await anonymous(bucket)
        assert (answer.status, answer.code) == (403, "AccessDenied")


async def test_a_wrong_signature_gets_nothing(stock: Stocked) -> None:
    answer = await ask(stock.running, document(["small"]), bucket="open", secret="wrong")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


# What is refused


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "InvalidRequest"),
        (b"not JSON", 400, "InvalidRequest"),
        (b"[]", 400, "InvalidArgument"),
        (document([]), 400, "InvalidArgument"),
        (document(["a"] * 10_001), 400, "InvalidArgument"),
        (document(["a"], format="zip"), 400, "InvalidArgument"),
        (document(["a"], **{"x\x01<&": 1}), 400, "InvalidArgument"),
        (document(["k" * 1025]), 400, "KeyTooLongError"),
        (document([{"key": "a", "range": "bytes=2-1"}]), 400, "InvalidArgument"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else value,
)
async def test_what_is_no_batch_is_refused(
    node: Running, body: bytes, status: int, code: str
) -> None:
    answer = await ask(node, body)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["content-type"] == "application/xml"


async def test_a_body_that_is_too_long_is_refused_before_it_is_read(node: Running) -> None:
    wire = await node.connect()
    await wire.send(
        node.signed("POST", "/train?feedrack-batch", {}, b"", length=DOCUMENT_BYTES + 1)
    )
    answer = await read_answer(wire)
    assert (answer.status, answer.code) == (400, "MaxMessageLengthExceeded")


async def test_more_batches_than_there_is_room_for_are_told_to_come_again(
    node: Running, s3: Any
) -> None:
    await call(s3.put_object, Bucket="train", Key="k", Body=b"k")
    service = node.node.service
    body = document(["k"], format="frames")
    ends = [service.begin_batch(10) for _ in range(1024)]
    answer = await ask(node, body)
    assert (answer.status, answer.code) == (503, "SlowDown")
    ends.pop()()
    ends.append(service.begin_batch(256 * MIB - 1023 * 10 - 5))
    ends.pop(0)()
    answer = await ask(node, body)
    assert (answer.status, answer.code) == (503, "SlowDown")
    for end in ends:
        end()
    for refused in (b"not JSON", document(["missing"], strict=True), body):
        await ask(node, refused)
    assert parse_frames((await ask(node, body)).body)[1] == {"objects": 1, "failed": 0}
    await until(lambda: (service._batches.fills, service._batches.in_flight_bytes) == (0, 0))


async def test_a_body_that_is_not_what_was_signed_is_refused(node: Running) -> None:
    wire = await node.connect()
    request = node.signed("POST", "/train?feedrack-batch", {}, document(["mine"]))
    await wire.send(request.replace(b'"mine"', b'"miNE"'))
    answer = await read_answer(wire)
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


async def test_a_bucket_that_is_not_there_is_said_once(node: Running) -> None:
    for form in ("frames", "tar"):
        answer = await ask(node, document(["a", "b"], format=form), bucket="nowhere")
        assert (answer.status, answer.code) == (404, "NoSuchBucket")


async def test_only_a_post_to_a_bucket_is_a_batch(node: Running) -> None:
    for method, target, code in (
        ("POST", "/train/key?feedrack-batch", "MethodNotAllowed"),
        ("PUT", "/train?feedrack-batch", "NotImplemented"),
        ("DELETE", "/train?feedrack-batch", "NotImplemented"),
    ):
        wire = await node.connect()
        await wire.send(node.signed(method, target, {}, document(["a"])))
        assert (await read_answer(wire)).code == code


async def test_a_customers_key_is_not_for_batches(node: Running) -> None:
    wire = await node.connect()
    key = {"x-amz-server-side-encryption-customer-algorithm": "AES256"}
    await wire.send(node.signed("POST", "/train?feedrack-batch", key, document(["a"])))
    assert (await read_answer(wire)).code == "NotImplemented"


# What goes wrong on the way


async def test_a_client_that_stops_reading_stops_the_work(node: Running) -> None:
    bodies = {f"k{number:03}": CHANCE.randbytes(512 * 1024) for number in range(100)}
    cold(node, bodies)
    wire = await node.connect(receive_bytes=65_536)
    body = document([*bodies], format="frames")
    await wire.send(node.signed("POST", "/train?feedrack-batch", {}, body))
    await wire.reader.readuntil(b"\r\n\r\n")
    read_bytes = node.node.metrics.origin_read_bytes._value
    before = -1.0
    while before != read_bytes.get():
        before = read_bytes.get()
        await asyncio.sleep(0.3)
    # What fits the connection's buffers, and one window more.
    assert before <= 40 * MIB
    await wire.close()
    metrics = node.node.metrics
    await until(lambda: metrics.requests_in_flight._value.get() == 0)
    await until(lambda: not node.node.service.fills())
    left = ("_bring", "RequestHandler")
    await until(lambda: not [t for t in asyncio.all_tasks() if any(n in repr(t) for n in left)])
    assert node.node.service._ahead.in_flight_bytes == 0
    assert node.node.service._batches.in_flight_bytes == 0
    assert read_bytes.get() <= before + 32 * MIB


async def test_a_slow_client_gets_everything(node: Running) -> None:
    bodies = {f"k{number:03}": CHANCE.randbytes(100_000) for number in range(60)}
    cold(node, bodies)
    wire = await node.connect(receive_bytes=16_384)
    body = document([*bodies], format="frames")
    await wire.send(node.signed("POST", "/train?feedrack-batch", {}, body))
    frames, told = parse_frames((await read_answer(wire)).body)
    assert told is not None
    assert [frame.body for frame in frames] == [*bodies.values()]


async def test_others_are_answered_while_a_batch_is_sent(stock: Stocked) -> None:
    batch = await stock.connect()
    body = document(["small"] * 10_000, format="frames")
    await batch.send(stock.running.signed("POST", "/open?feedrack-batch", {}, body))
    reading = asyncio.create_task(read_answer(batch))
    other = await stock.connect()
    answers = 0
    while not reading.done():
        await other.send(stock.get("small").data)
        assert (await other.reply()).body == OBJECTS["small"]
        answers += 1
    assert parse_frames((await reading).body)[1] == {"objects": 10_000, "failed": 0}
    assert answers >= 10


@pytest.mark.parametrize("form", ["frames", "tar"])
async def test_a_large_object_that_breaks_off_breaks_the_answer(
    node: Running, s3: Any, form: str
) -> None:
    body = CHANCE.randbytes(16 * MIB)
    await call(s3.put_object, Bucket="train", Key="a", Body=b"A")
    await call(s3.put_object, Bucket="train", Key="large", Body=body)
    wire = await node.connect(receive_bytes=65_536)
    asked = document(["a", "large", "a"], format=form)
    await wire.send(node.signed("POST", "/train?feedrack-batch", {}, asked))
    received = await wire.reader.readuntil(body[:32])
    # It is being sent; of what is not on its way yet nothing is left anywhere.
    (node.root / "train" / "large").unlink()
    for path in (node.root.parent / "cache" / "chunks").rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    with suppress(ConnectionError):
        while block := await wire.reader.read(65_536):
            received += block
    assert body[:100_000] in received
    assert len(received) < len(body)
    assert not received.endswith(b"\r\n0\r\n\r\n")
