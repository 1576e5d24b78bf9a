"""Real small files, packed: served, listed and unpacked as they were, bit for bit.

The npm package `openmoji` and Debian's `papirus-icon-theme`, fetched by tests/fetch-real-files.sh.
A part of them, so that it takes seconds; all of them where the marker `bench` is asked for.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from tests.node.conftest import MakeNode
from tests.node.process import GatewayProcess
from tests.node.real_files import (
    FETCHED,
    Seen,
    files_of,
    get_all,
    links_of,
    list_all,
    packer,
    put_all,
)
from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer

BUCKET = "icons"
_ORIGIN_KEYS = (ACCESS_KEY, SECRET_KEY.reveal())
Require = Callable[[str, str | None], str]
parts = pytest.mark.parametrize(
    "every",
    [
        pytest.param(16, id="a part"),
        pytest.param(1, id="all", marks=(pytest.mark.bench, pytest.mark.timeout(1800))),
    ],
)


def fetched(require: Require, name: str) -> Path:
    folder = FETCHED / name
    return Path(require(name, str(folder) if folder.exists() else None))


@pytest.fixture
def openmoji(require: Require) -> dict[str, Path]:
    """Its files, by their names."""
    return files_of(fetched(require, "openmoji"))


@pytest.fixture
def papirus(require: Require) -> Path:
    """The folder of its themes."""
    return fetched(require, "papirus") / "usr" / "share" / "icons"


@pytest.fixture
def node(make_node: MakeNode) -> GatewayProcess:
    """A node over a directory, whose buckets anybody may read."""
    public = {name: {"public_read": True} for name in (BUCKET, "other")}
    return make_node({"buckets": public, "cache": {"capacity": "2GiB"}})


def assert_served(
    node: GatewayProcess, before: Mapping[str, Seen], listing: Mapping[str, object]
) -> None:
    """Every object and the whole listing are what they were."""
    assert list_all(node.client(), BUCKET) == listing
    now = get_all(node.endpoint_url, BUCKET, before)
    assert [key for key in before if now[key] != before[key]] == []


def originals(node: GatewayProcess) -> dict[str, Path]:
    """The objects' own files in the origin's folder."""
    files = files_of(node.folder / "origin" / BUCKET)
    return {key: path for key, path in files.items() if not key.startswith(".feedrack")}


def assert_unpacked(folder: Path, before: Mapping[str, Seen]) -> None:
    """Every object is a file with its bytes and its time, and the rest is told beside it."""
    files = files_of(folder)
    told = {
        line["key"]: line
        for line in map(
            msgspec.json.decode,
            files.pop(".feedrack~unpacked/metadata.jsonl").read_bytes().splitlines(),
        )
    }
    assert files.keys() == told.keys() == before.keys()
    for key, seen in before.items():
        assert files[key].read_bytes() == seen.body
        assert int(files[key].stat().st_mtime) == seen.modified_seconds
        facts = told[key]
        assert f'"{facts["etag"]}"' == seen.headers["etag"]
        assert facts["modified_ms"] // 1000 == seen.modified_seconds
        assert facts["headers"].items() <= seen.headers.items()
        assert facts["headers"]["content-type"] == seen.headers["content-type"]


def metadata(seen: Seen) -> dict[str, str]:
    """What belongs to an object wherever it is."""
    names = [name for name in seen.headers if name.startswith("x-amz-meta-")]
    return {name: seen.headers[name] for name in [*names, "content-type", "content-length"]}


@parts
def test_openmoji_through_a_node(
    node: GatewayProcess, openmoji: dict[str, Path], tmp_path: Path, every: int
) -> None:
    files = dict(list(openmoji.items())[::every])
    client = node.client()
    client.create_bucket(Bucket=BUCKET)
    client.create_bucket(Bucket="other")
    put_all(client, BUCKET, files)
    listing = list_all(client, BUCKET)
    before = get_all(node.endpoint_url, BUCKET, listing)
    assert {key: seen.body for key, seen in before.items()} == {
        key: path.read_bytes() for key, path in files.items()
    }
    url, dataset = node.endpoint_url, f"s3://{BUCKET}/"

    report = packer(url, tmp_path, "pack", dataset, "--settle", 0, "--shard-size", "1MiB")["report"]
    assert report["left_out_count"] == 0
    large = [key for key, path in files.items() if path.stat().st_size > 1024**2]
    assert report["packed_objects"] == len(files) - len(large)
    assert report["shard_files"] > 1
    assert_served(node, before, listing)

    verified = packer(url, tmp_path, "verify", dataset)
    assert (verified["objects"], verified["damaged_count"]) == (report["packed_objects"], 0)
    lines = packer(url, tmp_path, "ls", dataset)
    assert {
        line["key"]: (line["size_bytes"], f'"{line["etag"]}"', line["state"]) for line in lines
    } == {
        key: (size, etag, "plain" if key in large else "packed")
        for key, (size, etag, _) in listing.items()
    }
    assert packer(url, tmp_path, "unpack", dataset, "--to", tmp_path / "out")["objects"] == len(
        files
    )
    assert_unpacked(tmp_path / "out", before)

    gone = packer(url, tmp_path, "pack", dataset, "--delete-originals")["deleted_originals"]
    assert (gone["objects"], gone["failed"]) == (report["packed_objects"], 0)
    assert originals(node).keys() <= set(large)
    assert_served(node, before, listing)
    node.stop()
    node.start()
    assert_served(node, before, listing)

    packer(url, tmp_path, "unpack", dataset, "--to", "s3://other/again/")
    others = get_all(node.endpoint_url, "other", [f"again/{key}" for key in before])
    for key, seen in before.items():
        again = others[f"again/{key}"]
        assert again.body == seen.body
        assert metadata(again) == metadata(seen)
        assert again.headers["etag"] == seen.headers["etag"]


@parts
def test_papirus_beside_a_node(
    node: GatewayProcess, papirus: Path, tmp_path: Path, every: int
) -> None:
    origin = node.folder / "origin"
    themes = ["Papirus-Dark/24x24", "Papirus-Dark/symbolic"] if every > 1 else [""]
    for theme in themes:
        shutil.copytree(papirus / theme, origin / BUCKET / theme, symlinks=True, dirs_exist_ok=True)
    files, links = files_of(origin / BUCKET), links_of(origin / BUCKET)
    assert len(links) > 1000
    listing = list_all(node.client(), BUCKET)
    # A link is no object: what it leads to may lie outside of the bucket, or change with it.
    assert listing.keys() == files.keys()
    missed = get_all(node.endpoint_url, BUCKET, list(links)[:50])
    assert {seen.status for seen in missed.values()} == {404}
    before = get_all(node.endpoint_url, BUCKET, listing)
    assert {key: seen.body for key, seen in before.items()} == {
        key: path.read_bytes() for key, path in files.items()
    }

    url, dataset = f"file://{origin}", f"s3://{BUCKET}/"
    times = {key: path.stat().st_mtime_ns // 1_000_000 for key, path in files.items()}
    report = packer(url, tmp_path, "pack", dataset, "--settle", 0, "--shard-size", "4MiB")["report"]
    assert (report["packed_objects"], report["left_out_count"]) == (len(files), 0)
    assert_served(node, before, listing)
    assert packer(url, tmp_path, "verify", dataset)["damaged_count"] == 0
    packer(url, tmp_path, "pack", dataset, "--delete-originals")
    assert not originals(node)
    # What was done beside it a node notices in time; what starts knows it at once.
    node.stop()
    node.start()
    assert_served(node, before, listing)
    packer(url, tmp_path, "unpack", dataset, "--to", tmp_path / "out")
    assert_unpacked(tmp_path / "out", before)
    again = files_of(tmp_path / "out")
    assert {key: again[key].stat().st_mtime_ns // 1_000_000 for key in files} == times


def test_papirus_with_its_links_followed_at_an_s3_service(
    moto: MotoServer, papirus: Path, tmp_path: Path
) -> None:
    folder = papirus / "Papirus-Dark" / "24x24" / "panel"
    links = dict(list(links_of(folder).items())[:100])
    files = dict(list(files_of(folder).items())[:100]) | links
    client = boto3.client(
        "s3",
        endpoint_url=moto.url,
        aws_access_key_id=_ORIGIN_KEYS[0],
        aws_secret_access_key=_ORIGIN_KEYS[1],
        region_name="us-east-1",
    )
    for bucket in (BUCKET, "other"):
        client.create_bucket(Bucket=bucket)
    put_all(client, BUCKET, files)
    listing = list_all(client, BUCKET)
    assert listing.keys() == files.keys()

    def run(*arguments: object) -> Any:
        return packer(moto.url, tmp_path, *arguments, keys=_ORIGIN_KEYS)

    dataset = f"s3://{BUCKET}/"
    report = run("pack", dataset, "--settle", 0, "--shard-size", "64KiB")["report"]
    assert (report["packed_objects"], report["left_out_count"]) == (len(files), 0)
    assert run("verify", dataset)["damaged_count"] == 0
    run("unpack", dataset, "--to", "s3://other/")
    after = list_all(client, "other")
    assert {key: (size, etag) for key, (size, etag, _) in after.items()} == {
        key: (size, etag) for key, (size, etag, _) in listing.items()
    }
    run("unpack", dataset, "--to", tmp_path / "out")
    unpacked = files_of(tmp_path / "out")
    # The name of a link holds the bytes of what it led to, as an object of its own.
    for key, path in files.items():
        assert unpacked[key].read_bytes() == path.read_bytes()
        head = client.head_object(Bucket="other", Key=key)
        assert head["Metadata"] == {"name": path.name, "bytes": str(path.stat().st_size)}
