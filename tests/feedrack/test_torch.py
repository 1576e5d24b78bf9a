"""PyTorch's DataLoader reads our datasets, a batch in one request, in any number of workers."""

import importlib.util
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from feedrack import MissingObject, WrongAddress, open_dataset
from feedrack import torch as feedrack_torch
from feedrack.torch import MapDataset, StreamDataset
from tests.feedrack.conftest import OBJECTS, Served
from tests.feedrack.endpoint import Asked, Reply, batch_reply, scripted
from tests.feedrack.loading import as_list, named

# Sixteen workers are what a training machine has, and more than this one has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
KEYS = sorted(OBJECTS, key=str.encode)
_HERE = importlib.util.find_spec("torch") is not None


@pytest.fixture
def loader() -> Any:
    """torch.utils.data.DataLoader, or a skip; a failure if REQUIRE names torch."""
    if not _HERE:
        if "torch" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names torch, and it is not installed")
        pytest.skip("torch is not installed")
    from torch.utils.data import DataLoader

    return DataLoader


@pytest.mark.skipif(_HERE, reason="torch is installed")
def test_without_torch_the_module_says_what_is_missing(at_gateway: Served) -> None:
    with at_gateway.open() as dataset:
        for kind in (MapDataset, StreamDataset):
            with pytest.raises(ImportError, match=r"pip install feedrack\[torch\]"):
                kind(dataset)


def test_the_module_is_not_what_loads_torch_for_others() -> None:
    code = "import sys, feedrack; sys.exit('torch' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert feedrack_torch.__doc__


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), (16, "fork"), (2, "spawn")]
)
def test_a_loader_reads_a_map(at_gateway: Served, loader: Any, workers: int, method: Any) -> None:
    with at_gateway.open() as dataset:
        found = loader(
            MapDataset(dataset, named),
            batch_size=7,
            num_workers=workers,
            multiprocessing_context=method,
            collate_fn=as_list,
        )
        assert [sample for batch in found for sample in batch] == [
            (key, len(OBJECTS[key])) for key in KEYS
        ]
        shuffled = loader(MapDataset(dataset), batch_size=7, shuffle=True, collate_fn=as_list)
        assert sorted(sample for batch in shuffled for sample in batch) == sorted(OBJECTS.values())
        assert MapDataset(dataset)[3] == OBJECTS[KEYS[3]]
        assert len(MapDataset(dataset)) == len(KEYS)


def test_a_batch_of_a_loader_is_one_request(loader: Any) -> None:
    objects = {f"k{number:02}": bytes([number]) for number in range(20)}
    listing = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z"
        "</LastModified></Contents>"
        for key in objects
    )

    def script(asked: Asked) -> Reply:
        if asked.method == "POST":
            return batch_reply(asked, objects)
        body = f"<ListBucketResult>{listing}</ListBucketResult>".encode()
        return Reply(200, body, {"x-feedrack-node": "n1"})

    with (
        scripted(script) as endpoint,
        open_dataset(
            "s3://train/", endpoint_url=endpoint.url, anonymous=True, short_circuit=False
        ) as dataset,
    ):
        batches = list(loader(MapDataset(dataset), batch_size=5, collate_fn=as_list))
        assert batches == [list(objects.values())[start : start + 5] for start in range(0, 20, 5)]
        assert [asked.method for asked in endpoint.asked] == ["GET", *["POST"] * 4]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("order", ["lexical", "shuffled:3", [5, 1, 1, 30, 2, 2, 9]])
def test_a_stream_keeps_its_order_over_workers(
    at_gateway: Served, loader: Any, workers: int, order: Any
) -> None:
    with at_gateway.open() as dataset:
        stream = StreamDataset(dataset, named, order=order, batch_size=4, ahead=2)
        found = loader(stream, batch_size=4, num_workers=workers, collate_fn=as_list)
        keys = [key for batch in found for key, _ in batch]
        assert keys == [key for key, _ in dataset.items(order)]
        assert len(found.dataset) == len(keys)


def test_ranks_read_everything_once_and_as_much_as_each_other(
    at_gateway: Served, loader: Any
) -> None:
    with at_gateway.open() as dataset:
        shares = []
        for rank in range(3):
            stream = StreamDataset(
                dataset,
                named,
                order="shuffled:1",
                batch_size=4,
                rank=rank,
                world_size=3,
                even=False,
            )
            batches = loader(stream, batch_size=4, num_workers=2, collate_fn=as_list)
            shares.append([key for batch in batches for key, _ in batch])
        assert sorted([*shares[0], *shares[1], *shares[2]], key=str.encode) == KEYS
        even = [len(StreamDataset(dataset, rank=rank, world_size=3)) for rank in range(3)]
        assert even == [13, 13, 13]
        with pytest.raises(WrongAddress):
            StreamDataset(dataset, rank=3, world_size=3)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_epoch_has_its_own_order_in_every_worker(
    at_gateway: Served, loader: Any, persistent: bool, method: str
) -> None:
    with at_gateway.open() as dataset:
        stream = StreamDataset(dataset, named, order="shuffled:1", batch_size=4)
        found = loader(
            stream,
            batch_size=4,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context=method,
            collate_fn=as_list,
        )
        epochs = []
        for epoch in (0, 1, 2, 0):
            stream.set_epoch(epoch)
            epochs.append([key for batch in found for key, _ in batch])
        assert epochs[0] == epochs[3]
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert all(sorted(epoch, key=str.encode) == KEYS for epoch in epochs)
        stream.set_epoch(2)
        assert [key for key, _ in pickle.loads(pickle.dumps(stream))] == epochs[2]


def test_an_error_in_a_worker_comes_out_as_what_it_is(at_gateway: Served, loader: Any) -> None:
    at_gateway.s3.put_object(Bucket="train", Key="gone/1", Body=b"x")
    with at_gateway.open("gone/") as dataset:
        at_gateway.s3.delete_object(Bucket="train", Key="gone/1")
        with pytest.raises(MissingObject, match="gone/1"):
            list(loader(MapDataset(dataset), num_workers=1, multiprocessing_context="spawn"))
