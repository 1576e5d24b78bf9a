"""A real redis-server of a test's own, on a socket, that can be stopped and started."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.waiting import wait_until


class OneRedis:
    """One server that keeps nothing over a stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}?db=0"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                "redis-server", "--port", "0", "--unixsocket", str(self._socket),
                "--save", "", "--appendonly", "no", "--dir", str(self._folder),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        process = self._process
        wait_until(lambda: self._answers() or process.poll() is not None, "Redis answers")
        assert process.poll() is None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)
            self._process = None
            self._socket.unlink(missing_ok=True)

    def client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self._socket), socket_timeout=2)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            return bool(client.ping())
        return False


@contextmanager
def one_redis() -> Iterator[OneRedis]:
    """Runs one; skips where there is none to run."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    # Not in the test's own folder: the name of a socket has a limit.
    with tempfile.TemporaryDirectory() as folder:
        server = OneRedis(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
