"""A node before a real S3 service (moto), with a proxy between that fails on demand."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.faulty import Fault, FlakyOrigin, flaky_origin
from tests.node.process import GatewayProcess, s3_origin_settings
from tests.origins import ACCESS_KEY, SECRET_KEY, moto_server
from tests.waiting import SECONDS

MakeNode = Callable[..., GatewayProcess]
LARGE = random.Random(5).randbytes(5 * 1024 * 1024 + 321)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[FlakyOrigin]:
    with moto_server(tmp_path) as moto, flaky_origin(moto.url) as flaky:
        yield flaky


@pytest.fixture
def behind(origin: FlakyOrigin) -> Any:
    """A client of the origin itself: it writes past the node."""
    return _client_of(origin, region="us-east-1")


def _client_of(origin: FlakyOrigin, region: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=origin.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY.reveal(),
        region_name=region,
    )


@pytest.fixture
def s3_node(
    make_node: MakeNode, origin: FlakyOrigin, tmp_path: Path
) -> Callable[..., GatewayProcess]:
    """`s3_node({…}, …)` starts a node with these settings of the bucket and of the origin."""

    def make(bucket: dict[str, Any], **origin_settings: Any) -> GatewayProcess:
        cloud = s3_origin_settings(origin.url, tmp_path)
        cloud |= {"connect_timeout_seconds": 2, "read_timeout_seconds": 2, "attempts": 2}
        cloud |= origin_settings
        return make_node({"origins": {"cloud": cloud}, "buckets": {"train": bucket}})

    return make


@pytest.fixture
def node(s3_node: Callable[..., GatewayProcess]) -> GatewayProcess:
    return s3_node({"freshness_seconds": 3600})


def _get(node: GatewayProcess, key: str, **how: Any) -> bytes:
    body: bytes = node.client().get_object(Bucket="train", Key=key, **how)["Body"].read()
    return body


def test_a_cold_object_is_read_once_by_many_clients(
    node: GatewayProcess, origin: FlakyOrigin, behind: Any
) -> None:
    behind.create_bucket(Bucket="train")
    behind.put_object(Bucket="train", Key="k", Body=LARGE)
    origin.seen.requests.clear()
    origin.seen.sent_bytes.clear()
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda _: _get(node, "k"), range(48)))
    assert all(body == LARGE for body in found)
    assert origin.seen.requests["GetObject"] == 6
    assert origin.seen.sent_bytes["GetObject"] == len(LARGE)


def test_the_checksum_the_origin_keeps_comes_with_a_cold_read(
    node: GatewayProcess, behind: Any
) -> None:
    behind.create_bucket(Bucket="train")
    behind.put_object(Bucket="train", Key="k", Body=b"abc", ChecksumAlgorithm="SHA256")
    expected = behind.head_object(Bucket="train", Key="k", ChecksumMode="ENABLED")
    for _ in ("cold", "warm"):
        answer = node.client().get_object(Bucket="train", Key="k", ChecksumMode="ENABLED")
        assert answer["Body"].read() == b"abc"
        assert answer["ChecksumSHA256"] == expected["ChecksumSHA256"]


def test_what_was_put_through_the_node_is_at_the_origin_and_warm(
    node: GatewayProcess, origin: FlakyOrigin, behind: Any
) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    for key, body in {"small": b"s" * 5000, "large": LARGE, "empty": b""}.items():
        client.put_object(
            Bucket="train", Key=key, Body=body, Metadata={"epoch": "3"}, ContentType="text/x-odd"
        )
        stored = behind.get_object(Bucket="train", Key=key)
        assert stored["Body"].read() == body
        assert (stored["Metadata"], stored["ContentType"]) == ({"epoch": "3"}, "text/x-odd")
    origin.seen.requests.clear()
    assert _get(node, "small") == b"s" * 5000
    assert _get(node, "large") == LARGE
    assert origin.seen.requests["GetObject"] == 0


def test_versions_pass_through_and_are_cached_by_their_id(
    node: GatewayProcess, origin: FlakyOrigin
) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    client.put_bucket_versioning(Bucket="train", VersioningConfiguration={"Status": "Enabled"})
    assert client.get_bucket_versioning(Bucket="train")["Status"] == "Enabled"
    first = client.put_object(Bucket="train", Key="k", Body=b"one")["VersionId"]
    second = client.put_object(Bucket="train", Key="k", Body=b"two")["VersionId"]
    assert _get(node, "k") == b"two"
    assert _get(node, "k", VersionId=first) == b"one"
    origin.seen.requests.clear()
    assert _get(node, "k", VersionId=first) == b"one"
    assert origin.seen.requests["GetObject"] == 0
    marker = client.delete_object(Bucket="train", Key="k")
    assert marker["DeleteMarker"] is True
    with pytest.raises(ClientError, match="NoSuchKey"):
        _get(node, "k")
    assert _get(node, "k", VersionId=second) == b"two"
    versions = client.list_object_versions(Bucket="train")
    assert {entry["VersionId"] for entry in versions["Versions"]} == {first, second}
    assert [entry["VersionId"] for entry in versions["DeleteMarkers"]] == [marker["VersionId"]]
    client.delete_object(Bucket="train", Key="k", VersionId=marker["VersionId"])
    assert _get(node, "k") == b"two"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", "GetObject", status=503),
        Fault("reset", "GetObject"),
        Fault("reset", "GetObject", after_bytes=100_000),
        Fault("truncate", "GetObject", after_bytes=300_000),
        Fault("stall", "GetObject", after_bytes=200_000),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.after_bytes}",
)
def test_a_read_outlives_an_origin_that_fails_once(
    node: GatewayProcess, origin: FlakyOrigin, behind: Any, fault: Fault
) -> None:
    behind.create_bucket(Bucket="train")
    behind.put_object(Bucket="train", Key="k", Body=LARGE)
    origin.fail(fault)
    assert _get(node, "k") == LARGE
    assert _get(node, "k") == LARGE


def test_an_origin_that_stays_away_is_a_503_with_retry_after_and_never_a_404(
    node: GatewayProcess, origin: FlakyOrigin, behind: Any
) -> None:
    behind.create_bucket(Bucket="train")
    behind.put_object(Bucket="train", Key="cold", Body=b"x")
    node.client().put_object(Bucket="train", Key="warm", Body=b"y")
    assert _get(node, "warm") == b"y"
    origin.fail(Fault("reset"), times=1000)
    begun = time.monotonic()
    with pytest.raises(ClientError) as caught:
        _get(node, "cold")
    assert time.monotonic() - begun < 30
    metadata = caught.value.response["ResponseMetadata"]
    assert metadata["HTTPStatusCode"] == 503
    assert int(metadata["HTTPHeaders"]["retry-after"]) >= 1
    # What is fresh needs no origin.
    assert _get(node, "warm") == b"y"
    origin.heal()
    assert _get(node, "cold") == b"x"


def test_the_origins_own_refusals_come_through_as_themselves(node: GatewayProcess) -> None:
    client = node.client()
    with pytest.raises(ClientError, match="NoSuchBucket"):
        client.get_object(Bucket="train", Key="k")
    client.create_bucket(Bucket="train")
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket="train", Key="k")
    client.put_object(Bucket="train", Key="k", Body=b"x")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        client.delete_bucket(Bucket="train")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="train", Key="k", Body=b"y", IfNoneMatch="*")
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.abort_multipart_upload(Bucket="train", Key="k", UploadId="nope")


def test_ssec_objects_pass_through_and_are_never_kept(node: GatewayProcess, behind: Any) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}
    before = node.counter("feedrack_cache_bytes")
    client.put_object(Bucket="train", Key="k", Body=b"secret" * 10_000, **key)
    assert client.get_object(Bucket="train", Key="k", **key)["Body"].read() == b"secret" * 10_000
    assert node.counter("feedrack_cache_bytes") == before


def test_bytes_reach_the_client_before_the_origin_has_sent_the_chunk(
    s3_node: Callable[..., GatewayProcess], origin: FlakyOrigin, behind: Any
) -> None:
    node = s3_node({}, read_timeout_seconds=30)
    body = LARGE[:900_000]
    behind.create_bucket(Bucket="train")
    behind.put_object(Bucket="train", Key="k", Body=body)
    origin.seen.requests.clear()
    origin.fail(Fault("stall", "GetObject", after_bytes=200_000))
    stream = node.client().get_object(Bucket="train", Key="k")["Body"]
    first = stream.read(50_000)
    # One request, and it still stalls: nothing of this came by another.
    assert origin.seen.requests["GetObject"] == 1
    assert first == body[:50_000]
    origin.heal()
    assert first + stream.read() == body


def test_freshness_0_notices_each_write_past_the_node(
    s3_node: Callable[..., GatewayProcess], behind: Any
) -> None:
    node = s3_node({"freshness_seconds": 0})
    behind.create_bucket(Bucket="train")
    for body in (b"one", b"two", LARGE):
        behind.put_object(Bucket="train", Key="k", Body=body)
        assert _get(node, "k") == body
    behind.delete_object(Bucket="train", Key="k")
    with pytest.raises(ClientError, match="NoSuchKey"):
        _get(node, "k")


def test_a_write_past_the_node_is_noticed_when_freshness_ends_and_never_mixed_with_the_old(
    s3_node: Callable[..., GatewayProcess], behind: Any
) -> None:
    node = s3_node({"freshness_seconds": 1})
    behind.create_bucket(Bucket="train")
    old, new = LARGE, LARGE[::-1]
    behind.put_object(Bucket="train", Key="k", Body=old)
    # Two chunks of six: an answer that mixes would take them from here.
    assert _get(node, "k", Range="bytes=1048576-3145727") == old[1048576:3145728]
    behind.put_object(Bucket="train", Key="k", Body=new)
    deadline = time.monotonic() + SECONDS
    found = old
    while found != new:
        assert time.monotonic() < deadline, "the new body never came"
        # The old version's other chunks are gone from the origin: an answer may break off.
        with contextlib.suppress(BotoCoreError):
            found = _get(node, "k")
            assert found in (old, new)
    assert _get(node, "k", Range="bytes=1048576-3145727") == new[1048576:3145728]


def test_creating_an_owned_bucket_again_succeeds_where_the_origin_says_409(
    s3_node: Callable[..., GatewayProcess], origin: FlakyOrigin
) -> None:
    origin_client = _client_of(origin, region="eu-west-1")
    where = {"LocationConstraint": "eu-west-1"}
    origin_client.create_bucket(Bucket="train", CreateBucketConfiguration=where)
    # This region's S3 refuses what us-east-1 lets pass.
    with pytest.raises(ClientError, match="BucketAlreadyOwnedByYou"):
        origin_client.create_bucket(Bucket="train", CreateBucketConfiguration=where)
    client = s3_node({}, region="eu-west-1").client()
    for _ in range(2):
        client.create_bucket(Bucket="train")
    client.put_object(Bucket="train", Key="k", Body=b"x")
    assert origin_client.get_object(Bucket="train", Key="k")["Body"].read() == b"x"
