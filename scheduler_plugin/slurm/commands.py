"""Slurm by its commands: `sinfo`, `squeue` and `scontrol`, each a process, no shell between.

All are asked for partitions that are hidden too, and for those of other groups: jobs wait in these
as in any other, and without it whoever is not root or SlurmUser is told nothing of them.

They find the controller as they do for an operator, by SLURM_CONF or /etc/slurm. Every one is given
a time, and ended if it takes longer: a controller that hangs must not hang us.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from scheduler_plugin.slurm.model import Host, Job, SlurmUnavailable
from scheduler_plugin.slurm.records import (
    default_partition,
    expand_hosts,
    lacks_expected_hosts,
    read_hosts,
    read_jobs,
    release_of,
)

_MOST_OUTPUT_BYTES = 1024**3
_KILLED_SECONDS = 5.0
# Since this release `scontrol` writes JSON, and `sinfo` sums nodes up in it.
_SCONTROL_JSON = (23, 2, 0)
_NO_SUCH_JOB = "Invalid job id"
# Signs of a preference; the controller refuses longer ones.
_MOST_PREFER = 1024


class SlurmCommands:
    """Implements Slurm. `folder`: where the commands are; without it PATH says."""

    def __init__(self, folder: Path | None = None, *, timeout_seconds: float = 20.0) -> None:
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._release: tuple[int, int, int] | None = None

    async def release(self) -> tuple[int, int, int]:
        """Asked once: commands of another release come with a restart."""
        if self._release is None:
            self._release = release_of((await self._run("sinfo", "--version")).decode())
        return self._release

    async def hosts(self) -> Sequence[Host]:
        if await self.release() >= _SCONTROL_JSON:
            return read_hosts(await self._run("scontrol", "--all", "show", "nodes", "--json"))
        return read_hosts(await self._run("sinfo", "--all", "--json"))

    async def default_partition(self) -> str:
        text = await self._run("sinfo", "--all", "--noheader", "--format=%P")
        return default_partition(text.decode("utf-8", "replace").split())

    async def jobs(self, ids: Sequence[int] = ()) -> Sequence[Job]:
        """Those that wait or run; of `ids` these alone, without the ones that are gone."""
        chosen = [f"--jobs={','.join(map(str, ids))}"] if ids else []
        try:
            raw = await self._run("squeue", "--all", "--json", *chosen)
        except SlurmUnavailable as error:
            # Of several it leaves out those that are gone; asked for one alone it fails.
            if ids and _NO_SUCH_JOB in str(error):
                return []
            raise
        # 22.05 gives all jobs as JSON, whichever are asked for.
        wanted = frozenset(ids)
        jobs = [
            each
            for each in await asyncio.to_thread(read_jobs, raw)
            if each.state != "ended" and (not wanted or each.id in wanted)
        ]
        if not lacks_expected_hosts(raw) or all(each.start == 0 for each in jobs):
            return jobs
        return await self._with_expected_hosts(jobs)

    async def hold(self, job_id: int, features: str, *, start: float) -> None:
        await self._update(job_id, f"Features={features}", f"StartTime={_time(start)}")

    async def relax(self, job_id: int, features: str, *, release: bool) -> None:
        await self._update(job_id, f"Features={features}")
        if release:
            await self._run("scontrol", "release", f"{job_id:d}")

    async def unprefer(self, job_id: int) -> None:
        await self._update(job_id, "Prefer=")

    async def preferences(self) -> Mapping[int, str]:
        """What the jobs that wait prefer, by their ids; of those only that do."""
        text = await self._run(
            "squeue",
            "--all",
            "--noheader",
            "--states=PENDING",
            f"--Format=JobID:12,Prefer:{_MOST_PREFER}",
        )
        found: dict[int, str] = {}
        for line in text.decode("utf-8", "replace").splitlines():
            id_, _, prefer = line.partition(" ")
            if id_.isdecimal() and (wanted := prefer.strip()) not in ("", "(null)"):
                found[int(id_)] = wanted
        return found

    async def _with_expected_hosts(self, jobs: Sequence[Job]) -> Sequence[Job]:
        text = await self._run(
            "squeue", "--all", "--noheader", "--states=PENDING", "--format=%A %Y"
        )
        expected: dict[int, tuple[str, ...]] = {}
        for line in text.decode("utf-8", "replace").splitlines():
            id_, _, where = line.strip().partition(" ")
            if id_.isdecimal() and where and not where.startswith("("):
                expected[int(id_)] = expand_hosts(where.strip())
        return [
            replace(job, hosts=hosts)
            if job.state == "pending" and (hosts := expected.get(job.id))
            else job
            for job in jobs
        ]

    async def _update(self, job_id: int, *changes: str) -> None:
        await self._run("scontrol", "update", f"JobId={job_id:d}", *changes)

    async def _run(self, command: str, *arguments: str) -> bytes:
        """What the command prints. SlurmUnavailable where it fails, or takes too long."""
        program = str(self._folder / command) if self._folder is not None else command
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"},
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmUnavailable(f"{program}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout_seconds):
                out, said = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                status = await process.wait()
        except TimeoutError as error:
            raise SlurmUnavailable(
                f"{command}: no answer in {self._timeout_seconds:g} s"
            ) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                # One that waits for a disk does not even end by that: it is left.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_KILLED_SECONDS):
                        await process.wait()
        if status != 0:
            why = said.decode("utf-8", "replace").strip()[-500:]
            raise SlurmUnavailable(f"{command}: exit status {status}: {why}")
        return out


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None  # noqa: S101 - a pipe was asked for
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(2**18):
        size += len(piece)
        if size > _MOST_OUTPUT_BYTES:
            raise SlurmUnavailable(f"more than {_MOST_OUTPUT_BYTES} bytes of output")
        pieces.append(piece)
    return b"".join(pieces)


def _time(seconds: float) -> str:
    """As `scontrol` reads it: by seconds since 1970, as local time has one hour a year twice. What
    has passed is now."""
    return f"uts{math.ceil(seconds)}" if seconds > time.time() else "now"
