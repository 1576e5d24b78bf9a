"""Past packs: who may, what is seen there, and that a write there is a write everywhere."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.origins import MotoServer, moto_server
from tests.s3 import running as running_module
from tests.s3.past import BYPASS, ask, node_over, past_packs
from tests.s3.running import RESTRICTED, Running, call
from tests.s3.test_endpoint import refused
from tests.s3.test_objects import get, put
from tests.s3.tunnelled import TunnelledNode

SHARD = ".feedrack/packs/0/shards/x.lmdb"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(params=["directory", "moto", "directory, tunnelled"])
async def node(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    moto: MotoServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Running]:
    kind, _, tunnelled = request.param.partition(", ")
    if tunnelled:
        monkeypatch.setattr(running_module, "Node", TunnelledNode)
    buckets = {"fixed": {"origin_bucket": "train", "immutable": True}}
    async with node_over(kind, tmp_path, moto, buckets=buckets) as started:
        yield started


@pytest.fixture
def past(node: Running) -> Iterator[Any]:
    client = past_packs(node.client())
    yield client
    client.close()


# Who may


async def test_every_answer_past_packs_says_so_and_no_other_does(node: Running) -> None:
    for method, target, body, status in (
        ("PUT", "/train/a", b"a", 200),
        ("GET", "/train/a", b"", 200),
        ("HEAD", "/train/a", b"", 200),
        ("GET", "/train/none", b"", 404),
        ("HEAD", "/train/none", b"", 404),
        ("GET", "/train?list-type=2", b"", 200),
        ("GET", f"/train/{SHARD}", b"", 404),
        ("POST", "/train/a?select&select-type=2", b"", 501),
        ("DELETE", "/train/a", b"", 204),
    ):
        answer = await ask(node, method, target, BYPASS, body)
        assert (answer.status, answer.headers.get("x-feedrack-packs")) == (status, "bypass")
        plain = await ask(node, method, target, {}, body)
        assert "x-feedrack-packs" not in plain.headers


async def test_an_unsigned_wish_is_denied(node: Running) -> None:
    await ask(node, "PUT", "/train/a", {}, b"a")
    for request in (
        node.signed("GET", "/train/a").replace(
            b"\r\nHost:", b"\r\nX-Feedrack-Packs: bypass\r\nHost:"
        ),
        b"GET /train/a HTTP/1.1\r\nHost: x\r\nx-feedrack-packs: bypass\r\n\r\n",
    ):
        wire = await node.connect()
        await wire.send(request)
        reply = await wire.reply()
        assert (reply.status, reply.code) == (403, "AccessDenied")
        assert b"x-feedrack-packs" in reply.body
        assert "x-feedrack-packs" not in reply.headers


@pytest.mark.parametrize("value", ["through", "Bypass", "bypass,bypass", ""])
async def test_any_other_wish_is_an_invalid_argument(node: Running, value: str) -> None:
    reply = await ask(node, "GET", "/train/a", {"x-feedrack-packs": value})
    assert (reply.status, reply.code) == (400, "InvalidArgument")


async def test_a_presigned_url_counts_where_it_signs_the_header(node: Running, past: Any) -> None:
    await put(past, SHARD, b"shard")
    url = past.generate_presigned_url("get_object", Params={"Bucket": "train", "Key": SHARD})
    target = url.partition(f":{node.port}")[2]

    async def fetch(target: str, *lines: str) -> tuple[int, str]:
        wire = await node.connect()
        head = "\r\n".join([f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{node.port}", *lines])
        await wire.send(f"{head}\r\n\r\n".encode())
        reply = await wire.reply()
        return reply.status, reply.headers.get("x-feedrack-packs", reply.code)

    assert "x-feedrack-packs" in target
    for _ in range(2):
        assert await fetch(target, "x-feedrack-packs: bypass") == (200, "bypass")
    assert await fetch(target) == (403, "SignatureDoesNotMatch")
    client = node.client()
    plain = client.generate_presigned_url("get_object", Params={"Bucket": "train", "Key": "a"})
    client.close()
    target = plain.partition(f":{node.port}")[2]
    assert await fetch(target, "x-feedrack-packs: bypass") == (403, "AccessDenied")


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ([{"allow": ["*"], "buckets": ["train"]}], {"read", "write", "delete", "list"}),
        ([{"allow": ["*"], "buckets": ["train/p/*"]}], set()),
        (
            [{"allow": ["*"], "buckets": ["train/p/*", "train/.feedrack/packs/*"]}],
            {"read", "write", "delete", "list"},
        ),
        (
            [
                {"allow": ["*"], "buckets": ["train/p/*"]},
                {"allow": ["Get*", "List*"], "buckets": ["train/.feedrack/packs/*"]},
            ],
            {"read", "list"},
        ),
        (
            [
                {"allow": ["*"], "buckets": ["train"]},
                {"deny": ["*"], "buckets": ["train/.feedrack/*"]},
            ],
            set(),
        ),
    ],
)
async def test_it_takes_the_right_to_do_the_same_to_the_packs(
    tmp_path: Path, moto: MotoServer, rules: list[Any], may: set[str]
) -> None:
    buckets = {"train": {"public_read": True}}
    async with node_over("directory", tmp_path, moto, policy=rules, buckets=buckets) as node:
        assert (await ask(node, "PUT", "/train/p/a", {}, b"a")).status == 200
        client = past_packs(node.client(RESTRICTED))
        named = {"Bucket": "train", "Key": "p/a"}
        deletes = {"Objects": [{"Key": "p/a"}]}
        tried: dict[str, list[tuple[Any, dict[str, Any]]]] = {
            "read": [(client.get_object, named), (client.head_object, named)],
            "write": [
                (client.put_object, {**named, "Body": b"b"}),
                (client.create_multipart_upload, named),
            ],
            "list": [(client.list_objects_v2, {"Bucket": "train", "Prefix": "p/"})],
            "delete": [
                (client.delete_object, named),
                (client.delete_objects, {"Bucket": "train", "Delete": deletes}),
            ],
        }
        for what, calls in tried.items():
            for method, arguments in calls:
                if what in may:
                    answer = await call(method, **arguments)
                    assert not answer.get("Errors")
                else:
                    with pytest.raises(client.exceptions.ClientError, match=r"AccessDenied|403"):
                        await call(method, **arguments)
        client.close()


async def test_a_copy_past_packs_takes_the_right_to_the_packs_of_its_source(
    tmp_path: Path, moto: MotoServer
) -> None:
    rules = [
        {"allow": ["*"], "buckets": ["train"]},
        {"allow": ["GetObject"], "buckets": ["other/p/*"]},
    ]
    async with node_over("directory", tmp_path, moto, policy=rules) as node:
        assert (await ask(node, "PUT", "/other")).status == 200
        assert (await ask(node, "PUT", "/other/p/a", {}, b"a")).status == 200
        source = {"Bucket": "other", "Key": "p/a"}
        plain = node.client(RESTRICTED)
        await call(plain.copy_object, Bucket="train", Key="b", CopySource=source)
        with refused("AccessDenied", 403):
            await call(past_packs(plain).copy_object, Bucket="train", Key="b", CopySource=source)
        plain.close()


# What is seen there


async def test_packs_are_objects_there_and_nothing_elsewhere(
    node: Running, s3: Any, past: Any
) -> None:
    await put(past, SHARD, b"shard", Metadata={"a": "b"})
    answer, body = await get(past, SHARD)
    assert (body, answer["Metadata"]) == (b"shard", {"a": "b"})
    assert (await get(past, SHARD, Range="bytes=1-2"))[1] == b"ha"
    listed = await call(past.list_objects_v2, Bucket="train")
    assert [entry["Key"] for entry in listed["Contents"]] == [SHARD]
    with refused("NoSuchKey", 404):
        await get(s3, SHARD)
    copied = {"Bucket": "train", "Key": "b", "CopySource": {"Bucket": "train", "Key": SHARD}}
    await call(past.copy_object, **copied)
    assert (await get(s3, "b"))[1] == b"shard"


async def test_an_upload_in_parts_goes_past_packs_too(node: Running, past: Any, s3: Any) -> None:
    named = {"Bucket": "train", "Key": SHARD}
    upload = await call(past.create_multipart_upload, **named)
    part = {**named, "UploadId": upload["UploadId"], "PartNumber": 1}
    first = await call(past.upload_part, **part, Body=b"x" * 5 * 1024**2)
    listed = await call(past.list_multipart_uploads, Bucket="train", Prefix=".feedrack/")
    assert [entry["Key"] for entry in listed["Uploads"]] == [SHARD]
    assert "Uploads" not in await call(s3.list_multipart_uploads, Bucket="train")
    parts = {"Parts": [{"PartNumber": 1, "ETag": first["ETag"]}]}
    await call(
        past.complete_multipart_upload,
        **named,
        UploadId=upload["UploadId"],
        MultipartUpload=parts,
    )
    assert len((await get(past, SHARD))[1]) == 5 * 1024**2
    assert not node.node.parts.past_packs._staged


# A write there is a write everywhere; a read there teaches nothing


@pytest.mark.parametrize("bucket", ["train", "fixed"])
async def test_what_is_written_past_packs_is_seen_at_once(
    node: Running, s3: Any, past: Any, bucket: str
) -> None:
    named = {"Bucket": bucket, "Key": "a"}

    async def seen() -> Any:
        return await call((await call(s3.get_object, **named))["Body"].read)

    await call(s3.put_object, **named, Body=b"one")
    for _ in range(3):
        assert await seen() == b"one"
    await call(past.put_object, **named, Body=b"two")
    for _ in range(3):
        assert await seen() == b"two"
    await call(s3.put_object, Bucket=bucket, Key="b", Body=b"three")
    await call(past.copy_object, **named, CopySource={"Bucket": bucket, "Key": "b"})
    for _ in range(3):
        assert await seen() == b"three"
    await call(past.put_object_tagging, **named, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
    assert (await call(s3.get_object, **named))["TagCount"] == 1
    upload = (await call(past.create_multipart_upload, **named))["UploadId"]
    etag = (await call(past.upload_part, **named, UploadId=upload, PartNumber=1, Body=b"four"))[
        "ETag"
    ]
    await call(
        past.complete_multipart_upload,
        **named,
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]},
    )
    for _ in range(3):
        assert await seen() == b"four"
    await call(past.delete_object, **named)
    with refused("NoSuchKey", 404):
        await seen()
    await call(s3.put_object, **named, Body=b"five")
    assert await seen() == b"five"
    await call(past.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": "a"}]})
    with refused("NoSuchKey", 404):
        await seen()


async def test_a_read_past_packs_is_the_origins_own_and_leaves_nothing(
    node: Running, s3: Any, past: Any
) -> None:
    parts = node.node.parts
    body = bytes(range(256)) * 12_000
    for key, data in (("small", b"small"), ("large", body), (SHARD, b"shard")):
        await put(past, key, data)
    for _ in range(2):
        for key, data in (("small", b"small"), ("large", body), (SHARD, b"shard")):
            answer, read = await get(past, key)
            assert read == data
            assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "origin"
            await call(past.head_object, Bucket="train", Key=key)
    await parts.service.settle()
    await parts.past_packs.settle()
    assert not len(parts.service._versions)
    assert await parts.disk.held_bytes("main", "train", "") == 0
    assert await parts.disk.held_bytes("main!past-packs", "train", "") == 0
    assert parts.service.fills() == []


async def test_packing_does_not_sweep_the_cache(node: Running, s3: Any, past: Any) -> None:
    await put(s3, "warm", b"w" * 5000)
    assert (await get(s3, "warm"))[1] == b"w" * 5000
    for number in range(4):
        await put(past, f"{SHARD}{number}", b"s" * 12 * 1024**2)
    answer, _ = await get(s3, "warm")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "disk"
    assert await node.node.parts.disk.held_bytes("main", "train", "") == 5000
    # And what is warm is not what the origin is asked for past packs.
    answer, body = await get(past, "warm")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "origin"
    assert body == b"w" * 5000
