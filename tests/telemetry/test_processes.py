"""Several processes of one node count as one, living and dead."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.processes import VARIABLE, empty, forget

_PROCESS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gateway.config import LogConfig
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.processes import empty, forget
from gateway.telemetry.requests import RequestRecord, RequestReporter
metrics = Metrics()
reporter = RequestReporter(metrics, LogConfig(level="error"))
record = RequestRecord("GetObject", status=200, tier="disk", seconds=0.03, served={"disk": 5})
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Process:
    """One process of a node, which does what it is told."""

    def __init__(self, folder: Path | None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        if folder is not None:
            environment[VARIABLE] = str(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.id = self._process.pid

    def do(self, *expressions: str) -> Any:
        """Evaluates each there; the value of the last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for expression in expressions:
            self._process.stdin.write(f"{expression}\n".encode())
            self._process.stdin.flush()
            value = json.loads(self._process.stdout.readline())
        return value

    def told(self, name: str, **labels: str) -> float | None:
        """A sample as this process's exposition has it."""
        return samples(self.do("metrics.render().decode()")).get((name, frozenset(labels.items())))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "metrics"
    empty(folder)
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(folder))
        return started[-1]

    yield start
    for process in started:
        process.kill()


TELL = "reporter.tell(record)"


def _requests(process: Process) -> float | None:
    return process.told(
        "feedrack_requests_total", operation="GetObject", code="200", tenant="anonymous"
    )


def test_requests_of_all_processes_are_counted_together(start: Callable[[], Process]) -> None:
    keeper, one, other = start(), start(), start()
    one.do(TELL, TELL)
    other.do(TELL)
    for process in (keeper, one, other):
        assert _requests(process) == 3
    labels = {"operation": "GetObject", "tier": "disk"}
    name = "feedrack_request_seconds"
    assert keeper.told(f"{name}_count", **labels) == 3
    assert keeper.told(f"{name}_sum", **labels) == pytest.approx(0.09)
    assert keeper.told(f"{name}_bucket", le="0.025", **labels) == 0
    assert keeper.told(f"{name}_bucket", le="0.05", **labels) == 3
    assert keeper.told(f"{name}_bucket", le="+Inf", **labels) == 3
    assert keeper.told("feedrack_read_bytes_total", tier="disk") == 15


def test_connections_and_requests_in_flight_add_up(start: Callable[[], Process]) -> None:
    keeper, one, other = start(), start(), start()
    one.do("metrics.connections.set(3)", "metrics.requests_in_flight.inc()")
    other.do("metrics.connections.set(4)", "metrics.requests_in_flight.inc()")
    other.do("metrics.requests_in_flight.inc()", "metrics.requests_in_flight.dec()")
    assert keeper.told("feedrack_connections") == 7
    assert keeper.told("feedrack_requests_in_flight") == 2
    assert keeper.told("feedrack_fills_in_flight") == 0


def test_what_the_keeper_says_of_the_cache_stands(start: Callable[[], Process]) -> None:
    keeper, other = start(), start()
    keeper.do(
        "metrics.cache_bytes.set(10)",
        "metrics.cache_capacity_bytes.set(100)",
        "metrics.members.set(1)",
        "metrics.fills_in_flight.set(2)",
        "metrics.cache_degraded.labels('full').set(1)",
    )
    for process in (keeper, other):
        assert process.told("feedrack_cache_bytes") == 10
        assert process.told("feedrack_cache_capacity_bytes") == 100
        assert process.told("feedrack_members") == 1
        assert process.told("feedrack_fills_in_flight") == 2
        assert process.told("feedrack_cache_degraded", reason="full") == 1
    keeper.do("metrics.cache_bytes.set(5)", "metrics.cache_degraded.labels('full').set(0)")
    assert other.told("feedrack_cache_bytes") == 5
    assert other.told("feedrack_cache_degraded", reason="full") == 0


def test_a_keeper_that_took_over_is_believed(start: Callable[[], Process], folder: Path) -> None:
    first, second = start(), start()
    first.do("metrics.cache_bytes.set(10)", "metrics.cache_degraded.labels('full').set(1)")
    first.kill()
    second.do("metrics.cache_bytes.set(5)")
    assert second.told("feedrack_cache_bytes") == 5
    forget(first.id, folder)
    assert second.told("feedrack_cache_bytes") == 5
    assert second.told("feedrack_cache_degraded", reason="full") is None


