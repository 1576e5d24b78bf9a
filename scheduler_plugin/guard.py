"""Lets jobs go at their bound if the daemon cannot: a process of its own session, that outlives it.

    python -m scheduler_plugin.guard --lock FILE [--commands-folder FOLDER]

It holds the lock for as long as it lives, so there is one. Which jobs are bound, and until when,
Slurm knows: it is given nothing and has to remember nothing. It ends once no job has been bound,
and no daemon has asked for it, for a minute.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scheduler_plugin.holding import Bounds, Relax, bound_by, decide, may_be_bound
from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import Job, Slurm, SlurmUnavailable

# What is due is the daemon's for so long.
GRACE_SECONDS = 3.0
_POLL_SECONDS = 2.0
# While no job that waits is bound, looks are so many times rarer.
_IDLE_RATIO = 8
_IDLE_SECONDS = 60.0
_LOCK_SECONDS = 2.0
# A look at the queue may take this part of the time, though none is put off for longer.
_BUSY_RATIO = 10
_LONGEST_PAUSE_SECONDS = 60.0
# After so long what was seen is looked at anew, before more is changed because of it.
STALE_SECONDS = 30.0
_START_SECONDS = 30.0


class GuardMissing(Exception):  # noqa: N818 - as the other internal errors
    """There is no guard and none can be started; the message says why."""


class Guard:
    """The daemon's side: sees to it that there is one."""

    def __init__(self, lock: Path, commands_folder: Path | None, *, timeout_seconds: float) -> None:
        self._lock = lock
        self._commands_folder = commands_folder
        self._timeout_seconds = timeout_seconds

    async def ensure(self) -> None:
        """Returns once a guard holds the lock, for at least a minute from now. GuardMissing."""
        try:
            self._lock.touch(mode=0o600)
            if not self._held():
                await asyncio.to_thread(self._start)
            if not self._held():
                raise GuardMissing("it ended as it began")
        except subprocess.SubprocessError as error:
            raise GuardMissing(f"it does not start: {error}") from error
        except OSError as error:
            raise GuardMissing(f"{self._lock}: {error.strerror}") from error

    def _held(self) -> bool:
        with self._lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _start(self) -> None:
        """Returns once there is one: what is started here leaves it behind and ends."""
        folder = self._commands_folder
        chosen = ["--timeout-seconds", str(self._timeout_seconds)]
        if folder is not None:
            chosen += ["--commands-folder", str(folder)]
        subprocess.run(  # noqa: S603 - this very program
            [sys.executable, "-m", "scheduler_plugin.guard", "--lock", str(self._lock), *chosen],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            timeout=_START_SECONDS,
            check=True,
        )


async def watch(
    slurm: Slurm, lock: Path, *, poll_seconds: float = _POLL_SECONDS, idle: float = _IDLE_SECONDS
) -> None:
    """Looks at the jobs until none was bound for `idle` seconds. Slurm may be away meanwhile."""
    needed = time.monotonic()
    bounds = Bounds()
    while True:
        began = time.monotonic()
        pause = poll_seconds
        try:
            jobs = bounds.restore(await slurm.jobs())
        except SlurmUnavailable:
            # It is asked again in a moment: while it is away it starts no job anywhere.
            needed = time.monotonic()
            took = time.monotonic() - began
        else:
            took = time.monotonic() - began
            await _relax(slurm, jobs)
            # One that runs may be put back into the queue, bound as it was.
            if any(map(may_be_bound, jobs)):
                needed = time.monotonic()
            if not any(bound_by(job) for job in jobs):
                pause = _IDLE_RATIO * poll_seconds
        if time.monotonic() - needed > idle and _asked_for(lock) > idle:
            return
        await asyncio.sleep(max(pause, min(_BUSY_RATIO * took, _LONGEST_PAUSE_SECONDS)))


async def _relax(slurm: Slurm, jobs: Sequence[Job]) -> None:
    began = time.monotonic()
    for step in decide(jobs, time.time() - GRACE_SECONDS):
        if not isinstance(step, Relax):
            continue
        # One that fails has its turn again at the next look: the others are not to wait for it.
        with contextlib.suppress(SlurmUnavailable):
            await slurm.relax(step.job_id, step.features, release=step.release)
        if time.monotonic() - began > STALE_SECONDS:
            return


def _asked_for(lock: Path) -> float:
    """Seconds since a daemon has last asked for a guard."""
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return 2 * _IDLE_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="feedrack-affinity guard", description=__doc__)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--commands-folder", type=Path)
    parser.add_argument("--timeout-seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    descriptor = os.open(arguments.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # The lock goes with the child; whoever waits for this process need not wait for that one.
    if _lock(descriptor) and os.fork() == 0:
        slurm = SlurmCommands(arguments.commands_folder, timeout_seconds=arguments.timeout_seconds)
        asyncio.run(watch(slurm, arguments.lock))
    return 0


def _lock(descriptor: int) -> bool:
    """Whether this is the one guard. Those who look whether there is one hold the lock for a moment
    too."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        else:
            return True


if __name__ == "__main__":
    sys.exit(main())
