"""What boto3 does beside plain reads and writes, end to end, before each origin."""

import hashlib
import random
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from awscrt import checksums as crt
from botocore.exceptions import ClientError

from tests.node.process import GatewayProcess

PART_BYTES = 5 * 1024 * 1024
PARTS = [random.Random(n).randbytes(size) for n, size in enumerate((PART_BYTES, 70_001))]


@pytest.fixture
def node(node_of_each_origin: GatewayProcess) -> GatewayProcess:
    return node_of_each_origin


def _status(client: Any, operation: str, **how: Any) -> int:
    try:
        answer = getattr(client, operation)(**how)
    except ClientError as error:
        answer = error.response
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status


def test_dates_decide_whether_an_object_is_sent(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="dates")
    target = {"Bucket": "dates", "Key": "k"}
    client.put_object(**target, Body=b"x")
    modified = client.head_object(**target)["LastModified"]
    earlier = modified - timedelta(hours=1)
    for operation in ("get_object", "head_object"):
        assert _status(client, operation, **target, IfModifiedSince=modified) == 304
        assert _status(client, operation, **target, IfModifiedSince=earlier) == 200
        assert _status(client, operation, **target, IfUnmodifiedSince=modified) == 200
        assert _status(client, operation, **target, IfUnmodifiedSince=earlier) == 412


def _send(url: str, method: str, body: bytes | None = None) -> tuple[int, bytes]:
    # A form's type, which urllib would send, makes moto take the body for a form's fields.
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_presigned_urls_put_and_get_what_they_were_signed_for_and_no_more(
    node: GatewayProcess,
) -> None:
    client = node.client(signature_version="s3v4")
    client.create_bucket(Bucket="signed")
    target = {"Bucket": "signed", "Key": "a key/ü+%.bin"}
    body = random.Random(8).randbytes(300_000)
    put_url, get_url = (
        client.generate_presigned_url(operation, Params=target, ExpiresIn=60)
        for operation in ("put_object", "get_object")
    )
    assert "X-Amz-Signature" in put_url
    assert _send(put_url, "PUT", body)[0] == 200
    assert _send(get_url, "GET") == (200, body)
    assert _send(get_url, "PUT", b"forged")[0] == 403
    assert _send(get_url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"), "GET")[0] == 403
    assert client.get_object(**target)["Body"].read() == body


def _upload(client: Any, algorithm: str, kind: str, checksums: list[str]) -> None:
    target = {"Bucket": "sums", "Key": algorithm}
    created = client.create_multipart_upload(
        **target, ChecksumAlgorithm=algorithm, ChecksumType=kind
    )
    assert (created["ChecksumAlgorithm"], created["ChecksumType"]) == (algorithm, kind)
    field = f"Checksum{algorithm}"
    parts = []
    for number, (body, checksum) in enumerate(zip(PARTS, checksums, strict=True), 1):
        sent = client.upload_part(
            **target,
            UploadId=created["UploadId"],
            PartNumber=number,
            Body=body,
            ChecksumAlgorithm=algorithm,
        )
        assert sent[field] == checksum
        parts.append({"PartNumber": number, "ETag": sent["ETag"], field: checksum})
    client.complete_multipart_upload(
        **target,
        UploadId=created["UploadId"],
        ChecksumType=kind,
        MultipartUpload={"Parts": parts},
    )


def _crc64(body: bytes) -> str:
    return b64encode(crt.crc64nvme(body).to_bytes(8, "big")).decode()


def test_parts_with_a_full_object_crc64nvme_make_the_checksum_of_the_whole(
    node: GatewayProcess,
) -> None:
    client = node.client()
    client.create_bucket(Bucket="sums")
    whole = _crc64(b"".join(PARTS))
    _upload(client, "CRC64NVME", "FULL_OBJECT", [_crc64(part) for part in PARTS])
    answer = client.get_object(Bucket="sums", Key="CRC64NVME", ChecksumMode="ENABLED")
    assert answer["Body"].read() == b"".join(PARTS)
    assert (answer["ChecksumCRC64NVME"], answer["ChecksumType"]) == (whole, "FULL_OBJECT")


def test_parts_with_a_composite_sha256_make_the_checksum_of_their_checksums(
    make_node: Callable[..., GatewayProcess],
) -> None:
    # Only before a directory: moto leaves the number of parts out of what it composes.
    client = make_node().client()
    client.create_bucket(Bucket="sums")
    digests = [hashlib.sha256(part).digest() for part in PARTS]
    composed = b64encode(hashlib.sha256(b"".join(digests)).digest()).decode() + "-2"
    sums = [b64encode(digest).decode() for digest in digests]
    _upload(client, "SHA256", "COMPOSITE", sums)
    head = client.head_object(Bucket="sums", Key="SHA256", ChecksumMode="ENABLED")
    assert (head["ChecksumSHA256"], head["ChecksumType"]) == (composed, "COMPOSITE")
    body = client.get_object(Bucket="sums", Key="SHA256")["Body"].read()
    assert body == b"".join(PARTS)
