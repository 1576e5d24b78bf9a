"""Ends all processes of a lab: what runs with its slurm.conf or in its folder, and all below that.

As a program, `python -m tests.slurm.sweep FOLDER` waits until nobody holds its standard input any
more, then ends what is left of the lab and removes its folder: nothing outlives the tests, however
they end.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_PROC = Path("/proc")
_GONE_SECONDS = 20.0


def sweep(folder: Path) -> None:
    """Kills until nothing is left.

    Slurm gives SLURM_CONF to each job, whatever its --export says; its step daemons write their
    title over their environment, and stay in the folder that slurmd was started in.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    while found := _family(folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {folder} do not end: {sorted(found)}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _family(folder: Path) -> set[int]:
    """Processes of the lab that are alive; never this one, nor one that it runs under."""
    mark = b"SLURM_CONF=" + os.fsencode(folder / "etc" / "slurm.conf") + b"\0"
    parents: dict[int, int] = {}
    found: set[int] = set()
    for each in _PROC.iterdir():
        if not each.name.isdigit():
            continue
        pid = int(each.name)
        # A process may end at any moment, and what root may not look into is not of the lab.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            state, parent = (each / "stat").read_bytes().rsplit(b") ", 1)[1].split()[:2]
            if state in (b"Z", b"X"):
                continue
            parents[pid] = int(parent)
            if (
                mark in (each / "environ").read_bytes()
                or f"/{folder.name}" in (each / "cwd").readlink().as_posix()
            ):
                found.add(pid)
    more = True
    while more:
        below = {pid for pid, parent in parents.items() if parent in found} - found
        found |= below
        more = bool(below)
    mine: int | None = os.getpid()
    while mine:
        found.discard(mine)
        mine = parents.get(mine)
    return found


def _keep(folder: Path) -> None:
    sys.stdin.buffer.read()
    sweep(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
