"""Nodes over buckets that are packed beside them, by the real packer."""

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.tiers.packed import known
from packer.drop import drop
from packer.format import Place
from packer.originals import delete_originals
from packer.pack import Options, Report, pack
from packer.progress import Silent
from packer.stores.choice import Dataset, open_store
from packer.stores.protocol import Store
from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer, moto_server
from tests.packs.bench import Bench
from tests.s3.running import Running, call, client_of, running


class Packing:
    """A bucket at its origin, and the packer there."""

    def __init__(self, store: Store, folder: Path, origin: dict[str, Any], behind: Any) -> None:
        self.store = store
        self.folder = folder
        # The origin as a node's configuration names it, and a client of it, if it has clients.
        self.origin = origin
        self.behind = behind

    @property
    def name(self) -> str:
        return self.store.bucket

    def put(self, key: str, data: bytes, **headers: str) -> None:
        """Writes an object past the gateway; `content_type="a/b"` is a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.behind is None:
            path = self.folder / "data" / self.name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            self.store.put(key, data, headers=named)

    def pack(self, prefix: str = "p/", **changes: Any) -> Report:
        """Packs beside the gateway; small shards, no waiting."""
        options: dict[str, Any] = {
            "dataset": Dataset(self.name, prefix),
            "folder": self.folder / "spool",
            "shard_bytes": 64 * 1024,
            "jobs": 4,
            "settle_seconds": 0.0,
            **changes,
        }
        return pack(self.store, Options(**options), Silent())

    def delete_originals(self, prefix: str = "p/") -> int:
        """Deletes what is packed from where it was; how many."""
        spool = self.folder / "spool"
        return delete_originals(self.store, Place(prefix), spool, Silent()).objects

    def drop(self, prefix: str = "p/") -> None:
        drop(self.store, Place(prefix), self.folder / "spool", force=False)

    def keys(self, prefix: str = "p/") -> list[str]:
        """What lies at the origin."""
        return [item.key for item in self.store.listing(prefix)]

    def close(self) -> None:
        self.store.close()
        if self.behind is not None:
            self.behind.close()

    @asynccontextmanager
    async def node(self, name: str = "node", **how: Any) -> AsyncIterator[Running]:
        """A node over the bucket, with a cache of its own."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        how.setdefault("buckets", {self.name: {"freshness_seconds": 3600}})
        async with running(folder, origin=self.origin, **how) as started:
            yield started


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """One S3 service; its tests share no bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(params=["s3", "directory"])
def packing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Packing]:
    """An empty bucket of each kind."""
    made = _in_directory(tmp_path)
    if request.param == "s3":
        made = _at_moto(request.getfixturevalue("moto"), tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def s3_packing(
    moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Packing]:
    """An empty bucket at an S3 service."""
    made = _at_moto(moto, tmp_path, monkeypatch)
    yield made
    made.close()


def _in_directory(folder: Path) -> Packing:
    root = folder / "data"
    (root / "bucket").mkdir(parents=True)
    store = open_store("bucket", f"file://{root}", None)
    return Packing(store, folder, {"type": "directory", "path": str(root)}, None)


def _at_moto(server: MotoServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Packing:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY.reveal())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"b{secrets.token_hex(6)}"
    behind = client_of(server.url, ACCESS_KEY)
    behind.create_bucket(Bucket=name)
    secret = folder / "origin-secret"
    secret.write_text(SECRET_KEY.reveal())
    origin = {
        "type": "s3",
        "endpoint_url": server.url,
        "access_key": ACCESS_KEY,
        "secret_key_file": str(secret),
        "addressing": "path",
    }
    return Packing(open_store(name, server.url, None), folder, origin, behind)


async def everything(node: Running, bucket: str, prefix: str = "") -> dict[str, dict[str, Any]]:
    """What a client sees: each key of the listing, with all that a GET says of it."""
    s3 = node.client()
    seen: dict[str, dict[str, Any]] = {}
    token: dict[str, str] = {}
    while True:
        page = await call(s3.list_objects_v2, Bucket=bucket, Prefix=prefix, MaxKeys=7, **token)
        for entry in page.get("Contents", ()):
            got = await call(s3.get_object, Bucket=bucket, Key=entry["Key"])
            headers = got["ResponseMetadata"]["HTTPHeaders"]
            seen[entry["Key"]] = {
                "body": Digest(await call(got["Body"].read)),
                "listed": (entry["Size"], entry["ETag"], entry["LastModified"]),
                "headers": {
                    name: value
                    for name, value in headers.items()
                    if not name.startswith("x-feedrack") and name not in OF_THE_ANSWER
                },
            }
        if not page["IsTruncated"]:
            s3.close()
            return seen
        token = {"ContinuationToken": page["NextContinuationToken"]}


class Digest:
    """Bytes that compare by their hash, so that a failing test says little."""

    def __init__(self, data: bytes) -> None:
        self._known = len(data), hashlib.sha256(data).hexdigest()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bytes):
            other = Digest(other)
        return isinstance(other, Digest) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    def __repr__(self) -> str:
        return f"{self._known[0]} bytes {self._known[1][:8]}"


# The last are moto's alone: it takes headers of an upload for the object's, and says the type of a
# checksum to HeadObject only.
OF_THE_ANSWER = {"date", "x-amz-request-id", "x-amz-id-2", "connection", "server"} | {
    "x-amz-content-sha256",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-checksum-type",
}


def differences(seen: Any, expected: Any, at: str = "") -> list[str]:
    """Where two nested answers differ, in a few words."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        return [
            line
            for name in sorted({*seen, *expected})
            for line in differences(seen.get(name), expected.get(name), f"{at} {name[:40]}")
        ]
    return [] if seen == expected else [f"{at}: {seen!r} instead of {expected!r}"]


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """An empty directory for nodes and a packer, who wait for nothing."""
    monkeypatch.setattr(known, "_SETTLED_SECONDS", 0.0)
    made = Bench(tmp_path)
    await made.start()
    yield made
    await made.stop()
