"""A dataset's batches come by RDMA where they can, and nobody notices."""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from feedrack import Dataset, MissingBucket, MissingObject, open_dataset
from feedrack.rdma import opening
from feedrack.rdma.arenas import BatchReader
from feedrack.rdma.moving import Counts
from feedrack.reading import Outcome, Reader
from gateway.rdma import verbs
from gateway.rdma.device import RdmaUnavailable
from tests.feedrack.rdma.ends import reach
from tests.feedrack.rdma.node import OPTIONS, RdmaNode, rdma_node
from tests.rdma.soft import Fabric, SoftDevice, SoftRegistration

OBJECTS = {f"p/{number:03}.bin": os.urandom(number * 1_009) for number in range(60)}
KEYS = sorted(OBJECTS)
EXPECTED = [OBJECTS[key] for key in KEYS]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaNode]:
    with rdma_node(tmp_path_factory.mktemp("node"), Fabric(), transfer_timeout_seconds=1) as node:
        for key, data in OBJECTS.items():
            node.put(key, data)
        yield node


@pytest.fixture
def node(shared: RdmaNode, monkeypatch: pytest.MonkeyPatch) -> RdmaNode:
    """A gateway that this process reaches by RDMA."""
    reach(shared.fabric, monkeypatch)
    return shared


def opened(node: RdmaNode, **options: Any) -> Dataset:
    return open_dataset("s3://train/p/", endpoint_url=node.url, **{**OPTIONS, **options})


@pytest.fixture
def dataset(node: RdmaNode) -> Iterator[Dataset]:
    with opened(node) as dataset:
        yield dataset


@pytest.fixture
def plain(node: RdmaNode) -> Iterator[Dataset]:
    with opened(node, rdma=False) as dataset:
        yield dataset


def reader_of(dataset: Dataset) -> Reader:
    return dataset._reader


def counts(dataset: Dataset) -> Counts:
    counts = dataset.rdma_counts
    assert counts is not None
    return counts


def alike(outcomes: Sequence[Outcome]) -> list[object]:
    """Outcomes, so that those of two ways can be held against each other."""
    return [one if isinstance(one, bytes) else (type(one), str(one), one.key) for one in outcomes]


def test_batches_come_by_rdma(dataset: Dataset, node: RdmaNode) -> None:
    for _ in range(2):
        assert dataset.read_batch(range(60)) == EXPECTED
    assert dataset.read_batch([5, 3, 5, "p/000.bin"]) == [*(EXPECTED[n] for n in (5, 3, 5)), b""]
    assert counts(dataset).transfers == 3
    assert counts(dataset).fallbacks == {}
    assert [data for _, data in dataset.items("shuffled:7", batch_size=16)] != EXPECTED
    assert sorted(key for key, _ in dataset.items("shuffled:7")) == KEYS


def test_all_is_as_it_is_over_http(dataset: Dataset, plain: Dataset) -> None:
    mixed: list[int | str] = ["p/003.bin", "p/gone", 4, "p/gone2"]
    for which in ([*range(60)], [7], mixed, [3, 3, 3]):
        assert alike(dataset.read_each(which)) == alike(plain.read_each(which))
        assert plain.rdma_counts is None
    keys = [*KEYS[:10], "p/000.bin", "p/010.bin"]
    ranges = [None, *["bytes=3-9"] * 9, "bytes=5-9", "bytes=99999-"]
    both = [alike(reader_of(one).read_each(keys, ranges)) for one in (dataset, plain)]
    assert both[0] == both[1]
    for one in (dataset, plain):
        with pytest.raises(MissingObject) as caught:
            one.read_batch([1, "p/gone"])
        assert caught.value.key == "p/gone"
    assert counts(dataset).transfers >= 4
    assert counts(dataset).fallbacks == {}


def test_a_bucket_that_is_not_there_is_the_same_error(node: RdmaNode) -> None:
    def refused(rdma: bool) -> tuple[type[BaseException], str]:
        reader = Reader("nowhere", dataset_access(node, rdma=rdma))
        with pytest.raises(MissingBucket) as caught:
            reader.read_each(["a", "b"])
        reader.close()
        return caught.type, str(caught.value)

    assert refused(rdma=True) == refused(rdma=False)


def dataset_access(node: RdmaNode, **how: Any) -> Any:
    with opened(node) as dataset:
        return dataset._access._replace(**how)


def test_a_batch_larger_than_the_memory_comes_in_parts(node: RdmaNode) -> None:
    reader = Reader("train", dataset_access(node))
    rdma = reader._rdma = BatchReader(reader.client, first_bytes=100_000, largest_bytes=400_000)
    assert reader.read_each(KEYS) == EXPECTED
    first = rdma.counts.transfers
    assert first >= 5
    # It knows by now how much a batch needs.
    assert reader.read_each(KEYS) == EXPECTED
    assert rdma.counts.transfers - first < first
    assert rdma.counts.fallbacks == {}
    reader.close()


def test_an_object_larger_than_all_memory_comes_over_http(node: RdmaNode) -> None:
    reader = Reader("train", dataset_access(node))
    rdma = reader._rdma = BatchReader(reader.client, first_bytes=10_000, largest_bytes=20_000)
    assert reader.read_each(KEYS[15:25]) == EXPECTED[15:25]
    assert rdma.counts.transfers >= 2
    assert rdma.counts.fallbacks == {"memory": 1}
    reader.close()


