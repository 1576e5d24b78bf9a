"""Real small files in buckets, and all that a client can see of them, to be held side by side."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from tests.node.process import ACCESS_KEY, SECRET_KEY

FETCHED = Path(__file__).parents[2] / ".tools" / "real-files"
PACKER = Path(sys.executable).parent / "packer"
# What differs from one answer to the next of the very same object.
_PASSING = ("date", "server", "connection", "x-amz-request-id", "x-amz-id-2", "x-feedrack-")


class Seen(NamedTuple):
    """An object as GET answers it."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def modified_seconds(self) -> float:
        found = parsedate_tz(self.headers["last-modified"])
        assert found is not None
        return mktime_tz(found)


def files_of(root: Path) -> dict[str, Path]:
    """The plain files under a folder by their relative paths, links left out."""
    return {
        str(path.relative_to(root)): path
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def links_of(root: Path) -> dict[str, Path]:
    """The links under a folder that lead to files, by their relative paths."""
    return {
        str(path.relative_to(root)): path
        for path in sorted(root.rglob("*"))
        if path.is_symlink() and path.is_file()
    }


def get_all(endpoint_url: str, bucket: str, keys: Iterable[str]) -> dict[str, Seen]:
    """GETs keys of a public bucket over connections that stay open."""
    host = urlsplit(endpoint_url).netloc

    def get(some: list[str]) -> dict[str, Seen]:
        connection = http.client.HTTPConnection(host, timeout=60)
        found = {}
        for key in some:
            connection.request("GET", f"/{bucket}/{quote(key)}")
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            kept = {name: headers[name] for name in headers if not name.startswith(_PASSING)}
            found[key] = Seen(answer.status, answer.read(), kept)
        connection.close()
        return found

    wanted = list(keys)
    with ThreadPoolExecutor(4) as threads:
        parts = threads.map(get, [wanted[first::4] for first in range(4)])
        return {key: seen for part in parts for key, seen in part.items()}


def list_all(client: Any, bucket: str, prefix: str = "") -> dict[str, tuple[int, str, str]]:
    """What ListObjectsV2 says of every key, in its order."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {
        item["Key"]: (item["Size"], item["ETag"], item["LastModified"].isoformat())
        for page in pages
        for item in page.get("Contents", ())
    }


def put_all(client: Any, bucket: str, files: Mapping[str, Path]) -> None:
    """Uploads files under their names, with a type and metadata of their own."""

    def put(item: tuple[str, Path]) -> None:
        key, path = item
        kind = {".svg": "image/svg+xml", ".json": "application/json"}.get(path.suffix)
        client.put_object(
            Bucket=bucket,
            Key=key,
            Body=path.read_bytes(),
            ContentType=kind or "text/plain",
            Metadata={"name": path.name, "bytes": str(path.stat().st_size)},
        )

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(put, files.items()):
            pass


def packer(
    endpoint_url: str,
    spool: Path,
    *arguments: object,
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY),
) -> Any:
    """What `packer` says in JSON; an assertion with its errors where it fails."""
    way = ("--endpoint-url", endpoint_url, "--spool", str(spool), "--json")
    done = subprocess.run(
        [str(PACKER), *map(str, arguments), *way],
        capture_output=True,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": keys[0],
            "AWS_SECRET_ACCESS_KEY": keys[1],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.splitlines()
    return [msgspec.json.decode(line) for line in lines] if arguments[0] == "ls" else (
        msgspec.json.decode(done.stdout)
    )  # fmt: skip
