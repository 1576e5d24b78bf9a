"""What the daemon knows of Slurm is the same whichever way it asks, and whatever the release.

By commands always; through pyslurm where there is one for the release, in `FEEDRACK_PYSLURM_PYTHON`
(a Python, of the root folder if FEEDRACK_SLURM_ROOT names one; this one, unless said).
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from scheduler_plugin.slurm.bindings import SlurmBindings
from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import Host, Job, Slurm, SlurmUnavailable
from tests.slurm.lab import SlurmLab
from tests.waiting import SECONDS

_REPOSITORY = Path(__file__).parents[2]
_NO_JOB, _NOR_THIS = 4_000_001, 4_000_002
_HOUR = 3600.0

T = TypeVar("T")


@pytest.fixture(scope="module")
def module_slurm(slurm_is_there: None) -> Iterator[SlurmLab]:
    partitions = (
        "main Nodes=ALL Default=YES MaxTime=60 State=UP",
        "few Nodes=n[3-4] Hidden=YES State=UP",
    )
    with SlurmLab(partitions=partitions) as lab:
        yield lab


@pytest.fixture(params=["commands", "pyslurm"])
async def seam(
    request: pytest.FixtureRequest, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Slurm]:
    monkeypatch.setenv("SLURM_CONF", str(slurm.etc / "slurm.conf"))
    commands = SlurmCommands(slurm.commands_folder, timeout_seconds=5.0)
    if request.param == "commands":
        yield commands
        return
    module = ["-m", "scheduler_plugin.slurm.reading"]
    reading = slurm.wrap(
        ["env", f"PYTHONPATH={_REPOSITORY}", _python(slurm), *module], cwd=slurm.work
    )
    async with SlurmBindings(commands, timeout_seconds=5.0, reading=reading) as bindings:
        yield bindings


def _python(slurm: SlurmLab) -> str:
    """A Python with pyslurm; skips where there is none, fails there if REQUIRE names it."""
    python = os.environ.get("FEEDRACK_PYSLURM_PYTHON", sys.executable)
    words = slurm.wrap([python, "-c", "import pyslurm"], cwd=slurm.work)
    done = subprocess.run(words, env=slurm.environment, capture_output=True, text=True)
    if done.returncode != 0:
        why = f"{python} has no pyslurm: {done.stderr.strip().rpartition(chr(10))[2]}"
        if "pyslurm" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names pyslurm: {why}")
        pytest.skip(why)
    return python


async def _until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool], what: str) -> T:
    deadline = time.monotonic() + SECONDS
    while not holds(found := await ask()):
        assert time.monotonic() < deadline, f"it never came to be that {what}: {found}"
        await asyncio.sleep(0.05)
    return found


async def _job(seam: Slurm, id_: str) -> Job:
    [found] = await seam.jobs([int(id_)])
    return found


async def _host(seam: Slurm, name: str) -> Host:
    return next(each for each in await seam.hosts() if each.name == name)


async def test_the_release_and_the_default_partition(seam: Slurm, slurm: SlurmLab) -> None:
    assert await seam.release() == slurm.release
    assert await seam.default_partition() == "main"


async def test_hosts_with_features_partitions_and_load(seam: Slurm, slurm: SlurmLab) -> None:
    assert {each.name for each in await seam.hosts()} == {"n1", "n2", "n3", "n4"}
    n1, n4 = await _host(seam, "n1"), await _host(seam, "n4")
    assert n1 == Host("n1", frozenset({"rack1", "n1"}), ("main",), cpus=2, load=0.0, usable=True)
    assert sorted(n4.partitions) == ["few", "main"]
    slurm.occupy("n4")
    half = slurm.sbatch("-n1", "-w", "n1", script="exec sleep 3600")
    slurm.wait(half, "RUNNING")
    assert ((await _host(seam, "n4")).load, (await _host(seam, "n1")).load) == (1.0, 0.5)


async def test_drained_hosts_are_not_usable_whether_idle_or_not(
    seam: Slurm, slurm: SlurmLab
) -> None:
    slurm.occupy("n1")
    slurm.drain("n1")
    slurm.drain("n2")
    usable = {each.name: each.usable for each in await seam.hosts()}
    assert usable == {"n1": False, "n2": False, "n3": True, "n4": True}


async def test_a_job_that_waits(seam: Slurm, slurm: SlurmLab) -> None:
    comment = "dataset=s3://träin/a,b x='y z'"
    id_ = slurm.sbatch(
        "-p", "few", "-C", "rack2&n3", "--prefer=[n4|rack2]", "--begin=now+3600",
        "--comment", comment, user="nobody",
    )  # fmt: skip
    slurm.run("scontrol", "update", f"JobId={id_}", "AdminComment=feedrack did=preferred a=[b|c]")
    job = await _until(
        lambda: _job(seam, id_), lambda found: found.reason == "BeginTime", "it says why it waits"
    )
    assert (job.id, job.state, job.user, job.partition) == (int(id_), "pending", "nobody", "few")
    assert (job.comment, job.admin_comment) == (comment, "feedrack did=preferred a=[b|c]")
    assert (job.features, job.prefer, job.hosts) == ("rack2&n3", "[n4|rack2]", ())
    assert job.eligible == pytest.approx(time.time() + _HOUR, abs=60)
    assert job in await seam.jobs()


async def test_a_job_that_runs_and_then_has_ended(seam: Slurm, slurm: SlurmLab) -> None:
    id_ = slurm.sbatch("-N2", "-C", "rack2", "--exclusive", script="exec sleep 3600")
    slurm.wait(id_, "RUNNING")
    job = await _job(seam, id_)
    assert (job.state, sorted(job.hosts), job.user) == ("running", ["n3", "n4"], "root")
    assert job.start == pytest.approx(time.time(), abs=60)
    assert (job.prefer, job.comment, job.admin_comment, job.burst_buffer) == ("", "", "", "")
    slurm.cancel(id_)
    slurm.wait(id_, "CANCELLED")
    assert int(id_) not in {each.id for each in await seam.jobs()}
    assert await seam.jobs([int(id_)]) == []


async def test_where_and_when_backfill_expects_a_job(seam: Slurm, slurm: SlurmLab) -> None:
    slurm.occupy("n1", "n2", "n3", "n4")
    id_ = slurm.sbatch("-N2", "-C", "rack1", "--exclusive", "-t", "5")
    job = await _until(
        lambda: _job(seam, id_), lambda found: bool(found.hosts), "backfill expects the job"
    )
    assert (job.state, sorted(job.hosts)) == ("pending", ["n1", "n2"])
    # Those that are in its way may run for an hour.
    assert time.time() + _HOUR - 120 < job.start < time.time() + _HOUR + 120


async def test_who_is_not_root_sees_hidden_partitions_too(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the daemon where SlurmUser is not root; of commands alone, since pyslurm always asks for
    all."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.etc / "slurm.conf"))
    for name in ("sinfo", "squeue", "scontrol"):
        words = shlex.join(slurm.wrap([name], user="nobody", cwd=slurm.work))
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nPATH={slurm.environment["PATH"]} exec {words} "$@"\n')
        path.chmod(0o755)
    seam = SlurmCommands(tmp_path)
    assert "few" not in slurm.run("sinfo", "-h", user="nobody").stdout
    assert sorted((await _host(seam, "n4")).partitions) == ["few", "main"]
    slurm.occupy("n3", "n4")
    id_ = slurm.sbatch("-p", "few", "-N1", "--exclusive", "-t", "5", "--prefer=n4")
    job = await _until(
        lambda: _job(seam, id_), lambda found: bool(found.hosts), "backfill expects the job"
    )
    assert set(job.hosts) < {"n3", "n4"}
    assert await seam.preferences() == {int(id_): "n4"}
    slurm.run("scontrol", "update", "PartitionName=few", "Default=YES")
    try:
        assert await seam.default_partition() == "few"
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "Default=YES")


async def test_some_jobs_of_which_some_are_gone(seam: Slurm, slurm: SlurmLab) -> None:
    ids = [int(slurm.sbatch("--begin=now+3600")) for _ in range(3)]
    assert {each.id for each in await seam.jobs()} == set(ids)
    assert [each.id for each in await seam.jobs(ids[:1])] == ids[:1]
    assert {each.id for each in await seam.jobs(ids[1:])} == set(ids[1:])
    assert [each.id for each in await seam.jobs([_NO_JOB, ids[0]])] == ids[:1]
    assert await seam.jobs([_NO_JOB]) == []
    assert await seam.jobs([_NO_JOB, _NOR_THIS]) == []


async def test_tasks_of_an_array_are_jobs_of_their_own(seam: Slurm, slurm: SlurmLab) -> None:
    slurm.sbatch("--array=1-2", "-N1", "--exclusive", script="exec sleep 3600")
    jobs = await _until(
        seam.jobs, lambda found: [each.state for each in found] == ["running"] * 2, "both run"
    )
    for job in jobs:
        assert await seam.jobs([job.id]) == [job]


async def test_a_job_is_held_to_a_place_and_let_go(seam: Slurm, slurm: SlurmLab) -> None:
    id_ = slurm.sbatch("--begin=now+3600", "-C", "rack1", script="exec sleep 3600")
    slurm.occupy("n3")
    await seam.hold(int(id_), "n3", start=time.time() - 60)
    job = await _until(
        lambda: _job(seam, id_), lambda found: found.reason != "BeginTime", "it is eligible"
    )
    assert (job.state, job.features) == ("pending", "n3")
    assert job.eligible == pytest.approx(time.time(), abs=60)
    await seam.relax(int(id_), "rack1", release=False)
    slurm.wait(id_, "RUNNING")
    job = await _job(seam, id_)
    assert job.features == "rack1"
    assert set(job.hosts) <= {"n1", "n2"}


async def test_a_job_is_held_until_later(seam: Slurm, slurm: SlurmLab) -> None:
    id_ = slurm.sbatch("--begin=now+60")
    when = float(int(time.time() + 2 * _HOUR))
    await seam.hold(int(id_), "rack2&n3", start=when)
    job = await _job(seam, id_)
    assert (job.features, job.eligible) == ("rack2&n3", when)


async def test_a_job_that_slurm_gave_up_is_released_without_a_constraint(
    seam: Slurm, slurm: SlurmLab
) -> None:
    id_ = slurm.sbatch("--hold", "-C", "rack1", script="exec sleep 3600")
    assert (await _job(seam, id_)).state == "pending"
    await seam.relax(int(id_), "", release=True)
    slurm.wait(id_, "RUNNING")
    assert (await _job(seam, id_)).features == ""


async def test_a_preference_is_taken_from_a_job(seam: Slurm, slurm: SlurmLab) -> None:
    id_ = slurm.sbatch("--hold", "--prefer=n4", "-C", "rack1")
    assert (await _job(seam, id_)).prefer == "n4"
    await seam.unprefer(int(id_))
    job = await _job(seam, id_)
    assert (job.prefer, job.features) == ("", "rack1")


async def test_a_change_that_cannot_be_is_said(seam: Slurm) -> None:
    with pytest.raises(SlurmUnavailable, match="scontrol"):
        await seam.unprefer(_NO_JOB)


async def test_what_is_no_text_hides_no_job(seam: Slurm, slurm: SlurmLab) -> None:
    odd = slurm.sbatch("--begin=now+3600", "--comment", "a\udcffb")
    plain = slurm.sbatch("--begin=now+3600", "--comment", "c")
    found = {each.id: each for each in await seam.jobs()}
    assert set(found) == {int(odd), int(plain)}
    assert found[int(plain)].comment == "c"


async def test_a_controller_that_hangs_holds_up_nobody(seam: Slurm, slurm: SlurmLab) -> None:
    pid = int((slurm.folder / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    longest, last = 0.0, time.monotonic()
    try:
        asked = asyncio.gather(seam.jobs(), seam.hosts(), return_exceptions=True)
        while not asked.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [type(each) for each in await asked] == [SlurmUnavailable] * 2
    assert longest < 2.0
    assert len(await seam.hosts()) == 4
