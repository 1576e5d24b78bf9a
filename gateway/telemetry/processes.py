"""The metrics of a node that is several processes: what they count adds up.

Where the environment has PROMETHEUS_MULTIPROC_DIR when a process starts, prometheus_client keeps
its values in files of that folder, a set for each process, and `Metrics.render` of any of them
tells of all. The processes of one node share a folder of their own. Whoever starts them empties it
first, and says which of them have ended.

https://prometheus.github.io/client_python/multiprocess/
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, mmap_dict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

_KEPT = ("counter", "histogram")
# Without types of its own.
_File: Any = mmap_dict.MmapedDict


def shared_folder() -> Path | None:
    """Where this process's metrics are kept for others to see; None where it counts for itself."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder is not None else None


def empty(folder: Path) -> None:
    """Makes the folder ready for a node that starts: without what an earlier one left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.db"):
        path.unlink()


def forget(process_id: int, folder: Path) -> None:
    """Takes a process that has ended out of the gauges; what it counted stays counted.

    Its counts move to a file for all that have ended, so that their number does not matter.
    """
    with _locked(folder, fcntl.LOCK_EX):
        _forget(process_id, folder)


def render(folder: Path) -> bytes:
    """The Prometheus text exposition of all processes."""
    registry = CollectorRegistry()
    with _locked(folder, fcntl.LOCK_SH):
        MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
        return generate_latest(registry)


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    # What moves from one file to another would else count twice, or not at all.
    with (folder / "LOCK").open("ab") as file:
        fcntl.flock(file, how)
        yield


def _forget(process_id: int, folder: Path) -> None:
    mark_process_dead(process_id, str(folder))  # type: ignore[no-untyped-call]
    for kind in _KEPT:
        path = folder / f"{kind}_{process_id}.db"
        if not path.exists():
            continue
        ended = _File(str(folder / f"{kind}_ended.db"))
        try:
            for key, value, _, _ in _File.read_all_values_from_file(str(path)):
                ended.write_value(key, ended.read_value(key)[0] + value, 0.0)
        finally:
            ended.close()
        path.unlink()
