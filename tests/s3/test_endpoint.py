"""The S3 face through boto3: the pipeline, errors, access, and what is not offered."""

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.exceptions import ClientError
from structlog.testing import capture_logs

from tests.s3.running import RESTRICTED, SECRET_KEY, Running, call, running


@contextmanager
def refused(code: str, status: int) -> Iterator[None]:
    """What is within raises this S3 error."""
    with pytest.raises(ClientError) as caught:
        yield
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)


async def code_of(node: Running, method: str, target: str, **headers: str) -> tuple[int, str]:
    wire = await node.connect()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    await wire.send(node.signed(method, target, named))
    reply = await wire.reply(method)
    return reply.status, reply.code


# Errors and headers


async def test_an_error_names_its_resource_and_its_request(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("GET", "/train/a%26b"))
    reply = await wire.reply()
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/xml"
    request_id = reply.headers["x-amz-request-id"].encode()
    for part in (
        b"<Code>NoSuchKey</Code>",
        b"<Resource>/train/a&amp;b</Resource>",
        b"<RequestId>" + request_id + b"</RequestId>",
        b"<HostId>n1</HostId>",
    ):
        assert part in reply.body


async def test_every_answer_tells_who_gave_it(node: Running, s3: Any) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"a")
    seen = set()
    wire = await node.connect()
    for _ in range(3):
        await wire.send(node.signed("GET", "/train/a"))
        headers = (await wire.reply()).headers
        seen.add(headers["x-amz-request-id"])
        assert headers["x-feedrack-node"] == "n1"
        assert headers["x-feedrack-tier"] in ("disk", "origin")
        assert headers["server"] == "feedrack"
        assert headers["date"]
    assert len(seen) == 3


async def test_a_fault_of_ours_is_an_internal_error_that_tells_nothing(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(node.node.service, "get", fail)
    wire = await node.connect()
    with capture_logs() as logs:
        await wire.send(node.signed("GET", "/train/a"))
        reply = await wire.reply()
    assert (reply.status, reply.code) == (500, "InternalError")
    assert b"secret" not in reply.body
    assert any(entry["event"] == "internal error" for entry in logs)


async def test_one_line_is_logged_a_request_without_signatures(
    node: Running, s3: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"hello")
    url = s3.generate_presigned_url("get_object", {"Bucket": "train", "Key": "a"})
    target = url.partition(f":{node.port}")[2]
    wire = await node.connect()
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{node.port}\r\n\r\n".encode())
    reply = await wire.reply()
    await wire.send(node.signed("GET", "/train/b"))
    await wire.reply()
    assert reply.body == b"hello"
    text = ""
    async with asyncio.timeout(60):
        while text.count("\n") < 3:
            text += capfd.readouterr().err
            await asyncio.sleep(0.001)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["request"] * 3
    _, first, second = lines
    assert first["operation"] == "GetObject"
    assert (first["bucket"], first["key"], first["status"]) == ("train", "a", 200)
    assert (first["tenant"], first["bytes_out"], first["remote"]) == ("demo", 5, "127.0.0.1")
    assert first["request_id"] == reply.headers["x-amz-request-id"]
    assert (second["status"], second["code"]) == (404, "NoSuchKey")
    assert "X-Amz-Signature" not in text
    assert SECRET_KEY not in text


async def test_requests_are_counted(node: Running, s3: Any) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"hello")
    await call(s3.get_object, Bucket="train", Key="a")
    with refused("NoSuchKey", 404):
        await call(s3.get_object, Bucket="train", Key="b")
    text = node.node.metrics.render().decode()
    label = 'operation="GetObject",tenant="demo"'
    assert f'feedrack_requests_total{{code="200",{label}}} 1.0' in text
    assert f'feedrack_requests_total{{code="404",{label}}} 1.0' in text
    assert "feedrack_requests_in_flight 0.0" in text
    assert 'feedrack_request_seconds_count{operation="GetObject"' in text


