"""What goes to an S3 origin as it came, over moto."""

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer, moto_server
from tests.s3.running import Running, call, running
from tests.s3.test_endpoint import refused
from tests.s3.test_objects import get, put


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def behind(moto: MotoServer) -> Iterator[Any]:
    """A client of the origin itself, empty but for the bucket "train"."""
    moto.reset()
    client = boto3.client(
        "s3",
        endpoint_url=moto.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY.reveal(),
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="really-train")
    yield client
    client.close()


@pytest.fixture
async def node(tmp_path: Path, moto: MotoServer, behind: Any) -> AsyncIterator[Running]:
    """A node whose bucket "train" is called otherwise at its origin."""
    secret = tmp_path / "origin-secret"
    secret.write_text(SECRET_KEY.reveal())
    origin = {
        "type": "s3",
        "endpoint_url": moto.url,
        "access_key": ACCESS_KEY,
        "secret_key_file": str(secret),
        "addressing": "path",
    }
    buckets = {"train": {"origin_bucket": "really-train"}}
    async with running(tmp_path, origin=origin, buckets=buckets) as started:
        yield started


async def test_versions_pass_through(s3: Any) -> None:
    enabled = {"Status": "Enabled"}
    await call(s3.put_bucket_versioning, Bucket="train", VersioningConfiguration=enabled)
    assert (await call(s3.get_bucket_versioning, Bucket="train"))["Status"] == "Enabled"
    first = await put(s3, "a", b"one")
    second = await put(s3, "a", b"two")
    assert first["VersionId"] != second["VersionId"]
    assert (await get(s3, "a"))[1] == b"two"
    assert (await get(s3, "a", VersionId=first["VersionId"]))[1] == b"one"
    deleted = await call(s3.delete_object, Bucket="train", Key="a")
    assert deleted["DeleteMarker"] is True
    with refused("NoSuchKey", 404):
        await get(s3, "a")
    page = await call(s3.list_object_versions, Bucket="train")
    assert [entry["VersionId"] for entry in page["DeleteMarkers"]] == [deleted["VersionId"]]
    assert len(page["Versions"]) == 2
    with refused("NoSuchVersion", 404):
        await get(s3, "a", VersionId="00000000-0000-0000-0000-000000000000")


async def test_attributes_are_the_origins_own(s3: Any) -> None:
    await put(s3, "a", b"hello")
    answer = await call(
        s3.get_object_attributes, Bucket="train", Key="a", ObjectAttributes=["ObjectSize", "ETag"]
    )
    assert answer["ObjectSize"] == 5


async def test_locks_pass_through_and_show_at_once(s3: Any, behind: Any) -> None:
    await call(behind.create_bucket, Bucket="locked", ObjectLockEnabledForBucket=True)
    await call(s3.put_object, Bucket="locked", Key="a", Body=b"x")
    await call(s3.head_object, Bucket="locked", Key="a")
    await call(s3.put_object_legal_hold, Bucket="locked", Key="a", LegalHold={"Status": "ON"})
    held = await call(s3.get_object_legal_hold, Bucket="locked", Key="a")
    assert held["LegalHold"]["Status"] == "ON"
    head = await call(s3.head_object, Bucket="locked", Key="a")
    assert head["ObjectLockLegalHoldStatus"] == "ON"


async def test_a_bucket_may_be_created_with_locks(s3: Any, behind: Any) -> None:
    await call(s3.create_bucket, Bucket="locked", ObjectLockEnabledForBucket=True)
    answer = await call(s3.get_object_lock_configuration, Bucket="locked")
    assert answer["ObjectLockConfiguration"]["ObjectLockEnabled"] == "Enabled"


async def test_an_object_under_a_customers_key_passes_through(node: Running) -> None:
    # botocore sends such a key over TLS only, so the request is made by hand.
    key = bytes(32)
    headers = {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": b64encode(key).decode(),
        "x-amz-server-side-encryption-customer-key-md5": b64encode(md5(key).digest()).decode(),
    }
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/train/a", headers, b"hidden"))
    assert (await wire.reply()).status == 200
    await wire.send(node.signed("GET", "/train/a", {**headers, "range": "bytes=1-2"}))
    reply = await wire.reply()
    assert (reply.status, reply.body) == (206, b"id")
    assert reply.headers["x-feedrack-tier"] == "origin"
    await wire.send(node.signed("HEAD", "/train/a", headers))
    assert (await wire.reply("HEAD")).status == 200
    await wire.send(node.signed("GET", "/train/missing", headers))
    assert (await wire.reply()).code == "NoSuchKey"


async def test_a_relayed_request_is_authorised_like_any_other(node: Running) -> None:
    wire = await node.connect()
    for method, target in (("GET", "/train?versioning"), ("PUT", "/train/a?legal-hold")):
        await wire.send(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await wire.reply()).code == "AccessDenied"


async def test_what_the_origin_refuses_comes_through_as_it_is(s3: Any) -> None:
    with refused("NoSuchBucket", 404):
        await call(s3.get_bucket_versioning, Bucket="missing")


async def test_an_origin_that_is_not_there_is_unavailable_and_never_a_404(tmp_path: Path) -> None:
    secret = tmp_path / "origin-secret"
    secret.write_text("x")
    origin = {
        "type": "s3",
        "endpoint_url": "http://127.0.0.1:9",
        "access_key": "x",
        "secret_key_file": str(secret),
        "attempts": 1,
    }
    async with running(tmp_path, origin=origin) as node:
        wire = await node.connect()
        for method, target in (
            ("GET", "/train/a"),
            ("GET", "/train"),
            ("GET", "/train?versioning"),
        ):
            await wire.send(node.signed(method, target))
            reply = await wire.reply()
            assert (reply.status, reply.code) == (503, "ServiceUnavailable")
            assert int(reply.headers["retry-after"]) >= 1
