"""`packer` through a running gateway: everything it does beside one, and nobody else sees it."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packer.stores.protocol import Deletion
from packer.stores.s3 import S3Store
from tests.node.process import GatewayProcess, s3_origin_settings
from tests.origins import MotoServer
from tests.packer.conftest import Bucket, made
from tests.packer.test_cli import PACKER, run, told
from tests.packer.test_pack import filled


@pytest.fixture(params=["directory", "moto", "directory, two workers"])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, moto: MotoServer
) -> Iterator[GatewayProcess]:
    """A node over each kind of origin, in one process and in several."""
    kind, _, workers = request.param.partition(", ")
    folder = tmp_path / "node"
    folder.mkdir()
    settings: dict[str, Any] = {"node": {"workers": 2 if workers else 1}}
    if kind == "moto":
        settings["origins"] = {"main": s3_origin_settings(moto.url, folder)}
    gateway = GatewayProcess(folder, settings).start()
    yield gateway
    gateway.kill()


@pytest.fixture
def bucket(node: GatewayProcess, keys_of_aws: None, tmp_path: Path) -> Iterator[Bucket]:
    with closing(made(node.endpoint_url)) as store:
        yield Bucket(store, node.endpoint_url, tmp_path)


def seen(node: GatewayProcess, bucket: Bucket) -> dict[str, bytes]:
    """What a client of the gateway finds in the bucket."""
    client = node.client()
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket.name, PaginationConfig={"PageSize": 17}
    )
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    found = {key: client.get_object(Bucket=bucket.name, Key=key)["Body"].read() for key in keys}
    client.close()
    return found


def test_all_of_a_packs_life(bucket: Bucket, node: GatewayProcess) -> None:
    objects = filled(bucket)
    assert seen(node, bucket) == objects
    assert told(bucket, "pack", "--settle", 0)["report"]["packed_objects"] == 60
    assert bucket.store.is_gateway
    assert bucket.store.bypassed
    assert bucket.keys(".feedrack/packs/")
    assert seen(node, bucket) == objects
    assert told(bucket, "verify")["objects"] == 60
    packs = subprocess.run(
        [
            *(str(PACKER), "ls", f"s3://{bucket.name}", "--endpoint-url", bucket.endpoint_url),
            *("--spool", str(bucket.folder / "cli")),
        ],
        capture_output=True,
        text=True,
    )
    assert packs.stdout.startswith(f"s3://{bucket.name}/p/  whole  60 objects"), packs.stderr
    out = bucket.folder / "out"
    assert told(bucket, "unpack", "--to", out)["objects"] == 60
    assert (out / "0" / "000.bin").read_bytes() == objects["p/0/000.bin"]
    assert run(bucket, "drop").returncode == 0
    assert seen(node, bucket) == objects


def test_originals_go_and_every_key_answers_until_they_come_back(
    bucket: Bucket, node: GatewayProcess
) -> None:
    objects = filled(bucket)
    assert seen(node, bucket) == objects
    deleted = told(bucket, "pack", "--settle", 0, "--delete-originals")["deleted_originals"]
    assert (deleted["objects"], deleted["failed"]) == (60, 0)
    assert bucket.keys("p/") == []
    for _ in range(2):
        assert seen(node, bucket) == objects
    client = node.client()
    client.put_object(Bucket=bucket.name, Key="p/0/000.bin", Body=b"written over")
    client.delete_object(Bucket=bucket.name, Key="p/1/001.bin")
    client.close()
    objects["p/0/000.bin"] = b"written over"
    del objects["p/1/001.bin"]
    assert seen(node, bucket) == objects
    assert told(bucket, "pack", "--settle", 0)["report"]["packed_objects"] == 59
    assert seen(node, bucket) == objects
    refused = run(bucket, "drop")
    assert refused.returncode == 1
    # All but the one that was written again are in the pack alone.
    assert told(bucket, "unpack")["objects"] == 58
    assert seen(node, bucket) == objects
    assert run(bucket, "drop").returncode == 0


def test_a_write_that_bypasses_is_seen_by_every_process(
    bucket: Bucket, node: GatewayProcess
) -> None:
    client = node.client()
    assert isinstance(bucket.store, S3Store)
    for number in range(20):
        body = b"%d" % number * 500
        bucket.put("k", body)
        for _ in range(4):
            answer = client.get_object(Bucket=bucket.name, Key="k")
            assert answer["Body"].read() == body
    assert not bucket.store.delete([Deletion("k")])
    for _ in range(4):
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket=bucket.name, Key="k")
    client.close()
