"""`packer` as benchmarks use it: a pack of a prefix of the read bucket, made outside the clock."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import boto3
import msgspec
from msgspec import Struct

from benchmarks.server import ACCESS_KEY, HOST, READ_BUCKET, SECRET_KEY, Server

KEYS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Packed(Struct, frozen=True, kw_only=True):
    """What `packer pack` tells of a pack, as far as benchmarks want to know."""

    packed_objects: int
    packed_bytes: int
    shard_files: int
    shard_file_bytes: int
    index_bytes: int
    seconds: float


class _Said(Struct, frozen=True):
    report: Packed


def packer() -> str:
    """The program."""
    return str(Path(sys.executable).parent / "packer")


def report_of(said: bytes) -> Packed:
    """What `packer pack --json` says."""
    return msgspec.json.decode(said, type=_Said).report


def create_bucket(server: Server) -> None:
    """The read bucket of a server that serves no files."""
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{HOST}:{server.port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=READ_BUCKET)


def make_pack(endpoint_url: str, prefix: str, spool: Path, shard_bytes: int) -> Packed:
    """Packs `prefix`, for gateways that are started afterwards. CalledProcessError."""
    done = subprocess.run(
        [
            *(packer(), "pack", f"s3://{READ_BUCKET}/{prefix}", "--json", "--settle", "0"),
            *("--endpoint-url", endpoint_url, "--spool", str(spool)),
            *("--shard-size", f"{shard_bytes}B"),
        ],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **KEYS},
    )
    return report_of(done.stdout)
