"""The folder of what the processes of one node share while they live: a socket, the metrics' files.

It is private (0700), lies where files are memory if possible, and is locked by an open file that
every process of the node inherits. So one that nobody holds is a dead node's, and is removed by
the next start: by its name, what its lock file says and what is in it, all three.
"""

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog

from gateway.telemetry import processes as metrics

log = structlog.get_logger()

_PREFIX = ".feedrack-run-"
_MARK = b"The run folder of a feedrack node: the next one to start removes it.\n"
_ENTRIES = {"lock": stat.S_IFREG, "keeper.sock": stat.S_IFSOCK, "metrics": stat.S_IFDIR}
_METRICS_FILE = re.compile(r"LOCK|[a-z_]+_(\d+|ended)\.db")
# A Unix socket's name has at most 108 bytes, its end included.
_LONGEST_BYTES = 107


class RunFolder:
    """A folder of this node's own. OSError where none can be made."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        bases = _bases(environ)
        for base in bases:
            _sweep(base)
        self.path, self.lock = _make(bases)
        self.tunnels = self.path / "keeper.sock"
        self.metrics = self.path / "metrics"
        metrics.empty(self.metrics)

    def remove(self) -> None:
        """Call when no other process of the node is left."""
        remove(self.path)
        os.close(self.lock)


def remove(path: Path) -> bool:
    """Removes a run folder, or what is left of it; whether it is gone. One that has anything else
    in it is left as it is, and the log says so."""
    try:
        for each in _entries(path):
            each.rmdir() if each.is_dir() else each.unlink()
        path.rmdir()
    except OSError as error:
        if path.exists():
            log.warning("run folder left alone", path=str(path), reason=str(error))
            return False
    return True


def _entries(path: Path) -> list[Path]:
    """What is in a run folder, in the order to remove it. OSError where there is anything else."""
    found = [*path.iterdir()]
    metrics_folder = path / "metrics"
    if metrics_folder in found:
        found += metrics_folder.iterdir()
    for each in found:
        mode = each.lstat().st_mode
        if each.parent == metrics_folder:
            ours = stat.S_ISREG(mode) and _METRICS_FILE.fullmatch(each.name) is not None
        else:
            ours = _ENTRIES.get(each.name) == stat.S_IFMT(mode)
        if not ours:
            raise OSError(f"{each.relative_to(path)} is none of a node's files")
    # The lock as the last: what is left by a crash meanwhile is found again.
    return sorted(found, key=lambda each: (each == path / "lock", each == metrics_folder))


def _bases(environ: Mapping[str, str]) -> list[Path]:
    # systemd's RuntimeDirectory= comes first; there may be several.
    named = [part for part in environ.get("RUNTIME_DIRECTORY", "").split(":") if part]
    return [Path(part) for part in [*named, "/dev/shm", tempfile.gettempdir()]]  # noqa: S108


def _make(bases: list[Path]) -> tuple[Path, int]:
    failure: OSError = FileNotFoundError("there is no folder for the node's sockets")
    for base in bases:
        try:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            failure = error
            continue
        lock = -1
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # From here on it is a run folder, and held.
            os.pwrite(lock, _MARK, 0)
            if len(os.fsencode(path / "keeper.sock")) <= _LONGEST_BYTES:
                return path, lock
        except OSError as error:
            failure = error
        remove(path)
        if lock >= 0:
            os.close(lock)
    raise failure


def _sweep(base: Path) -> None:
    """Removes what nodes of this user have left there."""
    for path in base.glob(f"{_PREFIX}*"):
        try:
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
                continue
            lock = _let_go(path / "lock")
        except FileNotFoundError:
            # Just being made, or removed.
            continue
        except OSError as error:
            log.warning("run folder left alone", path=str(path), reason=str(error))
            continue
        if lock is not None:
            if remove(path):
                log.info("run folder of a dead node removed", path=str(path))
            os.close(lock)


def _let_go(path: Path) -> int | None:
    """The lock of a run folder, held from now on; None where a node holds it. OSError where it is
    no such lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _check_mark(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _check_mark(lock: int) -> None:
    if os.pread(lock, len(_MARK) + 1, 0) != _MARK:
        raise OSError("its lock is none of a node's files")
