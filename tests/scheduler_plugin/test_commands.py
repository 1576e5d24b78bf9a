"""What Slurm's commands are given."""

import json
import time
from pathlib import Path

import pytest

from scheduler_plugin.slurm.commands import SlurmCommands


@pytest.mark.parametrize(("ahead_seconds", "zone"), [(7200, "UTC"), (7200, "Europe/Berlin")])
async def test_a_start_is_the_same_moment_in_every_time_zone(
    ahead_seconds: int, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock goes back, the text of a local time stands for two moments."""
    monkeypatch.setenv("TZ", zone)
    start = int(time.time()) + ahead_seconds
    assert await given(tmp_path, float(start)) == f"update JobId=7 Features=n4 StartTime=uts{start}"


async def test_what_has_passed_is_now(tmp_path: Path) -> None:
    assert await given(tmp_path, 1.0) == "update JobId=7 Features=n4 StartTime=now"


@pytest.mark.parametrize("release", ["22.05.8", "24.11.5"])
async def test_every_question_is_of_hidden_partitions_too(release: str, tmp_path: Path) -> None:
    waits = {"job_id": 7, "job_state": "PENDING", "user_name": "nobody", "start_time": 1}
    answers = {
        "sinfo": f'case "$*" in --version) echo slurm {release} ;; *json*) echo "$answer" ;; esac',
        "squeue": 'case "$*" in *json*) echo "$answer" ;; esac',
        "scontrol": 'echo "$answer"',
    }
    answer = json.dumps({"nodes": [], "jobs": [waits]})
    for name, body in answers.items():
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\necho {name} $* >> {tmp_path}/words\nanswer='{answer}'\n{body}\n"
        )
        program.chmod(0o755)
    slurm = SlurmCommands(tmp_path)
    await slurm.hosts()
    await slurm.default_partition()
    await slurm.preferences()
    assert [job.id for job in await slurm.jobs()] == [7]
    await slurm.jobs([7])
    asked = (tmp_path / "words").read_text().splitlines()
    questions = [line for line in asked if "--version" not in line]
    assert len(questions) >= 5
    assert all(" --all " in line for line in questions), questions


async def given(folder: Path, start: float) -> str:
    """The words that `scontrol` gets."""
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$*" > {folder}/words\n')
    program.chmod(0o755)
    await SlurmCommands(folder).hold(7, "n4", start=start)
    return (folder / "words").read_text().strip()
