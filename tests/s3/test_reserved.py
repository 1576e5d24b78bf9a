"""The keys under `.feedrack/` are not there for anybody who does not ask past packs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from gateway.model.reserved import refusal
from gateway.s3 import endpoint, relay, route
from tests.origins import MotoServer, moto_server
from tests.s3.past import BYPASS, ask, node_over, past_packs
from tests.s3.running import Running, call
from tests.s3.test_endpoint import refused
from tests.s3.test_objects import get, put

KEY = ".feedrack/packs/0/shards/x.lmdb"
SECRET = b"what only bypassing shows"
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(params=["directory", "moto"])
async def node(
    request: pytest.FixtureRequest, tmp_path: Path, moto: MotoServer
) -> AsyncIterator[Running]:
    buckets = {"train": {"public_read": True}}
    async with node_over(request.param, tmp_path, moto, buckets=buckets) as started:
        written = await ask(started, "PUT", f"/train/{KEY}", BYPASS, SECRET)
        assert written.status == 200
        yield started


def targets() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Requests on the key by which the route table comes to every operation it has, and those that
    botocore knows."""
    queries = [
        "",
        "uploads",
        "uploadId=u",
        "uploadId=u&partNumber=1",
        "partNumber=1",
        "versionId=v",
        "select&select-type=2",
        "restore",
        "novelty",
        *(noun for noun in route._OBJECT_NOUNS),
        *(f"{noun}&{name}=1" for noun, name in route._NUMEROUS.items()),
    ]
    for method in METHODS:
        for query in queries:
            yield method, f"?{query}" if query else "", {}
            if method == "PUT":
                yield method, f"?{query}" if query else "", {"x-amz-copy-source": "/train/a"}
    service = botocore.session.get_session().get_service_model("s3")
    for name in service.operation_names:
        http = service.operation_model(name).http
        if "{Key+}" in http["requestUri"]:
            yield http["method"], http["requestUri"].partition("{Key+}")[2], {}


async def test_no_operation_finds_or_changes_what_is_reserved(node: Running) -> None:
    assert (await ask(node, "PUT", "/train/a", {}, b"a")).status == 200
    for method, query, headers in targets():
        reply = await ask(node, method, f"/train/{KEY}{query}", headers, b"x" * (method != "GET"))
        what = (method, query, headers, reply.status, reply.body)
        assert SECRET not in reply.body, what
        if method in ("GET", "HEAD"):
            assert reply.status == 404 or reply.code == "InvalidArgument", what
        else:
            assert reply.status in (403, 404, 405) or reply.code == "InvalidArgument", what
    found = await ask(node, "GET", f"/train/{KEY}", BYPASS)
    assert (found.status, found.body) == (200, SECRET)
    listed = await ask(node, "GET", "/train?list-type=2", BYPASS)
    assert listed.body.count(b"<Key>") == 2


def test_every_operation_of_this_gateway_is_refused_on_a_reserved_key() -> None:
    handled = {*endpoint._HANDLERS, *relay.ALWAYS, *relay._WITH_CUSTOMER_KEY, "Unknown"}
    open_to_all = {name for name in handled if refusal(name, KEY) is None}
    assert open_to_all == {
        "ListMultipartUploads",
        "ListObjectVersions",
        "ListObjects",
        "ListObjectsV2",
    }
    looks = {name for name in handled if getattr(refusal(name, KEY), "status", 0) == 404}
    assert not any(name.startswith(("Put", "Delete", "Create", "Copy", "Upload")) for name in looks)
    assert not any(refusal(name, ".feedrack") or refusal(name, "a/.feedrack/") for name in handled)


async def test_a_reserved_key_answers_as_one_that_is_missing(node: Running) -> None:
    missing = ".nobody/packs/0/shards/x.lmdb"
    for method, query in (
        ("GET", ""),
        ("HEAD", ""),
        ("GET", "?tagging"),
        ("GET", "?acl"),
        ("GET", "?uploadId=none"),
    ):
        there, nowhere = [await ask(node, method, f"/train/{key}{query}") for key in (KEY, missing)]
        assert there.status == nowhere.status == 404
        assert there.code == nowhere.code
        if "uploadId" in query:
            # Each origin has its own words for an upload that is not there.
            continue
        own = there.headers["x-amz-request-id"].encode()
        other = nowhere.headers["x-amz-request-id"].encode()
        body = there.body.replace(own, other).replace(KEY.encode(), missing.encode())
        assert body == nowhere.body
        assert there.headers.keys() == nowhere.headers.keys()


