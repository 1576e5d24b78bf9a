"""A server under measurement: started on free ports of the loopback, stopped again, its CPU and
memory read from the kernel.

A server is all of its processes: those started here, and their children. It runs on one core
unless it says otherwise, and the load generator on another, so that they do not take each other's
time, and so that rates are those of a core whatever the machine has.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from msgspec import Struct

HOST = "127.0.0.1"
ACCESS_KEY = "benchmark"
SECRET_KEY = "not-a-secret-but-for-the-benchmark"
READ_BUCKET = "read"
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
# A server that used less than this in a tenth of a second is at rest.
_SETTLED_SECONDS = 0.003


class PeerMissingError(Exception):
    """This peer cannot run here; the message is the line that says why."""


class ServerEndedError(Exception):
    """A server ended in the middle of a measurement; the message has the end of its log."""


class Memory(Struct, frozen=True):
    """Resident bytes of a server's processes: all, and without pages of files."""

    resident_bytes: int
    anonymous_bytes: int
    peak_resident_bytes: int


class Server(ABC):
    """One peer. `folder` is its own, for configuration, cache and logs; use as a context.

    `serves_files`: it answers from the files under `data`; others are given their objects by PUT.
    `caches`: it begins each round with nothing held. `put_missing`: why it is left out of PUT.
    `host` and `prefix` are where it runs: its address, and the words before its commands.
    """

    name: str
    note: str
    serves_files = True
    caches = False
    stop_signal = signal.SIGTERM
    put_missing: str | None = None
    host = HOST
    prefix: Sequence[str] = ()

    def __init__(self, data: Path, folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.port = free_port()
        self.cores = server_cores()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    @abstractmethod
    def version(self) -> str: ...

    @property
    def put_bucket(self) -> str:
        return f"put-{self.name.replace(' ', '-')}"

    @abstractmethod
    def launch(self) -> None:
        """Writes what the server needs into `folder` and spawns its processes."""

    @abstractmethod
    def ready(self) -> bool: ...

    def __enter__(self) -> Self:
        """Starts with an empty folder. RuntimeError with the log's end where it cannot."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.launch()
        self.await_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it; its folder is gone."""
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def await_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while not self.ready():
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > until:
                self._stop()
                raise RuntimeError(f"{self.name} does not start: {self._log_end()}")
            time.sleep(0.02)

    def check_alive(self) -> None:
        """ServerEndedError where one of its processes is no more."""
        for process in self.processes:
            if process.poll() is not None:
                raise ServerEndedError(
                    f"{self.name} ended with status {process.returncode}: {self._log_end()}"
                )

    def run_on(self, cores: set[int]) -> None:
        """Moves all threads of the server to these cores."""
        for process in self._family():
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)

    def cpu_seconds(self) -> float:
        """User and system time of all its processes, after they have come to rest.

        What goes on behind the answers (keeping, syncing) belongs to the requests that caused it.
        """
        before = self.cpu_seconds_now()
        for _ in range(50):
            time.sleep(0.1)
            now = self.cpu_seconds_now()
            if now - before < _SETTLED_SECONDS:
                return now
            before = now
        return before

    def cpu_seconds_now(self) -> float:
        """The same at this moment, whatever it does."""
        return sum(time.clock_gettime(_cpu_clock(process.pid)) for process in self._family())

    def forget_peak(self) -> None:
        """Sets the kernel's mark of the highest resident size back to the present."""
        for process in self._family():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def memory(self) -> Memory:
        """Sums over the server's processes, from /proc/PID/status; shared pages count in each."""
        fields = [_status(process.pid) for process in self._family()]
        return Memory(
            sum(each["VmRSS"] for each in fields),
            sum(each["RssAnon"] for each in fields),
            sum(each["VmHWM"] for each in fields),
        )

    def restart(self) -> None:
        """Ends and starts again, with an empty folder."""
        self._stop()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.launch()
        self.await_ready()

    def spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """A process of this server, on its cores, its output in the log."""
        cores = self.cores
        with (self.folder / "output.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.prefix, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                cwd=self.folder,
                process_group=0,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - no threads
            )
        self.processes.append(process)

    def listens(self, port: int) -> bool:
        try:
            socket.create_connection((self.host, port), timeout=1).close()
        except OSError:
            return False
        return True

    def _log_end(self) -> str:
        return (self.folder / "output.log").read_text("utf-8", "replace")[-2000:]

    def _family(self) -> list[psutil.Process]:
        parents = [
            psutil.Process(process.pid) for process in self.processes if process.poll() is None
        ]
        return [*parents, *(child for each in parents for child in each.children(recursive=True))]

    def _stop(self) -> None:
        processes, self.processes = self.processes, []
        # The last started rests on those before it.
        for process in reversed(processes):
            process.send_signal(self.stop_signal)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # What is left of it now are children whose parent did not see to them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def work_folder(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder for data, caches and logs, gone at the end. Default: where temporary files go."""
    return tempfile.TemporaryDirectory(prefix="feedrack-bench-", dir=parent)


def client_cores() -> set[int]:
    """The load generator's core: the last one."""
    return {max(os.sched_getaffinity(0))}


def server_cores() -> set[int]:
    """The servers' core: the first one."""
    return {min(os.sched_getaffinity(0))}


def worker_cores() -> set[int]:
    """Two cores: the load generator's is one of them where there are no more."""
    return set(sorted(os.sched_getaffinity(0))[:2])


def _cpu_clock(pid: int) -> int:
    """The clock of a process's user and system time, in nanoseconds where /proc has hundredths.

    What clock_getcpuclockid(3) gives; Python does not wrap it for other processes.
    """
    return (~pid << 3) | 2


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = (line.partition(":")[::2] for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in sizes}
