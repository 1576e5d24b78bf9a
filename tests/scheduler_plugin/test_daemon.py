"""The daemon's look at the queue: letting go comes first, and binding never without a guard."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler_plugin.config import parse
from scheduler_plugin.daemon import Daemon
from scheduler_plugin.gateways import Gateways
from scheduler_plugin.guard import GuardMissing
from scheduler_plugin.slurm.model import Host, Job, SlurmUnavailable
from tests.scheduler_plugin.guards import guards, the_guard
from tests.scheduler_plugin.jobs import PLACES, Queue, waiting
from tests.waiting import until


def daemon_of(queue: Queue, folder: Path) -> Daemon:
    for name in ("rankings", "requests", "staged", "state"):
        (folder / name).mkdir(mode=0o700)
    config = parse(
        {
            "gateways": {"admin_urls": ["http://127.0.0.1:1"], "token_file": "/dev/null"},
            "folders": {n: str(folder / n) for n in ("rankings", "requests", "staged", "state")},
        }
    )
    return Daemon(config, queue, Gateways(config.gateways.admin_urls, "t"))


async def test_without_a_guard_none_is_bound_and_all_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(int(time.time()))
    queue = Queue(
        waiting(1, bound=now + 300, is_bound=False),
        waiting(2, bound=now - 60, is_bound=True),
        waiting(3, bound=now + 300, is_bound=True),
    )
    daemon = daemon_of(queue, tmp_path)
    monkeypatch.setattr("sys.executable", "/nonexistent")
    with pytest.raises(GuardMissing):
        await daemon._look()
    assert queue.changed == [2]
    assert queue.by_id[1].features == ""
    assert queue.by_id[3].features == PLACES


async def test_what_is_due_is_let_go_though_nothing_is_known_of_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(waiting(2, bound=time.time() - 60, is_bound=True))

    async def hosts() -> Sequence[Host]:
        raise SlurmUnavailable("scontrol: no answer in 20 s")

    monkeypatch.setattr(queue, "hosts", hosts)
    await daemon_of(queue, tmp_path)._look()
    assert queue.changed == [2]
    for guard in guards(tmp_path / "state" / "guard.lock"):
        guard.kill()
        guard.wait(60)


async def test_while_a_job_is_bound_there_is_a_guard(tmp_path: Path) -> None:
    """Also one that was bound long ago, when there was another."""
    queue = Queue(waiting(1, bound=time.time() + 300, is_bound=True))
    daemon = daemon_of(queue, tmp_path)
    await daemon._look()
    assert queue.changed == []
    lock = tmp_path / "state" / "guard.lock"
    guard = the_guard(lock)
    guard.kill()
    guard.wait(60)
    await daemon._look()
    another = the_guard(lock)
    assert another.pid != guard.pid
    another.kill()
    another.wait(60)


async def test_what_nobody_thought_of_ends_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(waiting(1, bound=time.time() - 60, is_bound=True))
    daemon = daemon_of(queue, tmp_path)

    async def fail(*_: object, **__: object) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(daemon._ranker, "refresh", fail)
    monkeypatch.setattr(daemon._warmer, "look", fail)
    running = asyncio.create_task(daemon.run())
    await until(lambda: queue.changed and {"ranking", "warming"} <= daemon._failing.keys())
    assert not running.done()
    running.cancel()
    assert "UnicodeEncodeError" in capsys.readouterr().out
    for guard in guards(tmp_path / "state" / "guard.lock"):
        guard.kill()
        guard.wait(60)


async def test_a_slow_squeue_is_not_asked_for_each_job_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue()
    daemon = daemon_of(queue, tmp_path)
    asked: list[Sequence[int]] = []
    started = iter(range(1, 1_000_000))

    async def jobs(ids: Sequence[int] = ()) -> Sequence[Job]:
        asked.append(ids)
        await asyncio.sleep(0.1)
        return []

    monkeypatch.setattr(queue, "jobs", jobs)
    listening = asyncio.create_task(daemon._listen_on())
    began = time.monotonic()
    async with asyncio.timeout(60):
        while len(asked) < 2:
            (tmp_path / "requests" / str(next(started))).touch()
            await asyncio.sleep(0.01)
    listening.cancel()
    assert time.monotonic() - began > 1.0
    assert len(asked[1]) > 10
