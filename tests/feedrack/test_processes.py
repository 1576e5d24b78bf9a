"""A dataset goes to any worker, however the worker is started."""

import multiprocessing
import threading
from collections.abc import Sequence

import pytest

from feedrack import Dataset
from tests.feedrack.conftest import OBJECTS, Served
from tests.feedrack.reading_workers import read_share

KEYS = sorted(OBJECTS, key=str.encode)
EXPECTED = [OBJECTS[key] for key in KEYS]
WORKERS = 16


def share_out(
    dataset: Dataset, method: str, workers: int, objects: Sequence[bytes] = tuple(EXPECTED)
) -> None:
    """Lets workers read a share each, in batches and singly, and looks at what they found."""
    context = multiprocessing.get_context(method)
    started = []
    for number in range(workers):
        positions = range(number % 8, len(objects), 8)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(  # type: ignore[attr-defined]
            target=read_share, args=(dataset, positions, theirs)
        )
        process.start()
        theirs.close()
        started.append((process, ours, positions))
    for process, ours, positions in started:
        assert ours.poll(60)
        assert ours.recv() == 2 * [objects[index] for index in positions]
        ours.close()
        process.join(30)
        assert process.exitcode == 0


def test_sixteen_forked_workers_read_beside_their_parent(served: Served) -> None:
    with served.open() as dataset:
        # Connections and threads of the parent's are there when it forks.
        assert dataset.read_batch(range(10)) == [OBJECTS[key] for key in KEYS[:10]]
        share_out(dataset, "fork", WORKERS)
        assert dataset[0] == OBJECTS[KEYS[0]]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_workers_read(at_gateway: Served, method: str) -> None:
    with at_gateway.open() as dataset:
        share_out(dataset, method, 4)


def test_workers_may_be_forked_while_threads_read(at_gateway: Served) -> None:
    with at_gateway.open() as dataset:
        done = threading.Event()
        wrong: list[object] = []

        def read() -> None:
            while not done.is_set():
                if dataset.read_batch([3, 4]) != [OBJECTS[key] for key in KEYS[3:5]]:
                    wrong.append("bytes")

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            share_out(dataset, "fork", 8)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong
