"""There is one guard, it outlives who started it, and another takes its place."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scheduler_plugin.guard import Guard, GuardMissing
from tests.scheduler_plugin.guards import guards, the_guard
from tests.waiting import until


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "guard.lock"
    yield path
    for process in guards(path):
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(60)


@pytest.fixture
def guard(lock: Path, tmp_path: Path) -> Guard:
    """One that finds no Slurm: then it stays."""
    return Guard(lock, tmp_path / "no-commands", timeout_seconds=5.0)


async def test_however_often_it_is_asked_for_there_is_one(guard: Guard, lock: Path) -> None:
    await asyncio.gather(*(guard.ensure() for _ in range(3)))
    await guard.ensure()
    the_guard(lock)


async def test_another_takes_the_place_of_one_that_is_gone(guard: Guard, lock: Path) -> None:
    await guard.ensure()
    first = the_guard(lock)
    first.kill()
    first.wait(60)
    await guard.ensure()
    second = the_guard(lock)
    assert second.pid != first.pid


async def test_it_is_in_a_session_of_its_own(guard: Guard, lock: Path) -> None:
    await guard.ensure()
    process = the_guard(lock)
    assert os.getsid(process.pid) != os.getsid(0)


def test_it_outlives_who_asked_for_it(lock: Path, tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from scheduler_plugin.guard import Guard\n"
        f"lock, folder = Path({str(lock)!r}), Path({str(tmp_path / 'none')!r})\n"
        "guard = Guard(lock, folder, timeout_seconds=5.0)\n"
        "asyncio.run(guard.ensure())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == -signal.SIGKILL
    the_guard(lock)


async def test_who_only_looks_does_not_keep_it_from_starting(guard: Guard, lock: Path) -> None:
    lock.touch()
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        started = asyncio.create_task(guard.ensure())
        # Meanwhile it tries, and goes on trying.
        await until(lambda: guards(lock))
    await started
    the_guard(lock)


async def test_without_a_folder_for_its_lock_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(GuardMissing):
        await Guard(tmp_path / "gone" / "lock", None, timeout_seconds=5.0).ensure()
