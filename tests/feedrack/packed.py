"""A gateway over a packed bucket, and readers on its machine."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedrack import Dataset, open_dataset
from packer.drop import drop
from packer.format import Place
from packer.pack import Options, pack
from packer.progress import Silent
from packer.stores.choice import Dataset as PackedDataset
from packer.stores.choice import open_store
from tests.node.process import ACCESS_KEY, SECRET_KEY, GatewayProcess
from tests.waiting import wait_until

# Some shards, each larger than what the cache keeps as a small object.
OBJECTS = {
    f"p/{number:03}.bin": random.Random(number).randbytes(2000 + 7 * number)
    for number in range(400)
}
KEYS = sorted(OBJECTS)


class PackedNode:
    """A started node over a directory with the bucket "train", packed under `p/`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        chosen = {
            "buckets": {"train": {"freshness_seconds": 3600}},
            "cache": {"small_object_limit": "64KiB"},
            **(settings or {}),
        }
        self.process = GatewayProcess(folder, chosen)
        self.folder = folder
        for key, data in OBJECTS.items():
            self.put_behind(key, data)
        self.pack()
        self.process.start()
        self.s3 = self.process.client()

    def put_behind(self, key: str, data: bytes) -> None:
        """Writes past the gateway."""
        path = self.folder / "origin" / "train" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def pack(self) -> None:
        """Packs what is there, or packs it again."""
        store = open_store("train", f"file://{self.folder / 'origin'}", None)
        options = Options(
            dataset=PackedDataset("train", "p/"),
            folder=self.folder / "spool",
            shard_bytes=384 * 1024,
            jobs=2,
            settle_seconds=0.0,
        )
        pack(store, options, Silent())
        store.close()

    def drop(self) -> None:
        """Removes the pack."""
        store = open_store("train", f"file://{self.folder / 'origin'}", None)
        drop(store, Place("p/"), self.folder / "spool", force=False)
        store.close()

    def put(self, key: str, data: bytes) -> None:
        """Writes through the gateway."""
        self.s3.put_object(Bucket="train", Key=key, Body=data)

    def open(self, prefix: str = "p/", **options: Any) -> Dataset:
        """The dataset, as it is found."""
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
        return open_dataset(
            f"s3://train/{prefix}", endpoint_url=self.process.endpoint_url, **keys | options
        )

    def warm(self, **options: Any) -> Dataset:
        """The dataset once all its shards are mapped."""
        dataset = self.open(**options)
        wait_until(lambda: self._mapped(dataset))
        return dataset

    def _mapped(self, dataset: Dataset) -> bool:
        dataset.read_batch(range(len(dataset)))
        assert dataset.near is not None
        dataset.near.ask()
        found = dataset.near.read(range(len(dataset)))
        return found is not None and None not in found

    def requests(self) -> float:
        """GETs of objects that the gateway has answered, one or many at a time."""
        return self.process.counter(
            "feedrack_requests_total", operation="GetObjects"
        ) + self.process.counter("feedrack_requests_total", operation="GetObject")

    def close(self) -> None:
        self.s3.close()
        self.process.kill()


def is_near(dataset: Dataset) -> bool:
    """Whether reads come out of mapped shards just now."""
    assert dataset.near is not None
    return dataset.near.read([0, 1, 2, 3]) is not None