# Access


async def test_a_stranger_learns_nothing_but_that_access_is_denied(node: Running) -> None:
    wire = await node.connect()
    for target in ("/", "/train", "/train/a", "/missing", "/missing/a", "/train?policy"):
        await wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await wire.reply()).code == "AccessDenied"


async def test_a_public_bucket_may_be_read_but_not_listed_or_written(tmp_path: Path) -> None:
    async with running(tmp_path, buckets={"open": {"public_read": True}}) as node:
        (node.root / "open").mkdir()
        (node.root / "open" / "a").write_bytes(b"free")
        wire = await node.connect()
        await wire.send(b"GET /open/a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await wire.reply()).body == b"free"
        await wire.send(b"GET /open/a?response-expires=x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await wire.reply()).code == "InvalidRequest"
        for line in ("GET /open", "DELETE /open/a", "GET /open/a?tagging", "GET /open/a?acl"):
            await wire.send(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await wire.reply()).code == "AccessDenied"


LIMITED = [
    {"allow": ["GetObject", "List*"], "buckets": ["train/images/*"]},
    {"allow": ["PutObject", "DeleteObject"], "buckets": ["scratch"]},
    {"deny": ["DeleteObject"], "buckets": ["scratch/keep/*"]},
]


async def test_a_tenant_does_what_its_policy_says_and_sees_only_its_buckets(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, policy=LIMITED) as node:
        for name in ("train", "scratch", "hidden"):
            (node.root / name).mkdir()
        everything, client = node.client(), node.client(RESTRICTED)
        for key in ("images/a", "labels/a"):
            await call(everything.put_object, Bucket="train", Key=key, Body=b"x")
        listed = await call(client.list_buckets)
        assert [bucket["Name"] for bucket in listed["Buckets"]] == ["scratch", "train"]
        await call(client.get_object, Bucket="train", Key="images/a")
        await call(client.list_objects_v2, Bucket="train", Prefix="images/")
        await call(client.put_object, Bucket="scratch", Key="b", Body=b"x")
        with refused("AccessDenied", 403):
            await call(client.get_object, Bucket="train", Key="labels/a")
        with refused("AccessDenied", 403):
            await call(client.list_objects_v2, Bucket="train")
        with refused("AccessDenied", 403):
            await call(client.get_object, Bucket="hidden", Key="missing")
        source = {"Bucket": "train", "Key": "labels/a"}
        with refused("AccessDenied", 403):
            await call(client.copy_object, Bucket="scratch", Key="c", CopySource=source)
        source["Key"] = "images/a"
        await call(client.copy_object, Bucket="scratch", Key="c", CopySource=source)
        for each in (everything, client):
            each.close()


async def test_a_write_with_tags_needs_leave_to_tag(tmp_path: Path) -> None:
    async with running(tmp_path, policy=LIMITED) as node:
        (node.root / "scratch").mkdir()
        client = node.client(RESTRICTED)
        with refused("AccessDenied", 403):
            await call(client.put_object, Bucket="scratch", Key="b", Body=b"x", Tagging="a=b")
        with refused("AccessDenied", 403):
            await call(client.create_multipart_upload, Bucket="scratch", Key="b", Tagging="a=b")
        assert list((node.root / "scratch").glob("b")) == []
        client.close()


async def test_a_delete_of_many_reports_the_denied_keys_and_deletes_the_others(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, policy=LIMITED) as node:
        (node.root / "scratch").mkdir()
        client = node.client(RESTRICTED)
        for key in ("keep/a", "b"):
            await call(client.put_object, Bucket="scratch", Key=key, Body=b"x")
        answer = await call(
            client.delete_objects,
            Bucket="scratch",
            Delete={"Objects": [{"Key": "keep/a"}, {"Key": "b"}, {"Key": "k" * 1025}]},
        )
        assert [entry["Key"] for entry in answer["Deleted"]] == ["b"]
        assert [(entry["Key"][:6], entry["Code"]) for entry in answer["Errors"]] == [
            ("keep/a", "AccessDenied"),
            ("kkkkkk", "KeyTooLongError"),
        ]
        client.close()


# What is not offered


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/train?policy"),
        ("PUT", "/train?novelty"),
        ("DELETE", "/train?novelty"),
        ("PUT", "/train?cors"),
        ("DELETE", "/train?cors"),
        ("PUT", "/train?lifecycle"),
        ("PUT", "/train?notification"),
        ("GET", "/train?notification"),
        ("PUT", "/train?website"),
        ("PUT", "/train?replication"),
        ("PUT", "/train?encryption"),
        ("GET", "/train?logging"),
        ("GET", "/train?analytics&id=1"),
        ("GET", "/train?inventory"),
        ("GET", "/train?metrics"),
        ("GET", "/train?accelerate"),
        ("GET", "/train?requestPayment"),
        ("PUT", "/train?versioning"),
        ("PUT", "/train?object-lock"),
        ("PUT", "/train?acl"),
        ("GET", "/train?session"),
        ("POST", "/train"),
        ("GET", "/train/a?torrent"),
        ("POST", "/train/a?select&select-type=2"),
        ("POST", "/train/a?restore"),
        ("PUT", "/train/a?retention"),
        ("GET", "/train/a?legal-hold"),
        ("PUT", "/train/a?acl"),
        ("PUT", "/train/a?renameObject"),
        ("GET", "/train/a?annotation"),
    ],
)
async def test_what_is_not_offered_is_not_implemented(
    node: Running, method: str, target: str
) -> None:
    assert await code_of(node, method, target) == (501, "NotImplemented")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/train?policy", "NoSuchBucketPolicy"),
        ("/train?policyStatus", "NoSuchBucketPolicy"),
        ("/train?cors", "NoSuchCORSConfiguration"),
        ("/train?lifecycle", "NoSuchLifecycleConfiguration"),
        ("/train?encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("/train?object-lock", "ObjectLockConfigurationNotFoundError"),
        ("/train?website", "NoSuchWebsiteConfiguration"),
        ("/train?replication", "ReplicationConfigurationNotFoundError"),
        ("/train?publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("/train?ownershipControls", "OwnershipControlsNotFoundError"),
        ("/train?tagging", "NoSuchTagSet"),
        ("/missing?policy", "NoSuchBucket"),
    ],
)
async def test_a_configuration_that_is_not_there_has_its_own_error(
    node: Running, target: str, code: str
) -> None:
    assert await code_of(node, "GET", target) == (404, code)


