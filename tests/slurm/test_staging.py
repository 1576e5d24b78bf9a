"""A job that asks for it is held until its data is staged, and no longer."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_plugin.warming import STARTED_PRIORITY
from tests.slurm.placed import Placed
from tests.waiting import wait_until

COLD = "s3://train/cold"


class _Staged(Placed):
    """With `burst_buffer/lua`, as `feedrack-affinity install --burst-buffer` sets it up."""

    def _install(self) -> None:
        super()._install()
        (self.slurm.etc / "burst_buffer.conf").write_text("Directive=FEEDRACK\n")
        self.slurm.settings["BurstBufferType"] = "burst_buffer/lua"

    def submit(self, *lines: str, dataset: str = COLD) -> str:
        """A job of a user's: Slurm stages nothing for root."""
        script = "\n".join(("#!/bin/sh", *lines, "true"))
        return self.slurm.sbatch(
            "--export=NONE", f"--comment=dataset={dataset}", script=script, user="nobody"
        )

    def file(self, job: str) -> Path:
        return self.site / "staged" / job

    def tell(self, job: str, part: str) -> None:
        """In the daemon's place."""
        self.file(job).write_text(f"{part} {int(time.time())}\n")
        os.utime(self.file(job), (1.0, 1.0))

    def was_read(self, job: str) -> bool:
        """Since it was told: reading brings the time of the last reading up to now."""
        return self.file(job).stat().st_atime > 2.0


@pytest.fixture(scope="module")
def cluster(slurm_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    with _Staged(
        tmp_path_factory.mktemp("staged"), gateways=("n1", "n4"), parts=("--burst-buffer",)
    ) as placed:
        yield placed


@pytest.fixture
def staged(placed: Placed) -> _Staged:
    assert isinstance(placed, _Staged)
    # The daemon makes it, and is not to be stopped before.
    wait_until((placed.site / "staged").is_dir, "the daemon starts")
    return placed


def _was_staged(staged: _Staged, job: str) -> bool:
    """Whether all of it was brought in before the job ran: what it asks for as it runs is more
    urgent, and what is on its way by then becomes so."""
    prefetches = staged.fleet.ask(0, f"/v1/prefetch?job={job}")["prefetches"]
    return any(
        each["state"] == "done" and each["bytes"]["done"] == 4 * 2 * 64 * 1024
        for each in prefetches
        if each["priority"] < STARTED_PRIORITY
    )


def test_a_job_starts_once_its_data_is_in_a_rack(staged: _Staged) -> None:
    staged.put(COLD)
    job = staged.submit("#FEEDRACK stage=1 wait=5")
    staged.slurm.wait(job, "COMPLETED", seconds=60)
    assert _was_staged(staged, job)
    # What was told of it is cleared away.
    wait_until(lambda: not staged.file(job).exists(), "its file is gone")


def test_it_waits_for_as_much_as_it_asks_for(staged: _Staged) -> None:
    staged.signal_daemon(signal.SIGSTOP)
    try:
        job = staged.submit("#FEEDRACK stage=0.9 wait=5")
        wait_until(
            lambda: staged.slurm.job(job)["Reason"] == "BurstBufferStageIn",
            "it is held",
        )
        staged.tell(job, "0.8999")
        # The script has looked once the file has been read after it was put there.
        wait_until(lambda: staged.was_read(job), "somebody reads what is told")
        assert staged.slurm.state(job) == "PENDING"
        staged.tell(job, "0.9")
        staged.slurm.wait(job, "COMPLETED", seconds=30)
    finally:
        staged.signal_daemon(signal.SIGCONT)


def test_a_job_waits_also_while_no_rack_is_known_yet(staged: _Staged, tmp_path: Path) -> None:
    dataset = "s3://train/early"
    staged.put(dataset)
    late = _LateHosts(tmp_path, staged.slurm.commands_folder)
    staged.end_daemon()
    staged.start_daemon(slurm={"commands_folder": str(tmp_path), "poll_seconds": 0.2})
    try:
        job = staged.submit("#FEEDRACK stage=1 wait=5", dataset=dataset)
        seen = late.looks()
        wait_until(lambda: late.looks() >= seen + 4, "the daemon looks at the queue")
        assert not staged.file(job).exists()
        assert staged.slurm.state(job) == "PENDING"
        late.tell()
        staged.slurm.wait(job, "COMPLETED", seconds=60)
        assert _was_staged(staged, job)
    finally:
        late.tell()
        staged.end_daemon()
        staged.start_daemon()


class _LateHosts:
    """Slurm's commands in `folder`: what its hosts are is answered once it is to be told."""

    _SCRIPT = """#!/bin/sh
case "{name} $*" in
"squeue "*) echo >> {folder}/looks ;;
"sinfo "*--json* | "scontrol "*"show nodes"*) until [ -e {folder}/told ]; do sleep 0.1; done ;;
esac
exec {real} "$@"
"""

    def __init__(self, folder: Path, commands: Path) -> None:
        self._folder = folder
        for name in ("sinfo", "squeue", "scontrol"):
            path = folder / name
            path.write_text(
                self._SCRIPT.format(name=name, folder=folder, real=commands / name),
            )
            path.chmod(0o755)

    def looks(self) -> int:
        """How often the queue was asked for."""
        path = self._folder / "looks"
        return path.stat().st_size if path.exists() else 0

    def tell(self) -> None:
        (self._folder / "told").touch()


def test_what_does_not_exist_is_not_waited_for(staged: _Staged) -> None:
    job = staged.submit("#FEEDRACK stage=1 wait=30", dataset="s3://nobucket/x")
    staged.slurm.wait(job, "COMPLETED", seconds=60)


def test_a_job_without_the_line_is_not_held(staged: _Staged) -> None:
    job = staged.submit()
    staged.slurm.wait(job, "COMPLETED", seconds=30)
    assert not staged.file(job).exists()


def test_a_wait_ends_by_itself(staged: _Staged) -> None:
    staged.signal_daemon(signal.SIGSTOP)
    try:
        job = staged.submit("#FEEDRACK stage=1 wait=0")
        staged.slurm.wait(job, "COMPLETED", seconds=30)
    finally:
        staged.signal_daemon(signal.SIGCONT)
