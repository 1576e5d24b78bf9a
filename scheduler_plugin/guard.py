"""Lets jobs go at their bound if the daemon cannot: a process of its own session, that outlives it.

    python -m scheduler_plugin.guard --lock FILE [--commands-folder FOLDER]

It holds the lock for as long as it lives, so there is one. Which jobs are bound, and until when,
Slurm knows: it is given nothing and remembers nothing. It ends once no job has been bound, and no
daemon has asked for it, for a minute.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from scheduler_plugin.holding import Relax, bound_by, decide, may_be_bound
from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import SlurmUnavailable

# What is due is the daemon's for so long.
GRACE_SECONDS = 3.0
_POLL_SECONDS = 2.0
_IDLE_POLL_SECONDS = 15.0
_IDLE_SECONDS = 60.0
_LOCK_SECONDS = 2.0
_START_SECONDS = 30.0


class GuardMissing(Exception):  # noqa: N818 - as the other internal errors
    """There is no guard and none can be started; the message says why."""


class Guard:
    """The daemon's side: sees to it that there is one."""

    def __init__(self, lock: Path, commands_folder: Path | None) -> None:
        self._lock = lock
        self._commands_folder = commands_folder

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
        chosen = ["--commands-folder", str(folder)] if folder is not None else []
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


async def watch(slurm: SlurmCommands, lock: Path) -> None:
    """Looks at the jobs until none is bound any more. Slurm may be away meanwhile."""
    needed = time.monotonic()
    while True:
        pause = _POLL_SECONDS
        try:
            jobs = await slurm.jobs()
            # One that runs may be put back into the queue, bound as it was.
            if any(map(may_be_bound, jobs)):
                needed = time.monotonic()
            if not any(bound_by(job) for job in jobs):
                pause = _IDLE_POLL_SECONDS
            for step in decide(jobs, time.time() - GRACE_SECONDS):
                if isinstance(step, Relax):
                    await _relax(slurm, step)
        except SlurmUnavailable:
            # It is asked again in a moment: while it is away it starts no job anywhere.
            needed = time.monotonic()
        if time.monotonic() - needed > _IDLE_SECONDS and _asked_for(lock) > _IDLE_SECONDS:
            return
        await asyncio.sleep(pause)


async def _relax(slurm: SlurmCommands, step: Relax) -> None:
    """One that cannot be, since it starts this moment, is not the others' affair."""
    with contextlib.suppress(SlurmUnavailable):
        await slurm.relax(step.job_id, step.features, release=step.release)


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
    arguments = parser.parse_args()
    descriptor = os.open(arguments.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # The lock goes with the child; whoever waits for this process need not wait for that one.
    if _lock(descriptor) and os.fork() == 0:
        asyncio.run(watch(SlurmCommands(arguments.commands_folder), arguments.lock))
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
