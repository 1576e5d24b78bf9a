"""Starts, kills and restarts a real `feedrack serve`, and makes clients for it."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import tomli_w
from botocore.config import Config
from prometheus_client.parser import text_string_to_metric_families

from tests.origins import ACCESS_KEY as ORIGIN_ACCESS_KEY
from tests.origins import SECRET_KEY as ORIGIN_SECRET_KEY

ACCESS_KEY = "demo"
SECRET_KEY = "correct-horse-battery-staple"
ADMIN_TOKEN = "let-the-operator-in"
_START_SECONDS = 60.0
# A test's client may say nothing for as long as the test takes elsewhere, however slow the machine.
_PATIENT = {
    "header_timeout_seconds": 600,
    "write_timeout_seconds": 600,
    "idle_timeout_seconds": 600,
}


class GatewayProcess:
    """One node over `folder`; `settings` are merged over a configuration that works.

    `prefix`: words before the command, that put it elsewhere and then become it. `start_seconds`:
    how long it may take to begin to serve.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        start_seconds: float = _START_SECONDS,
    ) -> None:
        self.folder = folder
        self.environ = environ or {}
        self.prefix = prefix
        self.start_seconds = start_seconds
        self._seen = 0
        self.endpoint_url = ""
        self.admin_url = ""
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text(SECRET_KEY)
        (folder / "token").write_text(ADMIN_TOKEN)
        origin = folder / "origin"
        origin.mkdir(exist_ok=True)
        self.settings: dict[str, Any] = {
            "node": {"id": "n1"},
            "s3": {"listen": "127.0.0.1:0", "limits": dict(_PATIENT)},
            "admin": {"listen": "127.0.0.1:0", "token_file": str(folder / "token")},
            "cache": {"path": str(folder / "cache"), "capacity": "256MiB", "chunk_size": "1MiB"},
            "origins": {"main": {"type": "directory", "path": str(origin)}},
            "tenants": [
                {
                    "name": "demo",
                    "access_key": ACCESS_KEY,
                    "secret_key_file": str(folder / "secret"),
                    "policy": [{"allow": ["*"], "buckets": ["*"]}],
                }
            ],
        }
        self.merge(settings or {})
        if self.settings["cache"]["chunk_size"] == "1MiB":
            self.settings["cache"].setdefault("small_object_limit", "256KiB")

    def merge(self, settings: dict[str, Any]) -> None:
        """Puts settings over those it has; they hold from the next start on."""
        _merge(self.settings, settings)

    @property
    def log(self) -> Path:
        return self.folder / "node.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> "GatewayProcess":
        """Starts it and waits until it serves. Restarts keep the port."""
        self.launch()
        return self.await_serving()

    def launch(self) -> None:
        """Starts it."""
        config = self.folder / "feedrack.toml"
        config.write_text(tomli_w.dumps(self.settings))
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
            )

    def await_serving(self) -> "GatewayProcess":
        """Waits until one that was launched serves."""
        assert self.process is not None
        deadline = time.monotonic() + self.start_seconds
        pattern = re.compile(rb'"s3":"(?P<s3>[^"]+)","admin":"(?P<admin>[^"]+)"')
        while True:
            said = pattern.search(self.log.read_bytes()[self._seen :])
            if said is not None:
                break
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text()[-4000:])
            time.sleep(0.02)
        self.endpoint_url = said["s3"].decode()
        self.admin_url = said["admin"].decode()
        self.settings["s3"]["listen"] = self.endpoint_url.rpartition("/")[2]
        return self

    def stop(self) -> int:
        """SIGTERM and wait; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL and wait."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=30)

    def client(self, **config: Any) -> Any:
        """A boto3 S3 client with the demo tenant's keys. It does not retry."""
        config.setdefault("retries", {"max_attempts": 1, "mode": "standard"})
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(max_pool_connections=64, **config),
        )

    def counter(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry `labels`."""
        request = urllib.request.Request(
            f"{self.admin_url}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def origin_gets(self) -> float:
        return self.counter("feedrack_origin_requests_total", operation="GetObject")


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key != "origins":
            _merge(base[key], value)
        else:
            base[key] = value


def s3_origin_settings(url: str, folder: Path) -> dict[str, Any]:
    """An `[origins.*]` table for the S3 service of tests/origins.py at `url`."""
    secret = folder / "origin-secret"
    secret.write_text(ORIGIN_SECRET_KEY.reveal())
    return {
        "type": "s3",
        "endpoint_url": url,
        "access_key": ORIGIN_ACCESS_KEY,
        "secret_key_file": str(secret),
        "addressing": "path",
    }
