"""Buckets to pack: at moto, behind a gateway, in a directory."""

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from packer.catalog import load_pack
from packer.format import Manifest, Place
from packer.pack import Options, Report, pack
from packer.progress import Silent
from packer.stores.choice import Dataset, open_store
from packer.stores.protocol import Deletion, Store
from packer.stores.s3 import S3Store
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.origins import MotoServer, moto_server
from tests.packer.memory import MemoryStore


class Bucket:
    """A bucket of one test: its store, and how a command reaches it."""

    def __init__(self, store: Store, endpoint_url: str, folder: Path) -> None:
        self.store = store
        self.endpoint_url = endpoint_url
        self.folder = folder

    @property
    def name(self) -> str:
        return self.store.bucket

    def put(self, key: str, data: bytes, **headers: str) -> None:
        """Writes an object; `content_type="a/b"` is a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.store.put(key, data, headers=named)

    def remove(self, key: str) -> None:
        """Deletes an object."""
        assert not self.store.delete([Deletion(key)])

    def options(self, prefix: str = "p/", **changes: object) -> Options:
        """How tests pack: small shards, no waiting."""
        chosen: dict[str, object] = {
            "dataset": Dataset(self.name, prefix),
            "folder": self.folder / "spool",
            "shard_bytes": 64 * 1024,
            "jobs": 4,
            "settle_seconds": 0.0,
        }
        return Options(**{**chosen, **changes})  # type: ignore[arg-type]

    def pack(self, prefix: str = "p/", **changes: object) -> Report:
        """Packs."""
        return pack(self.store, self.options(prefix, **changes), Silent())

    def manifest(self, prefix: str = "p/") -> Manifest:
        """The manifest of the pack there is."""
        return load_pack(self.store, Place(prefix))

    def keys(self, prefix: str = "") -> list[str]:
        """What is listed, packs included."""
        return [item.key for item in self.store.listing(prefix)]


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """One S3 service; its tests share no bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One node over a directory; its tests share no bucket."""
    node = GatewayProcess(tmp_path_factory.mktemp("gateway")).start()
    yield node
    node.kill()


def made(endpoint_url: str) -> Store:
    """A new bucket at an endpoint."""
    store = open_store(f"b{secrets.token_hex(6)}", endpoint_url, None)
    assert isinstance(store, S3Store)
    answer = store._client.ask("PUT", None)
    assert answer.status == 200, answer
    return store


@pytest.fixture
def keys_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of the environment, as every S3 tool finds them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def s3_bucket(moto: MotoServer, keys_of_aws: None, tmp_path: Path) -> Iterator[Bucket]:
    """A bucket at moto."""
    with closing(made(moto.url)) as store:
        yield Bucket(store, moto.url, tmp_path)


@pytest.fixture(params=["moto", "gateway", "directory"])
def served_bucket(
    request: pytest.FixtureRequest, keys_of_aws: None, tmp_path: Path
) -> Iterator[Bucket]:
    """An empty bucket of each kind that another process can reach."""
    with bucket_of(request.param, request, tmp_path) as found:
        yield found


@pytest.fixture(params=["moto", "gateway", "directory", "memory"])
def bucket(request: pytest.FixtureRequest, keys_of_aws: None, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket of each kind."""
    with bucket_of(request.param, request, tmp_path) as found:
        yield found


@contextmanager
def bucket_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket of a kind."""
    if kind == "memory":
        yield Bucket(MemoryStore(), "", tmp_path)
    elif kind == "directory":
        (tmp_path / "origin" / "bucket").mkdir(parents=True)
        url = f"file://{tmp_path}/origin"
        yield Bucket(open_store("bucket", url, None), url, tmp_path)
    else:
        server = request.getfixturevalue(kind)
        url = server.url if kind == "moto" else server.endpoint_url
        with closing(made(url)) as store:
            yield Bucket(store, url, tmp_path)
