"""What Slurm's commands are given."""

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


async def given(folder: Path, start: float) -> str:
    """The words that `scontrol` gets."""
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$*" > {folder}/words\n')
    program.chmod(0o755)
    await SlurmCommands(folder).hold(7, "n4", start=start)
    return (folder / "words").read_text().strip()
