"""What a fleet's nodes share: a real redis-server that is stopped and started at will."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import redis

from tests.cluster.loopback import Spot

_START_SECONDS = 60.0


def redis_server() -> str | None:
    """The program, where this machine has it."""
    return shutil.which("redis-server")


class RedisProcess:
    """One redis-server that writes nothing down by itself; `sentinel`: one that runs as a Sentinel,
    by the sentinel.conf in its folder."""

    def __init__(
        self,
        folder: Path,
        spot: Spot,
        port: int,
        arguments: Sequence[str] = (),
        *,
        sentinel: bool = False,
    ) -> None:
        self._sentinel = sentinel
        self.folder = folder
        self.port = port
        self.host = spot.host
        self._prefix = spot.prefix
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, empty: bool = True) -> "RedisProcess":
        """Starts it and waits until it answers. `empty` False: with what `stop` let it save."""
        if empty:
            (self.folder / "dump.rdb").unlink(missing_ok=True)
        arguments = [
            "--port", str(self.port), "--bind", self.host, "--save", "", "--appendonly", "no",
            "--dir", str(self.folder), "--protected-mode", "no", *self._arguments,
        ]  # fmt: skip
        if self._sentinel:
            arguments = [str(self.folder / "sentinel.conf"), "--sentinel"]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, "redis-server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "redis.log").read_text()[-2000:])
            time.sleep(0.02)
        return self

    def stop(self, *, saving: bool = False) -> None:
        """Ends it as a crash would; `saving`: what it holds now is there at the next start."""
        if self._process is None:
            return
        if saving:
            with self.client() as client:
                client.save()
        self._process.kill()
        self._process.wait(timeout=60)
        self._process = None

    def answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> "redis.Redis":
        """A client that goes past all relays."""
        return redis.Redis(self.host, self.port, socket_timeout=2)
