"""Packs through real processes: killed at the worst moment, and several workers to a node."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.faulty import Fault, FlakyOrigin, flaky_origin
from tests.node.family import Family, public
from tests.node.process import GatewayProcess, s3_origin_settings
from tests.origins import MotoServer
from tests.packs.conftest import Packing
from tests.waiting import wait_until

OBJECTS = {f"p/{number:02}": bytes([number]) * 1000 * (number + 1) for number in range(30)}
NOTHING = Fault("delay", seconds=0.0)


@pytest.fixture
def flaky(moto: MotoServer) -> Iterator[FlakyOrigin]:
    with flaky_origin(moto.url) as origin:
        yield origin


@pytest.fixture
def packed(s3_packing: Packing) -> Packing:
    for key, data in OBJECTS.items():
        s3_packing.put(key, data)
    s3_packing.pack()
    s3_packing.delete_originals()
    return s3_packing


def gateway(folder: Path, url: str, bucket: str, **settings: Any) -> GatewayProcess:
    origin = s3_origin_settings(url, folder)
    told = {
        "origins": {"main": origin},
        "buckets": {bucket: {"freshness_seconds": 3600}},
        **settings,
    }
    return GatewayProcess(folder / "node", told)


def body(s3: Any, bucket: str, key: str) -> bytes:
    data: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return data


def begin(question: Any, **arguments: Any) -> threading.Thread:
    """Asks what is not going to be answered."""

    def ask() -> None:
        try:
            question(**arguments)
        except (BotoCoreError, ClientError):
            return
        raise AssertionError("it was answered")

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_node_killed_between_origin_and_log_acknowledged_nothing(
    packed: Packing, flaky: FlakyOrigin, tmp_path: Path
) -> None:
    bucket = packed.name
    node = gateway(tmp_path, flaky.url, bucket).start()
    try:
        s3 = node.client()
        assert body(s3, bucket, "p/01") == OBJECTS["p/01"]
        before = flaky.seen.requests["PutObject"]
        flaky.fail(Fault("delay", "PutObject", seconds=0.0))
        flaky.fail(Fault("stall", "PutObject"))
        asked = begin(s3.put_object, Bucket=bucket, Key="p/00", Body=b"new")
        wait_until(lambda: flaky.seen.requests["PutObject"] == before + 2)
        node.kill()
        asked.join()
        flaky.heal()
        node.start()
        s3 = node.client()
        # Not acknowledged: not there for anybody, until the next pack finds it.
        assert body(s3, bucket, "p/00") == OBJECTS["p/00"]
        s3.put_object(Bucket=bucket, Key="p/02", Body=b"acknowledged")
        node.kill()
        packed.pack()
        node.start()
        s3 = node.client()
        assert body(s3, bucket, "p/00") == b"new"
        assert body(s3, bucket, "p/02") == b"acknowledged"
        assert body(s3, bucket, "p/03") == OBJECTS["p/03"]
    finally:
        node.kill()


def test_a_node_killed_while_a_pack_comes_in_brings_it_in_again(
    packed: Packing, flaky: FlakyOrigin, tmp_path: Path
) -> None:
    bucket = packed.name
    node = gateway(tmp_path, flaky.url, bucket).start()
    try:
        # Of a manifest, an index and a shard, the second stays away, and then the third.
        for passing in (1, 2):
            before = flaky.seen.requests["GetObject"]
            flaky.fail(Fault("delay", "GetObject", seconds=0.0), times=passing)
            flaky.fail(Fault("stall", "GetObject", after_bytes=5000))
            asked = begin(node.client().get_object, Bucket=bucket, Key="p/00")
            wait_until(lambda: flaky.seen.requests["GetObject"] == before + passing + 1)  # noqa: B023
            node.kill()
            asked.join()
            flaky.heal()
            node.start()
        s3 = node.client()
        for key, data in OBJECTS.items():
            assert body(s3, bucket, key) == data
        assert not [path for path in (tmp_path / "node/cache/packs").iterdir() if _coming(path)]
    finally:
        node.kill()


def _coming(path: Path) -> bool:
    return path.suffix != ".lmdb"


def test_workers_read_write_and_list_packed_keys_as_one_node(
    packed: Packing, moto: MotoServer, tmp_path: Path
) -> None:
    bucket = packed.name
    settings = public(**{bucket: {"freshness_seconds": 3600}})
    node = gateway(tmp_path, moto.url, bucket, **settings).start()
    family = Family(node)
    try:
        s3 = node.client()
        with family.clients() as clients:
            for client in clients:
                for key, data in OBJECTS.items():
                    assert client.get(f"/{bucket}/{key}")[:2] == (200, data)
            for round_ in range(3):
                s3.put_object(Bucket=bucket, Key="p/00", Body=b"new %d" % round_)
                s3.delete_object(Bucket=bucket, Key=f"p/{20 + round_}")
                tagged = {"TagSet": [{"Key": "a", "Value": str(round_)}]}
                s3.put_object_tagging(Bucket=bucket, Key="p/05", Tagging=tagged)
                for client in clients:
                    assert client.get(f"/{bucket}/p/00")[1] == b"new %d" % round_
                    assert client.get(f"/{bucket}/p/{20 + round_}")[0] == 404
                    assert client.get(f"/{bucket}/p/05")[:2] == (200, OBJECTS["p/05"])
                listed = s3.list_objects_v2(Bucket=bucket, Prefix="p/")
                assert listed["KeyCount"] == len(OBJECTS) - round_ - 1
            first, other = clients
            data = OBJECTS["p/29"]
            for client in (first, other):
                status, some, _ = client.get(f"/{bucket}/p/29", Range="bytes=10-99")
                assert (status, some) == (206, data[10:100])
    finally:
        node.kill()
