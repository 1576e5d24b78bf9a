"""A node's life: it starts, says so, keeps warm over restarts, drains, serves TLS."""

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
import trustme
from botocore.config import Config

from tests.node.process import ACCESS_KEY, ADMIN_TOKEN, SECRET_KEY, GatewayProcess
from tests.waiting import wait_until


def _ask(
    node: GatewayProcess, path: str, token: str | None = ADMIN_TOKEN, method: str = "GET"
) -> tuple[int, Any]:
    request = urllib.request.Request(f"{node.admin_url}{path}", method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_admin_port_opens_health_to_all_and_the_rest_to_the_token(
    node: GatewayProcess,
) -> None:
    assert _ask(node, "/healthz", None) == (200, {"status": "alive"})
    assert _ask(node, "/readyz", None)[1]["ready"] is True
    assert _ask(node, "/v1/members", None)[0] == 401
    assert _ask(node, "/metrics", "wrong")[0] == 401
    status, members = _ask(node, "/v1/members")
    assert status == 200
    assert [member["id"] for member in members["members"]] == ["n1"]


def test_datasets_tell_the_bytes_held_under_a_prefix(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    client.put_object(Bucket="train", Key="x/small", Body=b"a" * 1000)
    client.put_object(Bucket="train", Key="x/large", Body=b"b" * 3_000_000)
    client.put_object(Bucket="train", Key="y/other", Body=b"c" * 500)
    status, answer = _ask(node, "/v1/datasets?dataset=s3://train/x/")
    assert status == 200
    assert answer["nodes"] == [{"id": "n1", "rack": "r1", "bytes": 3_001_000}]
    assert _ask(node, "/v1/datasets?dataset=train")[0] == 400


def test_what_was_written_is_warm_and_stays_warm_over_a_restart(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="warm")
    bodies = {"small": b"s" * 5000, "large": b"L" * 5_000_000}
    for key, body in bodies.items():
        client.put_object(Bucket="warm", Key=key, Body=body)
    for key, body in bodies.items():
        answer = client.get_object(Bucket="warm", Key=key)
        assert answer["Body"].read() == body
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "disk"
    assert node.origin_gets() == 0
    assert node.stop() == 0
    node.start()
    for key, body in bodies.items():
        answer = node.client().get_object(Bucket="warm", Key=key)
        assert answer["Body"].read() == body
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "disk"
    assert node.origin_gets() == 0


def test_multipart_objects_are_warm_however_their_parts_lie(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="parts")
    for key, size in (("aligned", 5 << 20), ("askew", (5 << 20) + 4097)):
        upload = client.create_multipart_upload(Bucket="parts", Key=key)["UploadId"]
        bodies = [bytes([n]) * size for n in (1, 2)] + [b"tail"]
        parts = [
            {
                "PartNumber": n,
                "ETag": client.upload_part(
                    Bucket="parts", Key=key, UploadId=upload, PartNumber=n, Body=body
                )["ETag"],
            }
            for n, body in enumerate(bodies, 1)
        ]
        client.complete_multipart_upload(
            Bucket="parts", Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        wait_until(
            lambda key=key, size=size: _held(node, f"parts/{key}") == 2 * size + 4,  # type: ignore[misc]
            f"all of {key} is held",
        )
        assert client.get_object(Bucket="parts", Key=key)["Body"].read() == b"".join(bodies)
    assert node.origin_gets() == 0


def _held(node: GatewayProcess, dataset: str) -> int:
    held: int = _ask(node, f"/v1/datasets?dataset=s3://{dataset}")[1]["nodes"][0]["bytes"]
    return held


def test_sigterm_finishes_the_request_in_flight_and_exits_0(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="drain")
    body = b"d" * 30_000_000
    client.put_object(Bucket="drain", Key="k", Body=body)
    stream = client.get_object(Bucket="drain", Key="k")["Body"]
    first = stream.read(100_000)
    statuses: list[int] = []
    stopping = threading.Thread(target=lambda: statuses.append(node.stop()))
    stopping.start()
    wait_until(lambda: b'"draining"' in node.log.read_bytes())
    assert first + stream.read() == body
    stopping.join(timeout=60)
    assert statuses == [0]


def test_the_drain_call_makes_the_node_unready_finishes_what_is_in_flight_and_exits_0(
    node: GatewayProcess,
) -> None:
    client = node.client()
    client.create_bucket(Bucket="drain")
    body = random.Random(3).randbytes(30_000_000)
    client.put_object(Bucket="drain", Key="k", Body=body)
    stream = client.get_object(Bucket="drain", Key="k")["Body"]
    first = stream.read(100_000)
    assert _ask(node, "/readyz", None)[0] == 200
    assert _ask(node, "/v1/drain", None, "POST")[0] == 401
    assert _ask(node, "/v1/drain", method="POST") == (202, {"status": "draining"})
    wait_until(lambda: _ask(node, "/readyz", None)[0] != 200)
    status, readiness = _ask(node, "/readyz", None)
    assert (status, readiness["ready"], readiness["state"]) == (503, False, "draining")
    assert _ask(node, "/healthz", None)[0] == 200
    assert first + stream.read() == body
    assert node.process is not None
    assert node.process.wait(timeout=60) == 0


def test_tls_is_served_and_boto3_sends_its_trailers_over_it(
    make_node: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    cert.private_key_pem.write_to_path(tmp_path / "key.pem")
    node = make_node(
        {
            "s3": {
                "tls_cert_file": str(tmp_path / "cert.pem"),
                "tls_key_file": str(tmp_path / "key.pem"),
            }
        }
    )
    assert node.endpoint_url.startswith("https://")
    sent: list[str | None] = []
    client = boto3.client(
        "s3",
        endpoint_url=node.endpoint_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        verify=str(tmp_path / "ca.pem"),
        config=Config(retries={"max_attempts": 1}),
    )
    client.meta.events.register(
        "before-send.s3.PutObject",
        lambda request, **_: sent.append(request.headers.get("X-Amz-Trailer")),
    )
    client.create_bucket(Bucket="tls")
    for size in (0, 1, 100_000, 9_000_000):
        client.put_object(Bucket="tls", Key=f"k{size}", Body=b"t" * size)
        answer = client.get_object(Bucket="tls", Key=f"k{size}", ChecksumMode="ENABLED")
        assert answer["Body"].read() == b"t" * size
        assert answer["ChecksumCRC32"]
    assert b"x-amz-checksum-crc32" in {h.encode() if isinstance(h, str) else h for h in sent}


def test_a_second_node_on_the_same_cache_folder_refuses_to_start(
    make_node: Callable[..., GatewayProcess],
) -> None:
    first = make_node()
    with pytest.raises(RuntimeError, match="cache"):
        make_node({"cache": {"path": first.settings["cache"]["path"]}})


def test_one_line_is_logged_for_each_request_and_no_secret_in_any(node: GatewayProcess) -> None:
    client = node.client(signature_version="s3v4")
    client.create_bucket(Bucket="logs")
    url = client.generate_presigned_url("get_object", Params={"Bucket": "logs", "Key": "nope"})
    signature = parse_qs(urlsplit(url).query)["X-Amz-Signature"][0]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url, timeout=60)
    node.stop()
    text = node.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["operation"] for line in requests] == ["CreateBucket", "GetObject"]
    assert SECRET_KEY not in text
    assert signature not in text
    assert "X-Amz-Signature" not in text
    assert "Signature=" not in text
