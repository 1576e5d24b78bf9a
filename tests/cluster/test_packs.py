"""Keys of a pack, written through one node and read through another: at once, and by every way."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import feedrack
from tests.cluster.conftest import absent
from tests.cluster.fleet import Fleet
from tests.cluster.services import redis_server
from tests.node.process import ACCESS_KEY, SECRET_KEY
from tests.node.real_files import PACKER
from tests.waiting import wait_until

OBJECTS = {f"p/{number:03}": b"first %02d " % number * 8000 for number in range(40)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two nodes over one packed prefix, its originals deleted; each has read from the pack."""
    if redis_server() is None:
        absent("redis", "redis-server is not installed")
    folder: Path = tmp_path_factory.mktemp("packs")
    with Fleet(folder, racks=("r1", "r2"), origin="directory") as made:
        client = made.client(0)
        for key, body in OBJECTS.items():
            client.put_object(Bucket="train", Key=key, Body=body)
        packed = subprocess.run(
            [
                str(PACKER), "pack", "s3://train/p/", "--settle", "0", "--endpoint-url",
                made.node(0).endpoint_url, "--delete-originals",
            ],
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip
        assert packed.returncode == 0, packed.stderr
        assert not list((made.origin_folder / "train" / "p").glob("0*")), "nothing was packed"
        for number in (0, 1):
            reader = made.client(number)
            wait_until(partial(_is_packed, reader))
        yield made


def _is_packed(client: Any) -> bool:
    """Whether the pack answers: nothing is left of the originals."""
    first = sorted(OBJECTS)[0]
    got = client.get_object(Bucket="train", Key=first)
    return bool(got["Body"].read() == OBJECTS[first])


def read(fleet: Fleet, number: int, key: str) -> bytes:
    answer = fleet.client(number).get_object(Bucket="train", Key=key)
    return bytes(answer["Body"].read())


def test_a_packed_key_written_through_one_node_is_read_through_the_other_at_once(
    fleet: Fleet,
) -> None:
    for round_ in range(10):
        key = f"p/{round_:03}"
        assert read(fleet, 1, key) == OBJECTS[key]
        fleet.client(0).put_object(Bucket="train", Key=key, Body=b"second")
        assert read(fleet, 1, key) == b"second"
        assert read(fleet, 0, key) == b"second"


def test_a_packed_key_deleted_through_one_node_is_gone_on_the_other_at_once(fleet: Fleet) -> None:
    for round_ in range(10, 15):
        key = f"p/{round_:03}"
        assert read(fleet, 0, key) == OBJECTS[key]
        fleet.client(1).delete_object(Bucket="train", Key=key)
        client = fleet.client(0)
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket="train", Key=key)


def test_a_listing_shows_at_once_what_was_written_under_a_pack_through_the_other(
    fleet: Fleet,
) -> None:
    def keys(number: int) -> set[str]:
        page = fleet.client(number).list_objects_v2(Bucket="train", Prefix="p/")
        return {entry["Key"] for entry in page["Contents"]}

    for round_ in range(5):
        before = keys(1)
        fleet.client(0).put_object(Bucket="train", Key=f"p/new{round_}", Body=b"new")
        assert keys(1) == before | {f"p/new{round_}"}
        fleet.client(0).delete_object(Bucket="train", Key=f"p/{20 + round_:03}")
        assert f"p/{20 + round_:03}" not in keys(1)


def test_tags_written_through_one_node_are_seen_through_the_other_at_once(fleet: Fleet) -> None:
    key = "p/026"
    assert fleet.client(1).get_object_tagging(Bucket="train", Key=key)["TagSet"] == []
    tags = [{"Key": "split", "Value": "train"}]
    fleet.client(0).put_object_tagging(Bucket="train", Key=key, Tagging={"TagSet": tags})
    assert fleet.client(1).get_object_tagging(Bucket="train", Key=key)["TagSet"] == tags


def test_a_reader_that_maps_shards_on_one_node_sees_writes_through_the_other_at_once(
    fleet: Fleet,
) -> None:
    dataset = feedrack.open_dataset(
        "s3://train/p/",
        endpoint_url=fleet.node(1).endpoint_url,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )
    with dataset:
        near = dataset.near
        assert near is not None
        position = dataset.keys.index("p/039")

        def maps() -> bool:
            dataset.read_batch(range(len(dataset)))
            near.ask()
            found = near.read([position])
            return found is not None and found[0] is not None

        wait_until(maps, "something is handed over")
        for round_ in range(30, 36):
            key = f"p/{round_:03}"
            assert dataset.read_batch([key]) == [OBJECTS[key]]
            fleet.client(0).put_object(Bucket="train", Key=key, Body=b"third")
            assert dataset.read_batch([key]) == [b"third"]
        wait_until(maps, "something is mapped again once the writes are over")
