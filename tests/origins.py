"""S3 services for tests: moto's server as a subprocess, and one that answers by a script.

The script is for what moto never says: unsorted listings, ignored headers, refused credentials.
"""

import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from gateway.config import S3OriginConfig, Secret
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_s3 import S3Origin

ACCESS_KEY = "test-access-key"
SECRET_KEY = Secret("test-secret-key")
_RUNNING = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")


class MotoServer:
    """A running moto server. `url` is its endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        """Forgets all buckets."""
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200


@contextmanager
def moto_server(directory: Path, prefix: Sequence[str] = ()) -> Iterator[MotoServer]:
    """A moto server that logs into `directory`, stopped at the end. `prefix`: words before the
    command, that put it elsewhere and then become it."""
    log_path = directory / "moto.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield MotoServer(_url(process, log_path))
    finally:
        process.terminate()
        process.wait(timeout=60)


Script = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scripted_origin(script: Script) -> AsyncIterator[str]:
    """The endpoint of a server that answers every request by `script`."""
    runner = web.ServerRunner(web.Server(script))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def s3_origin(
    config: S3OriginConfig, metrics: Metrics | None = None, *, by_hand: bool = True
) -> AsyncIterator[S3Origin]:
    """A started S3 origin named "main", closed at the end. `by_hand` False: all through
    aiobotocore, as if nothing had ever been usual."""
    origin = S3Origin("main", config, SECRET_KEY, metrics or Metrics())
    try:
        await origin.start()
        if not by_hand:
            origin._odd_until = float("inf")
        yield origin
    finally:
        await origin.close()


def s3_config(
    endpoint_url: str,
    *,
    connections: int = 128,
    attempts: int = 4,
    connect_timeout_seconds: float = 5.0,
    read_timeout_seconds: float = 30.0,
    region: str = "us-east-1",
) -> S3OriginConfig:
    """The configuration of an origin at `endpoint_url`; its secret is SECRET_KEY."""
    return S3OriginConfig(
        endpoint_url=endpoint_url,
        region=region,
        access_key=ACCESS_KEY,
        secret_key_file=Path("/given/by/hand"),
        addressing="path",
        connections=connections,
        connect_timeout_seconds=connect_timeout_seconds,
        read_timeout_seconds=read_timeout_seconds,
        attempts=attempts,
    )


def _url(process: "subprocess.Popen[bytes]", log_path: Path) -> str:
    """Waits for the line in which the server says where it listens."""
    while process.poll() is None:
        match = _RUNNING.search(log_path.read_bytes())
        if match is not None:
            return match[1].decode()
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"moto did not start: {log_path.read_text()}")
