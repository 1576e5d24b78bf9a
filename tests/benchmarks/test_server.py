"""A server under measurement is all of its processes, on the cores it was given."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.node import TwoWorkers
from benchmarks.peers import available, notes
from benchmarks.server import PeerMissingError, Server, ServerEndedError

_BUSY_SECONDS = 0.3
# A parent that does nothing, and a child of it that works and says when it is done.
_PROGRAM = """
import os, pathlib, signal, sys, time
if os.fork() == 0:
    while time.process_time() < float(sys.argv[1]):
        pass
    pathlib.Path("done").touch()
signal.pause()
"""


class Family(Server):
    name = "family"
    note = "two processes"
    version = "family 1"

    def launch(self) -> None:
        self.spawn([sys.executable, "-c", _PROGRAM, str(_BUSY_SECONDS)])

    def ready(self) -> bool:
        return (self.folder / "done").exists()


class Broken(Family):
    name = "broken"

    def launch(self) -> None:
        self.spawn([sys.executable, "-c", "raise SystemExit('it has no port')"])


class Missing(Family):
    name = "missing"

    def __init__(self, data: Path, folder: Path) -> None:
        raise PeerMissingError("it is not installed")


def make(kind: type[Server], folder: Path) -> Server:
    return kind(folder / "data", folder / kind.name)


def test_cpu_and_memory_of_children_count(tmp_path: Path) -> None:
    with make(Family, tmp_path) as server:
        assert server.cpu_seconds() >= _BUSY_SECONDS
        alone = psutil.Process(server.processes[0].pid).memory_info().rss
        memory = server.memory()
        assert memory.resident_bytes > alone
        assert memory.peak_resident_bytes >= memory.resident_bytes


def test_all_of_it_runs_where_it_is_told_to(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    with make(Family, tmp_path) as server:
        parent = psutil.Process(server.processes[0].pid)
        family = [parent, *parent.children(recursive=True)]
        assert len(family) == 2
        assert all(each.cpu_affinity() == [min(cores)] for each in family)
        server.run_on({max(cores)})
        assert all(each.cpu_affinity() == [max(cores)] for each in family)


def test_nothing_of_it_is_left_behind(tmp_path: Path) -> None:
    with make(Family, tmp_path) as server:
        parent = psutil.Process(server.processes[0].pid)
        family = [parent, *parent.children(recursive=True)]
    assert not server.folder.exists()
    assert psutil.wait_procs(family, timeout=60)[1] == []


def test_one_that_ends_too_early_is_not_measured_on(tmp_path: Path) -> None:
    with make(Family, tmp_path) as server:
        server.check_alive()
        children = psutil.Process(server.processes[0].pid).children()
        server.processes[0].kill()
        server.processes[0].wait()
        with pytest.raises(ServerEndedError, match="family ended with status -9"):
            server.check_alive()
    assert children
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_one_that_does_not_start_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken does not start: it has no port"):
        make(Broken, tmp_path).__enter__()


def test_one_that_is_missing_has_a_line_that_says_why(tmp_path: Path) -> None:
    peers, missing = available((Family, Missing), tmp_path / "data", tmp_path)
    assert [peer.name for peer in peers] == ["family"]
    assert notes(peers, missing) == [
        "family: two processes",
        "missing is left out: it is not installed",
    ]


def test_two_workers_are_measured_or_the_configurations_refusal_is_told(tmp_path: Path) -> None:
    try:
        server = make(TwoWorkers, tmp_path)
    except PeerMissingError as error:
        assert "node.workers" in str(error)  # noqa: PT017 - one of two right outcomes
    else:
        assert "workers = 2" in (server.folder / "feedrack.toml").read_text()
