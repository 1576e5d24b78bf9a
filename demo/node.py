"""A node for the demo: a real `feedrack serve` process over a folder of its own."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ACCESS_KEY = "demo"
_START_SECONDS = 20.0

_CONFIG = """\
[node]
id = "demo"

[s3]
listen = "127.0.0.1:{s3_port}"

[admin]
listen = "127.0.0.1:0"
public_metrics = true

[cache]
path = "{folder}/cache"
capacity = "2GiB"

[origins.folder]
type = "directory"
path = "{folder}/origin"

[[tenants]]
name = "demo"
access_key = "{access_key}"
secret_key_file = "{folder}/secret"
policy = [{{ allow = ["*"], buckets = ["*"] }}]
"""


class DemoNode:
    """Starts, stops and questions one node whose files all lie under `folder`.

    `config` is its configuration, {folder}, {s3_port} and {access_key} left open.
    """

    def __init__(
        self, folder: Path, *, config: str = _CONFIG, secret_key: str | None = None
    ) -> None:
        self.folder = folder
        self.secret_key = secret_key or secrets.token_urlsafe(24)
        self.endpoint_url = ""
        self.admin_url = ""
        self._config = config
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "origin").mkdir(parents=True)
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(self.secret_key)

    @property
    def log(self) -> Path:
        return self.folder / "node.log"

    def start(self) -> None:
        """Starts the node and waits until it serves; later starts keep the first one's port."""
        self.launch()
        self.await_serving()

    def launch(self) -> None:
        """Starts the node."""
        config = self.folder / "feedrack.toml"
        config.write_text(
            self._config.format(folder=self.folder, s3_port=self._port, access_key=ACCESS_KEY)
        )
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C is the demo's to handle: it stops the node itself, in order.
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("FEEDRACK__")},
            )

    def await_serving(self) -> None:
        """Waits until a node that was launched serves."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            said = re.search(
                r'"s3":"(?P<s3>[^"]+)","admin":"(?P<admin>[^"]+)"', self.log.read_text()
            )
            if said is not None:
                break
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the node did not start:\n{self.log.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the node does not serve; see {self.log}")
            time.sleep(0.05)
        self.endpoint_url, self.admin_url = said["s3"], said["admin"]
        self._port = int(self.endpoint_url.rpartition(":")[2])

    def kill(self) -> None:
        """Ends the node as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Drains the node, as SIGTERM does."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        if status != 0:
            raise RuntimeError(f"the node ended with {status}; see {self.log}")

    def wipe_cache(self) -> None:
        """Empties the cache folder; only for a stopped node. Costs time, never data."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def counter(self, name: str, **labels: str) -> int:
        """The sum of a metric's samples that carry `labels`."""
        try:
            with urllib.request.urlopen(f"{self.admin_url}/metrics", timeout=10) as answer:  # noqa: S310
                text = answer.read().decode()
        except urllib.error.URLError as error:
            raise RuntimeError(f"the admin port does not answer: {error}") from error
        return int(
            sum(
                sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )
        )

    def wait(self) -> None:
        """Waits until the node ends by itself."""
        if self._process is not None:
            self._process.wait()
