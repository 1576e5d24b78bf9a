"""Slurm through pyslurm, where the site has it: nodes and jobs straight from the controller, with
no command started, and none of the hundred fields printed and read that nobody asks for.

pyslurm runs in a process of its own (`reading` says why), that is ended, and started anew at the
next question, whenever it fails or takes too long. Jobs are changed by `scontrol`, as ever.
"""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

from msgspec.structs import replace

from scheduler_plugin.slurm.commands import SlurmCommands
from scheduler_plugin.slurm.model import Host, Job, SlurmUnavailable
from scheduler_plugin.slurm.reading import HEAD
from scheduler_plugin.slurm.records import lacks_preferences, read_hosts, read_jobs, release_of

_READING = (sys.executable, "-m", "scheduler_plugin.slurm.reading")
_MOST_ANSWER_BYTES = 1024**3


class SlurmBindings:
    """Implements Slurm between `async with` and its end, at whose start SlurmUnavailable says that
    there is no pyslurm, or none for this release. `reading`: the words that start its process."""

    def __init__(
        self,
        commands: SlurmCommands,
        *,
        timeout_seconds: float = 20.0,
        reading: Sequence[str] = _READING,
    ) -> None:
        self._commands = commands
        self._timeout_seconds = timeout_seconds
        self._reading = reading
        self._process: asyncio.subprocess.Process | None = None
        # What Slurm's library writes, of which the last matters if it ends the process.
        self._said: IO[bytes] | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._ask(None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def release(self) -> tuple[int, int, int]:
        return await self._commands.release()

    async def hosts(self) -> Sequence[Host]:
        return read_hosts(await self._ask("nodes"))

    async def default_partition(self) -> str:
        return await self._commands.default_partition()

    async def jobs(self, ids: Sequence[int] = ()) -> Sequence[Job]:
        """Those that wait or run; of `ids` these alone, without the ones that are gone."""
        raw = await self._ask("jobs")
        wanted = frozenset(ids)
        jobs = [
            each
            for each in read_jobs(raw)
            if each.state != "ended" and (not wanted or each.id in wanted)
        ]
        if not lacks_preferences(raw) or all(each.state != "pending" for each in jobs):
            return jobs
        known = await self._commands.preferences()
        return [replace(job, prefer=known.get(job.id, "")) for job in jobs]

    async def hold(self, job_id: int, features: str, *, start: float) -> None:
        await self._commands.hold(job_id, features, start=start)

    async def relax(self, job_id: int, features: str, *, release: bool) -> None:
        await self._commands.relax(job_id, features, release=release)

    async def unprefer(self, job_id: int) -> None:
        await self._commands.unprefer(job_id)

    async def _ask(self, question: str | None) -> bytes:
        """The answer's document; without a question only sees to it that some could be asked."""
        async with self._turn:
            answered = False
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    process = self._process or await self._start()
                    answer = (
                        await self._exchange(process, question) if question is not None else b""
                    )
                answered = True
            except TimeoutError as error:
                raise SlurmUnavailable(
                    f"pyslurm: no answer in {self._timeout_seconds:g} s"
                ) from error
            finally:
                # One of which an answer is still to come would give it to the next question.
                if not answered:
                    await self._end()
            return answer

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _end
            process = await asyncio.create_subprocess_exec(
                *self._reading,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._said,
                limit=2**20,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmUnavailable(f"{self._reading[0]}: {error.strerror}") from error
        self._process = process
        is_for = release_of((await self._answer(process)).decode())
        has = await self._commands.release()
        if is_for[:2] != has[:2]:
            raise SlurmUnavailable(
                f"pyslurm: that of Slurm {is_for[0]}.{is_for[1]:02} is installed, and Slurm is"
                f" {has[0]}.{has[1]:02}"
            )
        return process

    async def _exchange(self, process: asyncio.subprocess.Process, question: str) -> bytes:
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(ConnectionError):
            # Of one that has ended the answer is missing; there it is told of.
            process.stdin.write(f"{question}\n".encode())
            await process.stdin.drain()
        return await self._answer(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> bytes:
        """One answer's body. SlurmUnavailable where it is a refusal, or does not come."""
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            well, size = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            if size > _MOST_ANSWER_BYTES:
                raise SlurmUnavailable(f"pyslurm: an answer of {size} bytes")
            body = await process.stdout.readexactly(size)
        except asyncio.IncompleteReadError as error:
            status = await process.wait()
            raise SlurmUnavailable(
                f"pyslurm: its process ended, status {status}: {self._last_said()}"
            ) from error
        if not well:
            raise SlurmUnavailable(f"pyslurm: {body.decode('utf-8', 'replace')}")
        return body

    def _last_said(self) -> str:
        if self._said is None:
            return ""
        self._said.seek(max(0, self._said.seek(0, 2) - 500))
        return self._said.read().decode("utf-8", "replace").strip()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        if self._said is not None:
            self._said.close()
            self._said = None
