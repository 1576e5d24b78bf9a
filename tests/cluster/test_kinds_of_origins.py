"""Cold starts over an S3 service, and of packed objects."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from packer.format import PACKS
from packer.pack import Options, pack
from packer.progress import Silent
from packer.stores.choice import Dataset, open_store
from tests.cluster.running import CHUNK_BYTES, Cluster, cluster
from tests.cluster.test_reading_near import RACKS, put
from tests.node.process import s3_origin_settings
from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer, moto_server
from tests.packs.bench import Watched


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def bucket(moto: MotoServer) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=moto.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY.reveal(),
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="train")
    yield client
    client.close()
    moto.reset()


@pytest.fixture
async def six(tmp_path: Path, moto: MotoServer) -> AsyncIterator[Cluster]:
    settings = {"origins": {"main": s3_origin_settings(moto.url, tmp_path)}}
    async with cluster(tmp_path, RACKS, settings) as made:
        yield made


async def test_a_cold_start_over_an_s3_service_reads_everything_once(
    six: Cluster, bucket: Any
) -> None:
    bodies = {
        "large": random.Random(1).randbytes(5 * CHUNK_BYTES + 99),
        **{f"small{n}": random.Random(n).randbytes(2000) for n in range(10)},
    }
    for key, body in bodies.items():
        bucket.put_object(Bucket="train", Key=key, Body=body)
    found = await asyncio.gather(*(each.read(key) for each in six.nodes for key in bodies))
    assert found == list(bodies.values()) * 6
    assert six.origin_bytes() == sum(map(len, bodies.values()))
    assert six.origin_gets() == 6 + 10


async def test_an_s3_service_is_asked_for_an_objects_checksums_once(
    six: Cluster, bucket: Any
) -> None:
    bodies = {f"small{n}": random.Random(n).randbytes(2000) for n in range(10)}
    bodies["large"] = random.Random(1).randbytes(3 * CHUNK_BYTES)
    for key, body in bodies.items():
        bucket.put_object(Bucket="train", Key=key, Body=body)
    found = await asyncio.gather(
        *(each.read(key, checksums=True) for each in six.nodes for key in bodies for _ in range(4))
    )
    assert found == [body for _ in six.nodes for body in bodies.values() for _ in range(4)]
    # Ranged answers do not carry them: a HEAD each, however many ask.
    assert (six.origin_gets(), six.origin_requests()) == (3 + 10, 3 + 10 + 11)


@pytest.mark.parametrize("nodes", [1, 6])
async def test_a_cold_start_of_packed_objects_reads_every_shard_once(
    tmp_path: Path, nodes: int
) -> None:
    bodies = {f"p/{n:04}": put(tmp_path, f"p/{n:04}", 5000) for n in range(200)}
    store = open_store("train", f"file://{tmp_path / 'origin'}", None)
    pack(
        store,
        Options(
            dataset=Dataset("train", "p/"),
            folder=tmp_path / "spool",
            shard_bytes=256 * 1024,
            jobs=2,
            settle_seconds=0.0,
        ),
        Silent(),
    )
    shards = [item.key for item in store.listing(PACKS) if "/shards/" in item.key]
    assert len(shards) > 3
    store.close()
    racks = dict(list(RACKS.items())[:nodes])
    async with cluster(tmp_path, racks) as made:
        watched = []
        for each in made.nodes:
            packed: Any = each.node.origins["main"]
            packed._origin = Watched(packed._origin)
            watched.append(packed._origin)
        found = await asyncio.gather(*(each.read(key) for each in made.nodes for key in bodies))
        assert found == list(bodies.values()) * nodes
        for shard in shards:
            assert sum(each.count("open", shard) for each in watched) == 1
        assert not sum(each.count("open", "p/") for each in watched)
