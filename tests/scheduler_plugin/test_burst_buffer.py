"""The script that holds a job until its data is staged, outside Slurm."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

_SITE = Path(__file__).parents[2] / "scheduler_plugin" / "site"


@pytest.fixture
def lua() -> str:
    program = shutil.which("lua5.1")
    if program is None:
        if "slurm" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail("REQUIRE names slurm: lua5.1 is not installed")
        pytest.skip("lua5.1 is not installed")
    return program


def data_in(lua: str, folder: Path, **environ: str) -> float:
    """How long a job is held that asks for five minutes, of which nothing is staged."""
    text = (_SITE / "burst_buffer.lua").read_text().replace("@STAGED@", str(folder))
    (folder / "script.lua").write_text(text.replace("@MOST_WAIT_MINUTES@", "60"))
    (folder / "job").write_text("#!/bin/sh\n#FEEDRACK stage=0.9 wait=5\ntrue\n")
    (folder / "4711").write_text(f"0.1 {int(time.time())}\n")
    calls = "slurm={SUCCESS=0}; dofile(arg[0]); assert(slurm_bb_data_in('4711', arg[1]) == 0)"
    (folder / "run.lua").write_text(calls.replace("arg[0]", f"'{folder}/script.lua'"))
    began = time.monotonic()
    subprocess.run(
        [lua, str(folder / "run.lua"), str(folder / "job")],
        check=True,
        timeout=20,
        env=environ,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def test_where_there_is_nothing_to_wait_with_a_job_is_not_held(lua: str, tmp_path: Path) -> None:
    """Else it would ask without a rest."""
    assert data_in(lua, tmp_path, PATH="/nowhere") < 10


def test_a_job_is_held_until_enough_is_staged(lua: str, tmp_path: Path) -> None:
    """Beside it stands a `sleep` that stages the rest, the second time it is called."""
    sleep = tmp_path / "sleep"
    staged = f"echo '0.95 {int(time.time())}' > {tmp_path}/4711"
    sleep.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/once ]; then {staged}; fi\necho >> {tmp_path}/once\n"
    )
    sleep.chmod(0o755)
    data_in(lua, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (tmp_path / "once").read_text() == "\n\n"
