"""The folder of what the processes of one node share while they live: a socket, the metrics' files.

It is private (0700), lies where files are memory if possible, and is locked by an open file that
every process of the node inherits. So one that nobody holds is a dead node's, and is removed by
the next start.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog

from gateway.telemetry import processes as metrics

log = structlog.get_logger()

_PREFIX = "feedrack-"
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


def remove(path: Path) -> None:
    """Removes a run folder, or what is left of it."""
    shutil.rmtree(path, ignore_errors=True)


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
        lock = _lock(path / "lock", os.O_CREAT)
        if lock is not None and len(os.fsencode(path / "keeper.sock")) <= _LONGEST_BYTES:
            return path, lock
        remove(path)
        if lock is not None:
            os.close(lock)
    raise failure


def _sweep(base: Path) -> None:
    """Removes what nodes of this user have left there."""
    with contextlib.suppress(OSError):
        for path in base.glob(f"{_PREFIX}*"):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = _lock(path / "lock", 0)
            if lock is not None:
                log.info("run folder of a dead node removed", path=str(path))
                remove(path)
                os.close(lock)


def _lock(path: Path, flags: int) -> int | None:
    """The lock, held; None where another process holds it, or there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