async def test_a_public_bucket_shows_strangers_none_of_it(node: Running) -> None:
    wire = await node.connect()
    await wire.send(f"GET /train/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    reply = await wire.reply()
    assert (reply.status, reply.code) == (404, "NoSuchKey")


async def test_what_is_reserved_is_no_source_of_a_copy(node: Running, s3: Any) -> None:
    source = {"Bucket": "train", "Key": KEY}
    with refused("NoSuchKey", 404):
        await call(s3.copy_object, Bucket="train", Key="b", CopySource=source)
    upload = await call(s3.create_multipart_upload, Bucket="train", Key="b")
    part = {"Bucket": "train", "Key": "b", "UploadId": upload["UploadId"], "PartNumber": 1}
    with refused("NoSuchKey", 404):
        await call(s3.upload_part_copy, **part, CopySource=source)


async def test_deleting_many_leaves_what_is_reserved(node: Running, s3: Any) -> None:
    await put(s3, "a")
    objects = [{"Key": KEY}, {"Key": "a"}]
    answer = await call(s3.delete_objects, Bucket="train", Delete={"Objects": objects})
    assert [entry["Key"] for entry in answer["Deleted"]] == ["a"]
    (error,) = answer["Errors"]
    assert (error["Key"], error["Code"]) == (KEY, "AccessDenied")
    assert "reserved" in error["Message"]
    assert (await ask(node, "GET", f"/train/{KEY}", BYPASS)).body == SECRET


async def test_a_batch_has_what_is_reserved_past_packs_alone(node: Running) -> None:
    batch = b'{"format": "tar", "objects": [{"key": "%s"}]}' % KEY.encode()
    for headers, seen in (({}, False), (BYPASS, True)):
        wire = await node.connect()
        request = node.signed("POST", "/train?feedrack-batch", headers, batch)
        await wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = await wire.reader.read(65_536)
        while data := await wire.reader.read(65_536):
            answer += data
        assert answer.startswith(b"HTTP/1.0 200") or answer.startswith(b"HTTP/1.1 200")
        assert (SECRET in answer, b"NoSuchKey" in answer) == (seen, not seen)


async def test_no_listing_shows_what_is_reserved(node: Running, s3: Any) -> None:
    past = past_packs(node.client())
    for number in range(5):
        await put(past, f".feedrack/packs/0/manifests/{number}.json")
    await call(past.create_multipart_upload, Bucket="train", Key=f"{KEY}2")
    past.close()
    for key in (".a", ".feed", "b/c"):
        await put(s3, key)
    await call(s3.create_multipart_upload, Bucket="train", Key="z")
    for delimiter, keys, prefixes in (
        ("", [".a", ".feed", "b/c"], []),
        ("/", [".a", ".feed"], ["b/"]),
        ("d", [".a", "b/c"], [".feed"]),
    ):
        for size in (1, 2, 1000):
            for name, rows, of in (
                ("list_objects", "Contents", "Key"),
                ("list_objects_v2", "Contents", "Key"),
                ("list_object_versions", "Versions", "Key"),
            ):
                if name == "list_object_versions" and size < 1000 and node.origin == "moto":
                    # It leaves out the first key behind a marker that is none.
                    continue
                paged = s3.get_paginator(name).paginate(
                    Bucket="train", Delimiter=delimiter, PaginationConfig={"PageSize": size}
                )
                pages = await call(lambda: list(paged))  # noqa: B023 - used at once
                assert [row[of] for page in pages for row in page.get(rows, [])] == keys, name
                folded = [row["Prefix"] for page in pages for row in page.get("CommonPrefixes", [])]
                assert folded == prefixes, name
    uploads = await call(s3.list_multipart_uploads, Bucket="train")
    assert [row["Key"] for row in uploads["Uploads"]] == ["z"]
    for prefix in (".feedrack/", ".feedrack/packs/0/"):
        for method, rows in (
            (s3.list_objects, "Contents"),
            (s3.list_objects_v2, "Contents"),
            (s3.list_object_versions, "Versions"),
            (s3.list_multipart_uploads, "Uploads"),
        ):
            page = await call(method, Bucket="train", Prefix=prefix)
            assert not page.get(rows)
            assert not page["IsTruncated"]
            with refused("NoSuchBucket", 404):
                await call(method, Bucket="nowhere", Prefix=prefix)


async def test_a_key_that_only_looks_like_it_is_anybodys(node: Running, s3: Any) -> None:
    for key in (".feedrack0", "a/.feedrack/b", ".feedrackx/packs/c", ".FEEDRACK/packs/d"):
        await put(s3, key, b"mine")
        assert (await get(s3, key))[1] == b"mine"
