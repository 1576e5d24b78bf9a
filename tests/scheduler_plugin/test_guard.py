"""The guard: what it does for others does not hang on any one job, and there is one."""

import asyncio
import fcntl
import subprocess
import time
from pathlib import Path

import pytest

from scheduler_plugin.guard import Guard, watch
from tests.scheduler_plugin.jobs import Queue, waiting


async def test_a_job_that_cannot_be_changed_keeps_no_other_waiting(tmp_path: Path) -> None:
    past = time.time() - 60
    jobs = [waiting(number, bound=past, is_bound=True) for number in (1, 2, 3)]
    queue = Queue(*jobs, stubborn=[1])
    watching = asyncio.create_task(watch(queue, tmp_path / "lock", poll_seconds=0.01))
    async with asyncio.timeout(10):
        while len(queue.changed) < 2:
            await asyncio.sleep(0.01)
    assert queue.changed == [2, 3]
    assert not watching.done()
    watching.cancel()


async def test_it_ends_once_nothing_is_bound(tmp_path: Path) -> None:
    async with asyncio.timeout(10):
        await watch(Queue(), tmp_path / "lock", poll_seconds=0.01, idle=0.05)


async def test_one_that_found_the_lock_looked_at_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is held is found out by holding it, for an instant."""
    commands, lock = tmp_path / "bin", tmp_path / "lock"
    commands.mkdir()
    guard = Guard(lock, commands, timeout_seconds=1.0)
    with lock.open("wb") as file:
        start_one = guard._start
        started: list[subprocess.Popen[bytes]] = []

        def start() -> "subprocess.Popen[bytes]":
            # The first finds it locked, the second does not.
            process = start_one()
            started.append(process)
            if len(started) == 1:
                fcntl.flock(file, fcntl.LOCK_SH)
                process.wait(timeout=20)
                fcntl.flock(file, fcntl.LOCK_UN)
            return process

        monkeypatch.setattr(guard, "_start", start)
        await guard.ensure()
    assert len(started) == 2
    started[1].kill()
    started[1].wait()