def test_threads_share_it(dataset: Dataset) -> None:
    wrong: list[object] = []

    def work(start: int) -> None:
        batches = [dataset.read_batch(range(start, 60)) for _ in range(5)]
        wrong.extend(start for batch in batches if batch != EXPECTED[start:])

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counts(dataset).transfers == 40
    # No more memory than threads that may use it at once.
    rdma = reader_of(dataset)._rdma
    assert rdma is not None
    assert 1 <= len(rdma._arenas.free) <= 4


def test_the_memory_of_all_threads_together_is_bounded(node: RdmaNode) -> None:
    reader = Reader("train", dataset_access(node))
    rdma = BatchReader(reader.client, first_bytes=100_000, largest_bytes=100_000)
    reader._rdma = rdma
    most = 0

    def move(_: object) -> None:
        """Called in the gateway's thread, for each piece."""
        nonlocal most
        most = max(most, sum(region.remote for region in regions()))

    def regions() -> list[SoftRegistration]:
        opened = rdma._link._opened
        device = opened._device if opened is not None else None
        return list(device.regions.values()) if isinstance(device, SoftDevice) else []

    node.fabric.on_move = move
    try:
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda _: reader.read_each(KEYS[:10]), range(24)))
    finally:
        node.fabric.on_move = lambda _: None
    assert found == [EXPECTED[:10]] * 24
    assert rdma.counts.fallbacks == {}
    assert 1 <= most <= 2
    reader.close()
    assert rdma._arenas.locked_bytes == 0


def test_whatever_fails_is_read_over_http(dataset: Dataset, node: RdmaNode) -> None:
    assert dataset.read_batch(range(60)) == EXPECTED
    node.end_sessions()
    assert dataset.read_batch(range(60)) == EXPECTED
    assert counts(dataset).fallbacks == {"gateway": 1}
    assert dataset.read_batch(range(60)) == EXPECTED
    assert counts(dataset).transfers == 2
    # The gateway's end gives up in a second, and says so.
    node.fabric.held = True
    assert dataset.read_batch(range(60)) == EXPECTED
    node.moves_again()
    assert counts(dataset).fallbacks == {"gateway": 1, "transfer": 1}
    assert dataset.read_batch(range(60)) == EXPECTED
    assert counts(dataset).transfers == 3


def test_a_child_reads_beside_its_parent(dataset: Dataset) -> None:
    assert dataset.read_batch(range(60)) == EXPECTED
    child = os.fork()
    if child == 0:
        # Fabrics do not reach from one process to another, so its transfers fail.
        good = dataset.read_batch(range(60)) == EXPECTED
        dataset.close()
        os._exit(0 if good and not counts(dataset).transfers else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert dataset.read_batch(range(60)) == EXPECTED
    assert counts(dataset) == (2, 2 * sum(map(len, EXPECTED)), {})


def test_a_host_without_rdma_says_nothing_of_it(
    node: RdmaNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened_times: list[int] = []

    def open_device(*_: object) -> Any:
        opened_times.append(1)
        raise RdmaUnavailable("pyverbs is not there", verbs=True)

    monkeypatch.setattr(verbs, "open_device", open_device)
    before = node.counted("rdma_fallbacks_total", reason="no-verbs")
    for _ in range(2):
        with opened(node) as dataset:
            for _ in range(3):
                assert dataset.read_batch(range(60)) == EXPECTED
            assert counts(dataset).transfers == 0
    assert len(opened_times) == 1
    assert node.counted("rdma_fallbacks_total", reason="no-verbs") == before
    assert not caplog.records


def test_a_host_without_rdma_keeps_nothing_of_its_batches(
    node: RdmaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_device(*_: object) -> Any:
        raise RdmaUnavailable("there is no device")

    monkeypatch.setattr(verbs, "open_device", open_device)
    with opened(node) as dataset:
        dataset.read_batch(range(60))
        tracemalloc.start()
        try:
            dataset.read_batch(range(60))
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(20):
                dataset.read_batch(range(60))
            gc.collect()
            grown_bytes = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown_bytes < 2 * sum(map(len, EXPECTED))


def test_importing_feedrack_looks_for_no_rdma() -> None:
    """Nor does the client bring more of a gateway than its seam to the verbs."""
    code = (
        "import sys, feedrack\n"
        "assert not [name for name in sys.modules if 'rdma' in name or 'verbs' in name]\n"
        "import feedrack.rdma\n"
        "assert not [name for name in sys.modules if name.startswith('pyverbs')]\n"
        "print(*[name for name in sys.modules if name.startswith('gateway.')])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seam = {"channels", "device", "gids", "reaching", "token", "verbs", "wire"}
    assert set(found.stdout.split()) <= {"gateway.rdma", *(f"gateway.rdma.{name}" for name in seam)}


@pytest.mark.skipif(importlib.util.find_spec("pyverbs") is not None, reason="pyverbs is installed")
def test_without_pyverbs_the_reason_is_no_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_absent", {})
    with pytest.raises(opening.NoRdma) as caught:
        opening.open_once(opening.Wanted())
    assert caught.value.reason == "no-verbs"
