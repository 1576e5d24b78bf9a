"""A load generator in a process of its own, on a core of its own."""

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.jobs import Job, Outcome
from benchmarks.server import client_cores


class Driver:
    """Hands jobs to `benchmarks.load` and waits for the outcomes; use as a context."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.sched_setaffinity(self._process.pid, client_cores())
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
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(job) + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError("the load generator broke; its message is above")
        return msgspec.json.decode(line, type=Outcome)
