"""A load generator in a process of its own, on a core of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.jobs import Job, Outcome
from benchmarks.server import client_cores


class Driver:
    """Hands jobs to `benchmarks.load` and waits for the outcomes; use as a context. `prefix`: words
    before its command, that put it elsewhere; `cores`: the load generator's, unless others."""

    def __init__(self, prefix: Sequence[str] = (), cores: set[int] | None = None) -> None:
        self._prefix = prefix
        self._cores = client_cores() if cores is None else cores

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "benchmarks.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.sched_setaffinity(self._process.pid, self._cores)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        # Its input ends: that is what it waits for. Then its end is waited for.
        with self._process:
            pass

    def run(self, job: Job) -> Outcome:
        """The outcome. RuntimeError where the load generator itself broke."""
        self.ask(job)
        return self.outcome()

    def ask(self, job: Job) -> None:
        """Hands a job over; `outcome` waits for it."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(job) + b"\n")
        stdin.flush()

    def outcome(self) -> Outcome:
        """What came of the job that was asked. RuntimeError where the generator itself broke."""
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError("the load generator broke; its message is above")
        return msgspec.json.decode(line, type=Outcome)