def test_what_a_dead_process_counted_stays_counted_and_what_it_held_does_not(
    start: Callable[[], Process], folder: Path
) -> None:
    keeper = start()
    for number in range(1, 4):
        worker = start()
        worker.do(TELL, "metrics.connections.set(3)", "metrics.requests_in_flight.inc()")
        worker.kill()
        assert keeper.told("feedrack_connections") == 3
        keeper.do(f"forget({worker.id}, Path({str(folder)!r}))")
        assert keeper.told("feedrack_connections") == 0
        assert keeper.told("feedrack_requests_in_flight") == 0
        assert _requests(keeper) == number
        assert not list(folder.glob(f"*_{worker.id}.db"))
    labels = {"operation": "GetObject", "tier": "disk"}
    assert keeper.told("feedrack_request_seconds_count", **labels) == 3
    assert keeper.told("feedrack_request_seconds_bucket", le="0.05", **labels) == 3
    keeper.do(TELL)
    assert _requests(keeper) == 4


def test_an_answer_never_sees_a_count_on_its_way(
    start: Callable[[], Process], folder: Path
) -> None:
    keeper, worker = start(), start()
    worker.do(TELL)
    worker.kill()
    ids = range(2**22 + 1, 2**22 + 101)
    for process_id in ids:
        for kind in ("counter", "histogram"):
            shutil.copy(folder / f"{kind}_{worker.id}.db", folder / f"{kind}_{process_id}.db")

    def forget_all() -> None:
        for process_id in ids:
            forget(process_id, folder)

    with ThreadPoolExecutor(1) as forgetting:
        done = forgetting.submit(forget_all)
        while not done.done():
            assert _requests(keeper) == 101
        done.result()
    assert _requests(keeper) == 101


def test_a_process_that_counted_nothing_may_be_forgotten_too(folder: Path) -> None:
    forget(2**22 + 1, folder)
    assert not list(folder.glob("*.db"))


@pytest.mark.parametrize(
    "left", [b"", b"\xff\xff\x00\x00", b"\x40\x00\x00\x00\x00\x00\x00\x00\xff" * 9]
)
def test_a_process_that_died_while_it_made_its_files_may_be_forgotten(
    start: Callable[[], Process], folder: Path, left: bytes
) -> None:
    keeper = start()
    keeper.do(TELL)
    (folder / f"counter_{2**22 + 1}.db").write_bytes(left)
    forget(2**22 + 1, folder)
    assert _requests(keeper) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_where_there_is_no_room_nothing_is_forgotten_and_nothing_dies(
    start: Callable[[], Process], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", small]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        path = small / f"counter_{2**22 + 1}.db"
        worker = start()
        worker.do(TELL)
        [counted] = (tmp_path / "metrics").glob(f"counter_{worker.id}.db")
        shutil.copy(counted, path)
        with suppress(OSError):
            (small / "filler").write_bytes(bytes(2**20))
        with pytest.raises(OSError, match="No space"):
            forget(2**22 + 1, small)
        assert path.exists()
        (small / "filler").unlink()
        forget(2**22 + 1, small)
        assert not path.exists()
        assert (small / "counter_ended.db").exists()
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_node_that_starts_anew_counts_anew(start: Callable[[], Process], folder: Path) -> None:
    before = start()
    before.do(TELL)
    before.kill()
    (folder / "notes.txt").write_text("not ours")
    empty(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert _requests(start()) is None


def test_all_of_it_is_explained(start: Callable[[], Process]) -> None:
    process = start()
    process.do(TELL)
    families = list(text_string_to_metric_families(process.do("metrics.render().decode()")))
    assert {"feedrack_requests", "feedrack_request_seconds"} <= {one.name for one in families}
    assert all(one.documentation.endswith(".") for one in families)
    assert not any(
        label == "pid" for one in families for _, labels, *_ in one.samples for label in labels
    )


def test_a_process_alone_counts_for_itself() -> None:
    process = Process(None)
    try:
        process.do(TELL)
        assert _requests(process) == 1
        assert process.told("feedrack_cache_bytes") == 0
    finally:
        process.kill()
