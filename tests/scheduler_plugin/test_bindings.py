"""The daemon's side of pyslurm's process, whatever that does; what pyslurm tells is tested in
tests/slurm/test_seam.py, with a Slurm."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler_plugin.config import SlurmConfig
from scheduler_plugin.slurm.bindings import SlurmBindings
from scheduler_plugin.slurm.choice import open_slurm
from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import SlurmUnavailable
from tests.waiting import until, wait_until

_SAY = """
import os, sys, time
from scheduler_plugin.slurm.reading import HEAD
def say(text, well=True):
    sys.stdout.buffer.write(HEAD.pack(well, len(text.encode())) + text.encode())
    sys.stdout.buffer.flush()
"""
_NODES = '{"nodes": [{"name": "n1"}]}'


@pytest.fixture
def commands(tmp_path: Path) -> SlurmCommands:
    """Of release 22.05.8, and no more than that."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho slurm 22.05.8\n")
    sinfo.chmod(0o755)
    return SlurmCommands(tmp_path)


def _bindings(commands: SlurmCommands, script: str, *, seconds: float = 20.0) -> SlurmBindings:
    words = [sys.executable, "-c", _SAY + script]
    return SlurmBindings(commands, timeout_seconds=seconds, reading=words)


async def test_what_is_no_pyslurm_for_this_release_is_refused(commands: SlurmCommands) -> None:
    with pytest.raises(SlurmUnavailable, match=r"that of Slurm 25\.11 .* Slurm is 22\.05"):
        await _bindings(commands, "say('25.11.2'); sys.stdin.read()").__aenter__()


@pytest.mark.skipif(
    importlib.util.find_spec("pyslurm") is not None, reason="pyslurm is installed here"
)
async def test_that_there_is_none_is_said_at_the_start(commands: SlurmCommands) -> None:
    with pytest.raises(SlurmUnavailable, match="pyslurm: No module named 'pyslurm'"):
        await SlurmBindings(commands).__aenter__()
    with pytest.raises(SlurmUnavailable, match="pyslurm"):
        async with open_slurm(SlurmConfig(pyslurm=True)):
            pytest.fail("it was opened")


async def test_unless_it_is_asked_for_commands_are_used() -> None:
    async with open_slurm(SlurmConfig()) as slurm:
        assert isinstance(slurm, SlurmCommands)


async def test_one_process_answers_many_questions_in_their_order(commands: SlurmCommands) -> None:
    script = (
        "say('22.5.3')\n"
        "for line in sys.stdin:\n"
        '    say(\'{"nodes": [{"name": "%d"}]}\' % os.getpid() if line == \'nodes\\n\'\n'
        '        else \'{"jobs": [{"job_id": 7, "job_state": "RUNNING"}]}\')\n'
    )
    async with _bindings(commands, script) as slurm:
        first, jobs, second = await asyncio.gather(slurm.hosts(), slurm.jobs(), slurm.hosts())
        assert first == second
        assert [each.id for each in jobs] == [7]
        assert await slurm.jobs([8]) == []
        pid = int(first[0].name)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_that_dies_is_followed_by_another(
    commands: SlurmCommands, tmp_path: Path
) -> None:
    script = (
        f"died = {str(tmp_path / 'died')!r}\n"
        "say('22.5.3')\n"
        "for line in sys.stdin:\n"
        "    if not os.path.exists(died):\n"
        "        open(died, 'w').close()\n"
        "        os.abort()\n"
        f"    say({_NODES!r})\n"
    )
    async with _bindings(commands, script) as slurm:
        with pytest.raises(SlurmUnavailable, match="its process ended, status -6"):
            await slurm.hosts()
        assert [each.name for each in await slurm.hosts()] == ["n1"]


async def test_one_that_hangs_is_ended_and_its_late_answer_goes_to_nobody(
    commands: SlurmCommands, tmp_path: Path
) -> None:
    script = (
        f"hung = {str(tmp_path / 'hung')!r}\n"
        "say('22.5.3')\n"
        "for line in sys.stdin:\n"
        "    if not os.path.exists(hung):\n"
        "        open(hung, 'w').close()\n"
        "        sys.stdout.buffer.write(HEAD.pack(True, 10))\n"
        "        sys.stdout.buffer.flush()\n"
        "        time.sleep(3600)\n"
        f"    say({_NODES!r})\n"
    )
    async with _bindings(commands, script, seconds=3.0) as slurm:
        began = time.monotonic()
        with pytest.raises(SlurmUnavailable, match="no answer in 3 s"):
            await slurm.hosts()
        assert time.monotonic() - began < 10.0
        assert [each.name for each in await slurm.hosts()] == ["n1"]


async def test_whoever_stops_asking_leaves_nothing_for_the_next(
    commands: SlurmCommands, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    script = (
        f"asked = {str(asked)!r}\n"
        "say('22.5.3')\n"
        "for line in sys.stdin:\n"
        "    if not os.path.exists(asked):\n"
        "        open(asked, 'w').close()\n"
        "        time.sleep(3600)\n"
        f"    say({_NODES!r})\n"
    )
    async with _bindings(commands, script) as slurm:
        task = asyncio.create_task(slurm.hosts())
        await until(asked.exists, "it is asked")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each.name for each in await slurm.hosts()] == ["n1"]


def test_it_does_not_outlive_a_daemon_that_is_killed(
    commands: SlurmCommands, tmp_path: Path
) -> None:
    ends = tmp_path / "ends"
    script = f"say('22.5.3')\nsys.stdin.read()\nopen({str(ends)!r}, 'w').close()\n"
    daemon = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from scheduler_plugin.slurm.bindings import SlurmBindings\n"
        "from scheduler_plugin.slurm.commands import SlurmCommands\n"
        "async def main():\n"
        f"    commands = SlurmCommands(Path({str(tmp_path)!r}))\n"
        f"    words = [sys.executable, '-c', {_SAY + script!r}]\n"
        "    async with SlurmBindings(commands, reading=words):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", daemon], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert not ends.exists()
        process.kill()
    wait_until(ends.exists, "it ends")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("say('RPCError: no controller', well=False)", "RPCError: no controller"),
        ("say('[]')", "cannot be read"),
        ("sys.stdout.buffer.write(HEAD.pack(True, 2**40)); sys.stdout.flush()", "an answer of"),
        ("sys.exit(3)", "status 3"),
        ("sys.exit('fatal: Could not establish')", "status 1: fatal: Could not establish"),
    ],
)
async def test_a_refusal_and_what_is_no_answer_are_said(
    commands: SlurmCommands, said: str, match: str
) -> None:
    script = f"say('22.5.3')\nfor line in sys.stdin:\n    {said}\n"
    async with _bindings(commands, script) as slurm:
        with pytest.raises(SlurmUnavailable, match=match):
            await slurm.hosts()


@pytest.mark.parametrize("said", ["say('nonsense')", "say('')", "pass"])
async def test_what_says_no_release_is_refused(commands: SlurmCommands, said: str) -> None:
    with pytest.raises(SlurmUnavailable):
        await _bindings(commands, said).__aenter__()
