"""Unmodified clients against a node before each origin: the round trips that users make."""

import asyncio
import filecmp
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs
import trustme
from aiobotocore.session import get_session

from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess


@pytest.fixture
def node(node_of_each_origin: GatewayProcess) -> GatewayProcess:
    return node_of_each_origin


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Small, empty, odd-named and multi-chunk files."""
    rng = random.Random(7)
    root = tmp_path / "tree"
    for name, size in {
        "a.txt": 11,
        "empty": 0,
        "deep/er/b c.bin": 4096,
        "deep/ünïcode-✓.bin": 70_000,
        "deep/plus+and%41.txt": 300,
        "big.bin": 20 * 1024 * 1024 + 17,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return root


def _run(node: GatewayProcess, *command: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(node.folder),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": node.endpoint_url,
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _same(left: Path, right: Path) -> bool:
    names = sorted(p.relative_to(left) for p in left.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(right) for p in right.rglob("*") if p.is_file())
    _, mismatch, errors = filecmp.cmpfiles(left, right, [str(n) for n in names], shallow=False)
    return not mismatch and not errors


def test_the_aws_cli_syncs_a_tree_there_and_back(
    node: GatewayProcess, tree: Path, tmp_path: Path, aws: str
) -> None:
    _run(node, aws, "s3", "mb", "s3://cli")
    _run(node, aws, "s3", "sync", "--quiet", str(tree), "s3://cli/x")
    listed = _run(node, aws, "s3", "ls", "--recursive", "s3://cli/x")
    assert len(listed.splitlines()) == 6
    _run(node, aws, "s3", "sync", "--quiet", "s3://cli/x", str(tmp_path / "back"))
    assert _same(tree, tmp_path / "back")
    _run(node, aws, "s3", "mv", "s3://cli/x/big.bin", "s3://cli/moved.bin")
    _run(node, aws, "s3", "rm", "--recursive", "--quiet", "s3://cli")
    _run(node, aws, "s3", "rb", "s3://cli")


def test_the_aws_cli_copies_there_and_back_over_tls(
    make_node: Callable[..., GatewayProcess], tree: Path, tmp_path: Path, aws: str
) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    cert.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {
        "tls_cert_file": str(tmp_path / "cert.pem"),
        "tls_key_file": str(tmp_path / "key.pem"),
    }
    node = make_node({"s3": files})
    assert node.endpoint_url.startswith("https://")
    trusting = (aws, "--ca-bundle", str(tmp_path / "ca.pem"), "s3")
    _run(node, *trusting, "mb", "s3://tls")
    _run(node, *trusting, "cp", "--quiet", str(tree / "big.bin"), "s3://tls/big")
    _run(node, *trusting, "cp", "--quiet", "s3://tls/big", str(tmp_path / "back.bin"))
    assert filecmp.cmp(tree / "big.bin", tmp_path / "back.bin", shallow=False)


def test_rclone_copies_checks_and_deletes_a_tree(
    node: GatewayProcess, tree: Path, tmp_path: Path, rclone: str
) -> None:
    remote = (
        f":s3,provider=Other,access_key_id={ACCESS_KEY},secret_access_key={SECRET_KEY},"
        f"endpoint='{node.endpoint_url}',region=us-east-1:tree"
    )
    _run(node, rclone, "mkdir", remote)
    _run(node, rclone, "copy", str(tree), f"{remote}/x")
    _run(node, rclone, "check", "--download", str(tree), f"{remote}/x")
    _run(node, rclone, "check", str(tree), f"{remote}/x")
    _run(node, rclone, "copy", f"{remote}/x", str(tmp_path / "back"))
    assert _same(tree, tmp_path / "back")
    _run(node, rclone, "purge", f"{remote}/x")
    assert _run(node, rclone, "lsf", "-R", remote) == ""


def test_s3cmd_puts_gets_and_syncs(
    node: GatewayProcess, tree: Path, tmp_path: Path, s3cmd: str
) -> None:
    host = node.endpoint_url.removeprefix("http://")
    options = (
        "--no-ssl",
        f"--host={host}",
        f"--host-bucket={host}",
        f"--access_key={ACCESS_KEY}",
        f"--secret_key={SECRET_KEY}",
        "--region=us-east-1",
        "--quiet",
    )
    _run(node, s3cmd, *options, "mb", "s3://s3cmd")
    _run(node, s3cmd, *options, "sync", f"{tree}/", "s3://s3cmd/x/")
    _run(node, s3cmd, *options, "sync", "s3://s3cmd/x/", f"{tmp_path / 'back'}/")
    assert _same(tree, tmp_path / "back")
    _run(node, s3cmd, *options, "del", "--recursive", "--force", "s3://s3cmd/x/")
    _run(node, s3cmd, *options, "rb", "s3://s3cmd")


def test_s3fs_writes_reads_ranges_and_lists(node: GatewayProcess, tree: Path) -> None:
    filesystem = s3fs.S3FileSystem(
        key=ACCESS_KEY,
        secret=SECRET_KEY,
        endpoint_url=node.endpoint_url,
        skip_instance_cache=True,
    )
    filesystem.mkdir("fsspec")
    filesystem.put(str(tree), "fsspec/x", recursive=True)
    big = (tree / "big.bin").read_bytes()
    with filesystem.open("fsspec/x/big.bin", "rb", block_size=1 << 20) as file:
        file.seek(5_000_000)
        assert file.read(300_000) == big[5_000_000:5_300_000]
    assert (
        filesystem.cat("fsspec/x/deep/b c.bin".replace("deep", "deep/er"))
        == (tree / "deep/er/b c.bin").read_bytes()
    )
    assert filesystem.du("fsspec/x") == sum(
        p.stat().st_size for p in tree.rglob("*") if p.is_file()
    )
    with filesystem.open("fsspec/streamed", "wb", block_size=5 << 20) as file:
        for start in range(0, len(big), 1 << 20):
            file.write(big[start : start + (1 << 20)])
    assert filesystem.cat("fsspec/streamed") == big
    filesystem.rm("fsspec", recursive=True)


async def test_aiobotocore_puts_and_gets_concurrently(node: GatewayProcess) -> None:
    async with get_session().create_client(
        "s3",
        endpoint_url=node.endpoint_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    ) as client:
        await client.create_bucket(Bucket="aio")
        bodies = {f"k{n}": random.Random(n).randbytes(10_000 * n) for n in range(30)}
        await asyncio.gather(
            *(client.put_object(Bucket="aio", Key=k, Body=b) for k, b in bodies.items())
        )

        async def read(key: str) -> bytes:
            answer = await client.get_object(Bucket="aio", Key=key)
            async with answer["Body"] as stream:
                data: bytes = await stream.read()
                return data

        found = await asyncio.gather(*(read(key) for key in bodies))
        assert found == list(bodies.values())


def test_the_head_of_an_empty_object_tells_its_length(node: GatewayProcess) -> None:
    client = node.client()
    client.create_bucket(Bucket="empty")
    client.put_object(Bucket="empty", Key="k", Body=b"")
    assert client.head_object(Bucket="empty", Key="k")["ContentLength"] == 0


def test_boto3_transfers_in_parts_and_reads_parts(node: GatewayProcess, tree: Path) -> None:
    client = node.client()
    client.create_bucket(Bucket="boto")
    client.upload_file(str(tree / "big.bin"), "boto", "big", ExtraArgs={"Metadata": {"a": "b"}})
    head = client.head_object(Bucket="boto", Key="big")
    assert head["ETag"].strip('"').endswith("-3")
    assert head["Metadata"] == {"a": "b"}
    second = client.get_object(Bucket="boto", Key="big", PartNumber=2)
    assert second["PartsCount"] == 3
    assert second["Body"].read() == (tree / "big.bin").read_bytes()[8 << 20 : 16 << 20]
    target = tree.parent / "down.bin"
    client.download_file("boto", "big", str(target))
    assert filecmp.cmp(tree / "big.bin", target, shallow=False)
