"""Objects to read: at moto, and behind a gateway."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from feedrack import Dataset, open_dataset
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.origins import MotoServer, moto_server

OBJECTS = {
    f"p/{number:03}/ü {number}.bin": random.Random(number).randbytes(number * 7)
    for number in range(40)
}


class Served:
    """A bucket "train" with OBJECTS under `p/`, and more beside it."""

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self.s3: Any = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def open(self, prefix: str = "p/", **options: Any) -> Dataset:
        """The dataset of a prefix."""
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
        return open_dataset(
            f"s3://train/{prefix}", endpoint_url=self.url, region="us-east-1", **keys | options
        )

    def fill(self) -> "Served":
        self.s3.create_bucket(Bucket="train")
        for key, data in {**OBJECTS, "q/1": b"q", "p/folder/": b""}.items():
            self.s3.put_object(Bucket="train", Key=key, Body=data)
        return self


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    node = GatewayProcess(tmp_path_factory.mktemp("gateway")).start()
    yield node
    node.kill()


@pytest.fixture(scope="session")
def at_moto(moto: MotoServer) -> Iterator[Served]:
    served = Served(moto.url, "moto").fill()
    yield served
    served.s3.close()


@pytest.fixture(scope="session")
def at_gateway(gateway: GatewayProcess) -> Iterator[Served]:
    served = Served(gateway.endpoint_url, "gateway").fill()
    yield served
    served.s3.close()


@pytest.fixture(params=["moto", "gateway"])
def served(request: pytest.FixtureRequest) -> Served:
    """The same objects at each kind of endpoint; tests leave them as they are."""
    found: Served = request.getfixturevalue(f"at_{request.param}")
    return found


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test finds this machine's own keys."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
