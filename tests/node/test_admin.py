"""The admin port's answers when things are not as they should be, and its counting of bytes."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.node.process import ADMIN_TOKEN, GatewayProcess


def _ask(node: GatewayProcess, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{node.admin_url}{path}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_readiness_tells_of_an_origin_that_is_away(node: GatewayProcess) -> None:
    (node.folder / "origin").rename(node.folder / "unplugged")
    status, answer = _ask(node, "/readyz")
    assert (status, answer["origins"]) == (200, {"main": "away"})


def test_readiness_tells_of_origins_that_answer(node: GatewayProcess) -> None:
    assert _ask(node, "/readyz") == (
        200,
        {"ready": True, "state": "serving", "cache": "ok", "origins": {"main": "ok"}},
    )


def test_a_dataset_of_a_bucket_that_nobody_serves_is_a_404(
    make_node: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    node = make_node(
        {
            "origins": {
                name: {"type": "directory", "path": str(tmp_path / name)} for name in ("one", "two")
            }
        }
    )
    status, answer = _ask(node, "/v1/datasets?dataset=s3://nobody/x")
    assert status == 404
    assert "nobody" in answer["error"]


def test_bytes_are_counted_by_the_tier_each_came_from(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    body = bytes(range(256)) * 40_960
    client.put_object(Bucket="train", Key="k", Body=body)
    node.stop()
    for path in sorted((node.folder / "cache/chunks").rglob("*.*")):
        if not path.name.endswith(".0"):
            path.unlink()
    node.start()
    answer = node.client().get_object(Bucket="train", Key="k")
    assert answer["Body"].read() == body
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-feedrack-tier"] == "disk"
    assert node.counter("feedrack_read_bytes_total", tier="disk") == 1024 * 1024
    assert node.counter("feedrack_read_bytes_total", tier="origin") == len(body) - 1024 * 1024


def test_what_is_not_http_is_logged_and_counted_too(node: GatewayProcess) -> None:
    host, _, port = node.endpoint_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"NOT HTTP AT ALL\r\n\r\n")
        assert b" 400 " in connection.recv(4096)[:20]
    node.stop()
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "request"]
    assert [(line["status"], line["remote"]) for line in refused] == [(400, "127.0.0.1")]


def test_an_empty_part_may_be_replaced_before_completion(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="train")
    upload = client.create_multipart_upload(Bucket="train", Key="k")["UploadId"]
    client.upload_part(Bucket="train", Key="k", UploadId=upload, PartNumber=1, Body=b"")
    client.upload_part(Bucket="train", Key="k", UploadId=upload, PartNumber=1, Body=b"tail")
    done = client.complete_multipart_upload(
        Bucket="train",
        Key="k",
        UploadId=upload,
        MultipartUpload={
            "Parts": [{"PartNumber": 1, "ETag": '"7aea2552dfe7eb84b9443b6fc9ba6e01"'}]
        },
    )
    assert done["ETag"].endswith('-1"')
    assert client.get_object(Bucket="train", Key="k")["Body"].read() == b"tail"
