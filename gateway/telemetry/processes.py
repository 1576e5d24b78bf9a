"""The metrics of a node that is several processes: what they count adds up.

Where the environment has PROMETHEUS_MULTIPROC_DIR when a process starts, prometheus_client keeps
its values in files of that folder, a set for each process, and `Metrics.render` of any of them
tells of all. The processes of one node share a folder of their own. Whoever starts them empties it
first, and says which of them have ended.

https://prometheus.github.io/client_python/multiprocess/
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, generate_latest, mmap_dict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

log = structlog.get_logger()

_KEPT = ("counter", "histogram")
# Without types of its own.
_File: Any = mmap_dict.MmapedDict
# How much of such a file is used, at its start.
_USED = struct.Struct("i")


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
    OSError where that cannot be done now, and nothing is changed.
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
        if counted := _counted(path):
            _add(counted, folder / f"{kind}_ended.db", path.stat().st_size)
        path.unlink()


def _add(counted: list[tuple[str, float]], path: Path, size_bytes: int) -> None:
    _make_room(path, size_bytes)
    ended = _File(str(path))
    try:
        for key, value in counted:
            ended.write_value(key, ended.read_value(key)[0] + value, 0.0)
    finally:
        ended.close()


def _counted(path: Path) -> list[tuple[str, float]]:
    try:
        values = _File.read_all_values_from_file(str(path))
        return [(key, value) for key, value, *_ in values]
    except (RuntimeError, ValueError, struct.error) as error:
        # It died while it made the file. Kept, it would fail every answer.
        log.error("metrics of an ended process lost", file=path.name, reason=str(error))  # noqa: TRY400
        return []


def _make_room(path: Path, more_bytes: int) -> None:
    """Gets the pages before they are mapped: one that is not to be had then kills the process."""
    with path.open("ab+") as file:
        used = os.pread(file.fileno(), _USED.size, 0)
        used_bytes = _USED.unpack(used)[0] if used else 0
        os.posix_fallocate(file.fileno(), 0, used_bytes + more_bytes)
