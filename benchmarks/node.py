"""feedrack itself: one node over a directory or an S3 origin, as an operator would run it."""

import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

from benchmarks.server import (
    ACCESS_KEY,
    HOST,
    SECRET_KEY,
    PeerMissingError,
    Server,
    free_port,
    worker_cores,
)


class Feedrack(Server):
    """One node over a directory origin, with an empty cache of its own each time it starts."""

    name = "feedrack"
    note = (
        "one process over a directory origin, signatures checked, every kept byte under a "
        "checksum, one log line a request, PUTs synced"
    )
    caches = True
    workers = 1

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        program = Path(sys.executable).parent / "feedrack"
        if not program.exists():
            raise PeerMissingError("it is not installed beside this Python")
        self._program = str(program)
        self._admin_port = free_port()

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=True
        )
        return f"feedrack {said.stdout.strip().rpartition(' ')[2]}"

    def origin(self) -> str:
        """The `[origins.main]` table's lines."""
        return f"""
            type = "directory"
            path = "{self.data}"
        """

    def write_config(self) -> Path:
        secret = self.folder / "secret"
        secret.write_text(SECRET_KEY)
        config = self.folder / "feedrack.toml"
        config.write_text(f"""
            [node]
            workers = {self.workers}
            [s3]
            listen = "{self.host}:{self.port}"
            [admin]
            listen = "{self.host}:{self._admin_port}"
            [cache]
            path = "{self.folder}/cache"
            capacity = "64GiB"
            [origins.main]
            {self.origin()}
            [[tenants]]
            name = "benchmark"
            access_key = "{ACCESS_KEY}"
            secret_key_file = "{secret}"
            policy = [{{ allow = ["*"], buckets = ["*"] }}]
        """)
        return config

    def launch(self) -> None:
        (self.data / self.put_bucket).mkdir(exist_ok=True, parents=True)
        self.spawn([self._program, "serve", "--config", str(self.write_config())])

    def ready(self) -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(
                f"http://{self.host}:{self._admin_port}/readyz", timeout=1
            ) as answer,
        ):
            return bool(answer.status == 200)
        return False


class OneWorker(Feedrack):
    """The same with two cores to run on, to hold two workers against."""

    name = "feedrack 1 worker"
    note = "one process that may use two cores"

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        self.cores = worker_cores()


class TwoWorkers(OneWorker):
    """The same with `node.workers = 2`; left out where the configuration refuses that."""

    name = "feedrack 2 workers"
    note = "`node.workers = 2` on the same two cores"
    workers = 2

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        folder.mkdir(parents=True, exist_ok=True)
        checked = subprocess.run(
            [self._program, "config", str(self.write_config())],
            capture_output=True,
            text=True,
            check=False,
        )
        if checked.returncode:
            reason = " ".join(checked.stderr.split())
            raise PeerMissingError(f"node.workers = 2 is refused ({reason})")


class OverS3(Feedrack):
    """One node over an S3 origin on another port of this machine."""

    name = "feedrack over S3"
    note = "one process, an S3 origin"

    def __init__(self, data: Path, folder: Path, origin_port: int) -> None:
        super().__init__(data, folder)
        self._origin_port = origin_port

    def origin(self) -> str:
        return f"""
            type = "s3"
            endpoint_url = "http://{HOST}:{self._origin_port}"
            region = "us-east-1"
            addressing = "path"
            access_key = "{ACCESS_KEY}"
            secret_key_file = "{self.folder}/secret"
        """
