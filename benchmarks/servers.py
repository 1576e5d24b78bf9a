"""The peers: started on free ports of the loopback, stopped again, their CPU and memory read.

Every server writes one log line a request to a file, as an operator would run it.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
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
_START_SECONDS = 20.0
_STOP_SECONDS = 30.0
# A server that used less than this in a tenth of a second is at rest.
_SETTLED_SECONDS = 0.003


class PeerMissingError(Exception):
    """This peer cannot run here; the message is the line that says why."""


class Memory(Struct, frozen=True):
    """Resident bytes of a server's processes: all, and without pages of files."""

    resident_bytes: int
    anonymous_bytes: int
    peak_resident_bytes: int


class Server(ABC):
    """One peer. `folder` is its own, for configuration, cache and logs; use as a context."""

    name: str
    note: str
    put_missing: str | None = None

    def __init__(self, data: Path, folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def version(self) -> str: ...

    @property
    def put_bucket(self) -> str:
        return f"put-{self.name}"

    @abstractmethod
    def command(self) -> list[str]:
        """Writes what the server needs into `folder`; the command that runs it in front."""

    @abstractmethod
    def ready(self) -> bool: ...

    def __enter__(self) -> Self:
        """Starts with an empty folder. RuntimeError with the log's end where it cannot."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.data / self.put_bucket).mkdir(exist_ok=True)
        log = self.folder / "stderr.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                self.command(),
                stdout=errors,
                stderr=errors,
                preexec_fn=_to_server_cores,  # noqa: PLW1509 - no threads here
            )
        until = time.monotonic() + _START_SECONDS
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self._stop()
                raise RuntimeError(f"{self.name} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.data / self.put_bucket, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """User and system time of the process and its children, after it has come to rest.

        What goes on behind the answers (keeping, syncing) belongs to the requests that caused it.
        """
        before = self._cpu_seconds()
        for _ in range(50):
            time.sleep(0.1)
            now = self._cpu_seconds()
            if now - before < _SETTLED_SECONDS:
                return now
            before = now
        return before

    def forget_peak(self) -> None:
        """Sets the kernel's mark of the highest resident size back to the present."""
        for process in self._family():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def memory(self) -> Memory:
        """Sums over the server's processes, from /proc/PID/status."""
        fields = [_status(process.pid) for process in self._family()]
        return Memory(
            sum(each["VmRSS"] for each in fields),
            sum(each["RssAnon"] for each in fields),
            sum(each["VmHWM"] for each in fields),
        )

    def _cpu_seconds(self) -> float:
        return sum(time.clock_gettime(_cpu_clock(process.pid)) for process in self._family())

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Nginx(Server):
    """nginx with one worker and sendfile, serving the origin's files."""

    name = "nginx"
    note = "static files, sendfile, one worker; no signatures checked; PUT by its dav module"

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        # Debian's sbin is not on everybody's path.
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
        program = shutil.which("nginx", path=path)
        if program is None:
            raise PeerMissingError("nginx is not installed (Debian: apt-get install nginx-light)")
        self._program = program
        said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stderr
        self._version = said.partition("\n")[0].rpartition("/")[2]
        if "http_dav_module" not in said:
            self.put_missing = "this nginx is built without its dav module"

    @property
    def version(self) -> str:
        return f"nginx {self._version}"

    def command(self) -> list[str]:
        dav = "" if self.put_missing else "dav_methods PUT; create_full_put_path on;"
        user = "user root;" if os.geteuid() == 0 else ""
        config = self.folder / "nginx.conf"
        config.write_text(f"""
            {user}
            daemon off;
            worker_processes 1;
            pid {self.folder}/nginx.pid;
            error_log stderr;
            events {{ worker_connections 1024; }}
            http {{
                sendfile on;
                tcp_nopush on;
                default_type application/octet-stream;
                access_log {self.folder}/access.log;
                keepalive_requests 1000000000;
                client_max_body_size 0;
                client_body_temp_path {self.data}/{self.put_bucket}/.incoming;
                proxy_temp_path {self.folder}/proxy;
                fastcgi_temp_path {self.folder}/fastcgi;
                uwsgi_temp_path {self.folder}/uwsgi;
                scgi_temp_path {self.folder}/scgi;
                server {{
                    listen {HOST}:{self.port};
                    root {self.data};
                    {dav}
                }}
            }}
        """)
        return [self._program, "-e", "stderr", "-c", str(config)]

    def ready(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


class Feedrack(Server):
    """One node over a directory origin, with an empty cache of its own each time it starts."""

    name = "feedrack"
    note = "one node, directory origin, signatures checked, every kept byte under a checksum"

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        program = Path(sys.executable).parent / "feedrack"
        if not program.exists():
            raise PeerMissingError("feedrack is not installed beside this Python")
        self._program = str(program)
        self._admin_port = free_port()

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=True
        )
        return f"feedrack {said.stdout.strip().rpartition(' ')[2]}"

    def command(self) -> list[str]:
        secret = self.folder / "secret"
        secret.write_text(SECRET_KEY)
        config = self.folder / "feedrack.toml"
        config.write_text(f"""
            [s3]
            listen = "{HOST}:{self.port}"
            [admin]
            listen = "{HOST}:{self._admin_port}"
            [cache]
            path = "{self.folder}/cache"
            capacity = "64GiB"
            [origins.main]
            type = "directory"
            path = "{self.data}"
            [[tenants]]
            name = "benchmark"
            access_key = "{ACCESS_KEY}"
            secret_key_file = "{secret}"
            policy = [{{ allow = ["*"], buckets = ["*"] }}]
        """)
        return [self._program, "serve", "--config", str(config)]

    def ready(self) -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{HOST}:{self._admin_port}/readyz", timeout=1) as answer,
        ):
            return bool(answer.status == 200)
        return False


PEERS: dict[str, type[Server]] = {"nginx": Nginx, "feedrack": Feedrack}


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


def _to_server_cores() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores - {max(cores)} or cores)


def _cpu_clock(pid: int) -> int:
    """The clock of a process's user and system time, in nanoseconds where /proc has hundredths.

    What clock_getcpuclockid(3) gives; Python does not wrap it for other processes.
    """
    return (~pid << 3) | 2


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = (line.partition(":")[::2] for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in sizes}