async def test_everything_is_private(node: Running, s3: Any) -> None:
    await call(s3.put_object, Bucket="train", Key="a", Body=b"", ACL="private")
    for answer in (
        await call(s3.get_bucket_acl, Bucket="train"),
        await call(s3.get_object_acl, Bucket="train", Key="a"),
    ):
        assert [grant["Permission"] for grant in answer["Grants"]] == ["FULL_CONTROL"]
    await call(s3.put_object_acl, Bucket="train", Key="a", ACL="private")
    with refused("NotImplemented", 501):
        await call(s3.put_bucket_acl, Bucket="train", ACL="public-read")
    with refused("NoSuchKey", 404):
        await call(s3.get_object_acl, Bucket="train", Key="b")


async def test_a_directory_has_no_versions_no_locks_and_no_encryption(s3: Any) -> None:
    answer = await call(s3.get_bucket_versioning, Bucket="train")
    assert "Status" not in answer
    with refused("NotImplemented", 501):
        await call(s3.put_object, Bucket="train", Key="a", Body=b"", ServerSideEncryption="AES256")
    with refused("NotImplemented", 501):
        wire_key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
        await call(s3.put_object, Bucket="train", Key="a", Body=b"", **wire_key)
    with refused("InvalidRequest", 400):
        await call(s3.put_object, Bucket="train", Key="a", Body=b"", ObjectLockLegalHoldStatus="ON")


