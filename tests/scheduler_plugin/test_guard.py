"""What the guard does for a job does not hang on any other."""

import asyncio
import time
from pathlib import Path

from scheduler_plugin.guard import watch
from tests.scheduler_plugin.jobs import Queue, waiting
from tests.waiting import until


async def test_a_job_that_cannot_be_changed_keeps_no_other_waiting(tmp_path: Path) -> None:
    past = time.time() - 60
    jobs = [waiting(number, bound=past, is_bound=True) for number in (1, 2, 3)]
    queue = Queue(*jobs, stubborn=[1])
    watching = asyncio.create_task(watch(queue, tmp_path / "lock", poll_seconds=0.01))
    await until(lambda: len(queue.changed) >= 2)
    assert queue.changed == [2, 3]
    assert not watching.done()
    watching.cancel()


async def test_it_ends_once_nothing_is_bound(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        await watch(Queue(), tmp_path / "lock", poll_seconds=0.01, idle=0.05)
