"""A prefetch beside a reader: how far it moves the reader's p99. By hand, on a machine at rest:

pytest -m bench -s tests/cluster/test_prefetch_bench.py
"""

import statistics
import sys
import time
from functools import partial
from typing import Any

import pytest

from tests.cluster.processes import Nodes, age
from tests.node.conftest import MakeNode, make_node
from tests.waiting import wait_until

__all__ = ["make_node"]

MIB = 1024**2
_READS = 1000
_ROUNDS = 8


def p99(client: Any, reads: int) -> float:
    seconds = []
    for number in range(reads):
        begun = time.perf_counter()
        client.get_object(Bucket="bucket", Key=f"warm/{number % 16}")["Body"].read()
        seconds.append(time.perf_counter() - begun)
    return statistics.quantiles(seconds, n=100)[98]


def is_done(made: Nodes, path: str) -> bool:
    return bool(made.ask("n1", "GET", path)[1]["state"] == "done")


@pytest.mark.bench
def test_a_running_reads_p99_moves_by_less_than_a_tenth(make_node: MakeNode) -> None:
    node = make_node({"cache": {"capacity": "2GiB"}})
    made = Nodes.__new__(Nodes)
    made.of = {"n1": node}
    folder = node.folder / "origin" / "bucket"
    for name, count, size_bytes in (("warm", 16, MIB), ("cold", 300, 4 * MIB)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}").write_bytes(bytes(size_bytes))
            age(folder / name / f"{number}")
    client = node.client()
    p99(client, 200)
    alone, beside = [], []
    for number in range(_ROUNDS):
        alone.append(p99(client, _READS))
        keys = [f"s3://bucket/cold/{each}" for each in range(number * 36, number * 36 + 36)]
        _, document = made.ask("n1", "POST", "/v1/prefetch", {"keys": keys})
        path = f"/v1/prefetch/{document['id']}"
        begun = time.perf_counter()
        beside.append(p99(client, _READS))
        read_for = time.perf_counter() - begun
        done_bytes = made.ask("n1", "GET", path)[1]["bytes"]["done"]
        sys.stdout.write(f"{done_bytes / MIB / read_for:.0f} MiB/s prefetched beside reads\n")
        wait_until(partial(is_done, made, path))
    sys.stdout.write(f"p99 alone {statistics.median(alone) * 1e3:.2f} ms, rounds {alone}\n")
    sys.stdout.write(
        f"p99 beside a prefetch {statistics.median(beside) * 1e3:.2f} ms, rounds {beside}\n"
    )
    assert statistics.median(beside) <= 1.1 * statistics.median(alone)