# Buckets


async def test_buckets_are_created_listed_and_deleted(node: Running, s3: Any) -> None:
    await call(s3.create_bucket, Bucket="new-one")
    await call(s3.create_bucket, Bucket="new-one")
    location = {"LocationConstraint": "eu-west-1"}
    await call(s3.create_bucket, Bucket="other", CreateBucketConfiguration=location)
    listed = await call(s3.list_buckets)
    assert [bucket["Name"] for bucket in listed["Buckets"]] == ["new-one", "other", "train"]
    assert listed["Owner"]["ID"]
    page = await call(s3.list_buckets, MaxBuckets=1, Prefix="o")
    assert [bucket["Name"] for bucket in page["Buckets"]] == ["other"]
    first = await call(s3.list_buckets, MaxBuckets=2)
    rest = await call(s3.list_buckets, ContinuationToken=first["ContinuationToken"])
    assert [bucket["Name"] for bucket in rest["Buckets"]] == ["train"]
    head = await call(s3.head_bucket, Bucket="other")
    assert head["BucketRegion"] == "us-east-1"
    where = await call(s3.get_bucket_location, Bucket="other")
    assert where["LocationConstraint"] is None
    await call(s3.put_object, Bucket="other", Key="a", Body=b"")
    with refused("BucketNotEmpty", 409):
        await call(s3.delete_bucket, Bucket="other")
    await call(s3.delete_object, Bucket="other", Key="a")
    await call(s3.delete_bucket, Bucket="other")
    with refused("404", 404):
        await call(s3.head_bucket, Bucket="other")
    assert not (node.root / "other").exists()


@pytest.mark.parametrize(
    "name", ["ab", "Upper", "a..b", "192.168.0.1", "xn--a", "a-s3alias", "-ab", "under_score"]
)
async def test_a_bucket_needs_a_name_s3_allows(node: Running, name: str) -> None:
    assert await code_of(node, "PUT", f"/{name}") == (400, "InvalidBucketName")


async def test_a_bucket_document_must_be_one(node: Running) -> None:
    wire = await node.connect()
    await wire.send(node.signed("PUT", "/new-one", {}, b"<Other/>"))
    assert (await wire.reply()).code == "MalformedXML"


async def test_an_xml_body_has_a_limit(tmp_path: Path) -> None:
    async with running(tmp_path, limits={"xml_bytes": 1000}) as node:
        wire = await node.connect()
        await wire.send(node.signed("PUT", "/new-one", {}, b"<a>" + b" " * 1000))
        assert (await wire.reply()).code == "MaxMessageLengthExceeded"


# Addressing and transport


async def test_a_bucket_may_be_named_by_the_host(tmp_path: Path) -> None:
    async with running(tmp_path, s3={"virtual_host_domain": "s3.localhost"}) as node:
        (node.root / "train").mkdir()
        (node.root / "train" / "a").write_bytes(b"by host")
        request = node.signed("GET", "/a")
        # Signed for another host, it must be refused; so sign for the right one by hand.
        wrong = request.replace(b"Host: 127.0.0.1", b"Host: train.s3.localhost")
        wire = await node.connect()
        await wire.send(wrong)
        assert (await wire.reply()).code == "SignatureDoesNotMatch"
        right = node.signed("GET", "/a", host=f"train.s3.localhost:{node.port}")
        await wire.send(right)
        assert (await wire.reply()).body == b"by host"


async def test_trailing_checksums_work_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    tls = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    async with running(tmp_path, s3=tls) as node:
        (node.root / "train").mkdir()
        client = node.client(verify=str(trusted))
        body = bytes(range(256)) * 2000
        put = await call(client.put_object, Bucket="train", Key="a", Body=io.BytesIO(body))
        assert put["ChecksumCRC32"]
        got = await call(client.get_object, Bucket="train", Key="a")
        assert await call(got["Body"].read) == body
        client.close()
