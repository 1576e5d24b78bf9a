"""A cluster of real parts: redis-server, an origin, and nodes in racks, each a `feedrack serve`.

    with Fleet(folder, racks=("r1", "r1", "r2")) as fleet:
        fleet.client(0).put_object(…)
        fleet.freeze(1)

Between the parts is a network that can be cut (`loopback.py`, or namespaces: `netns.py`).
"""

import contextlib
import json
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3
import psutil

from tests.cluster.loopback import Far, Loopback
from tests.cluster.relay import Mode
from tests.cluster.services import RedisProcess
from tests.faulty import FlakyOrigin, flaky_origin
from tests.node.process import ADMIN_TOKEN, GatewayProcess, s3_origin_settings
from tests.origins import ACCESS_KEY, SECRET_KEY, moto_server
from tests.waiting import wait_until

SIX_IN_THREE_RACKS = ("r1", "r1", "r2", "r2", "r3", "r3")
SECRET = "the-nodes-know-each-other-by-this"


class Fleet:
    """Nodes by number, from 0; node 0 is called "n1". All files lie under `folder`.

    `origin`: "s3" (moto behind `self.origin`, which counts and fails on demand) or "directory".
    `settings` go to every node's configuration, `node_settings(number)` to one's; `clustered` False
    leaves `[cluster]` out, which makes strangers before one origin of them. `buckets` are made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        racks: Sequence[str] = SIX_IN_THREE_RACKS,
        origin: Literal["s3", "directory"] = "s3",
        settings: dict[str, Any] | None = None,
        node_settings: Callable[[int], dict[str, Any]] = lambda number: {},
        clustered: bool = True,
        buckets: Sequence[str] = ("train",),
        network: Loopback | None = None,
    ) -> None:
        self.folder = folder
        self.racks = tuple(racks)
        self.nodes: list[GatewayProcess] = []
        self.network = network or Loopback()
        self.clustered = clustered
        self.buckets = tuple(buckets)
        self._kind = origin
        self._settings = settings or {}
        self._node_settings = node_settings
        self._redis: RedisProcess | None = None
        self._origin: FlakyOrigin | None = None
        self._down: set[int] = set()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Fleet":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def redis(self) -> RedisProcess:
        assert self._redis is not None
        return self._redis

    @property
    def origin(self) -> FlakyOrigin:
        """The S3 origin, as it is seen by those before it."""
        assert self._origin is not None
        return self._origin

    @property
    def origin_folder(self) -> Path:
        """The directory that is the origin."""
        assert self._kind == "directory"
        return self.folder / "origin"

    def start(self) -> "Fleet":
        """Starts everything, and waits until all nodes are members."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        network = self.network
        self._stack.callback(network.close)
        network.start(self.racks)
        if self.clustered:
            self._redis = RedisProcess(
                self.folder / "redis", network.services, network.port("redis")
            ).start()
            self._stack.callback(self._redis.stop)
        self._start_origin()
        for number in range(len(self.racks)):
            self.nodes.append(self._make_node(number))
        self._stack.callback(self._end_nodes)
        for number in range(len(self.racks)):
            self._launch(number)
        for node in self.nodes:
            node.await_serving()
        self.await_members()

    def stop(self) -> None:
        self._stack.close()

    def node(self, number: int) -> GatewayProcess:
        return self.nodes[number]

    def client(self, number: int, **config: Any) -> Any:
        """A boto3 client of one node's; it does not retry."""
        return self.nodes[number].client(**config)

    def origin_client(self) -> Any:
        """A boto3 client of the S3 origin itself: it passes the nodes by."""
        return boto3.client(
            "s3",
            endpoint_url=self.origin.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY.reveal(),
            region_name="us-east-1",
        )

    # What happens to nodes.

    def kill(self, number: int) -> None:
        """SIGKILL; its port stays its own."""
        self._down.add(number)
        self.nodes[number].kill()

    def end(self, number: int) -> int:
        """SIGTERM: it drains and leaves; the exit status."""
        self._down.add(number)
        return self.nodes[number].stop()

    def restart(self, number: int, *, wait: bool = True) -> None:
        """Starts a node that is down; `wait` False: without waiting that it serves."""
        self._launch(number)
        self._down.discard(number)
        if wait:
            self.nodes[number].await_serving()

    def freeze(self, number: int) -> None:
        """SIGSTOP: the kernel still takes connections, nobody answers them."""
        self._signal(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def wipe(self, number: int) -> None:
        """Empties a node's cache folder under its feet."""
        for path in (self.nodes[number].folder / "cache").iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def running(self) -> list[int]:
        return [number for number in range(len(self.racks)) if number not in self._down]

    # What happens between them.

    def stop_redis(self, *, saving: bool = False) -> None:
        """Ends Redis as a crash would; `saving`: a start that is not `empty` finds all of it."""
        self.redis.stop(saving=saving)

    def start_redis(self, *, empty: bool = True) -> None:
        self.redis.start(empty=empty)

    def slow_redis(self, seconds: float) -> None:
        """Every question to Redis takes so much longer; 0 ends it."""
        self.network.delay_redis(seconds)

    def cut(self, number: int, source: Far, mode: Mode = "hold") -> None:
        """Cuts a node from Redis, its peers or the origin: nothing passes, or with "refuse"
        connections are reset. From peers it is cut in both directions."""
        self.network.cut(number, source, mode)

    def heal(self, number: int, source: Far) -> None:
        """What was held goes on its way."""
        self.network.heal(number, source)

    # What is seen of them.

    def ask(
        self, number: int, path: str, body: Any = None, *, timeout_seconds: float = 10.0
    ) -> Any:
        """JSON from a node's admin port; POST where there is a body."""
        request = urllib.request.Request(
            self.nodes[number].admin_url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            return json.load(answer)

    def members(self, number: int) -> list[str]:
        """The ids of those whom a node takes for members; [] while it does not answer."""
        try:
            found = self.ask(number, "/v1/members")["members"]
        except (urllib.error.URLError, OSError):
            return []
        return sorted(
            each["id"] for each in found if each.get("member", True) and each["state"] == "serving"
        )

    def await_members(self, numbers: Sequence[int] | None = None) -> None:
        """Waits until all nodes that run, or those, know all that run for members."""
        if not self.clustered:
            return
        expected = sorted(f"n{number + 1}" for number in self.running())
        for number in self.running() if numbers is None else numbers:
            wait_until(
                lambda number=number: self.members(number) == expected,  # type: ignore[misc]
                f"n{number + 1} sees the members {expected}",
            )

    def counter(self, number: int, name: str, **labels: str) -> float:
        return self.nodes[number].counter(name, **labels)

    def counters(self, name: str, **labels: str) -> float:
        """The sum over all nodes that run."""
        return sum(self.counter(number, name, **labels) for number in self.running())

    def origin_gets(self) -> int:
        """GetObject requests that came to the origin so far (a directory: that nodes that run
        have made of it)."""
        if self._kind == "s3":
            return self.origin.seen.requests["GetObject"]
        return int(self.counters("feedrack_origin_requests_total", operation="GetObject"))

    def origin_bytes(self) -> int:
        """Object bytes that the origin has sent."""
        if self._kind == "s3":
            return self.origin.seen.sent_bytes["GetObject"]
        return int(self.counters("feedrack_origin_read_bytes_total"))

    # How it is put together.

    def _start_origin(self) -> None:
        if self._kind == "directory":
            for bucket in self.buckets:
                (self.folder / "origin" / bucket).mkdir(parents=True)
            return
        network = self.network
        moto = self._stack.enter_context(moto_server(self.folder, network.origin.prefix))
        self._origin = self._stack.enter_context(
            flaky_origin(moto.url, host=network.origin.host, enter=network.enter)
        )
        client = self.origin_client()
        for bucket in self.buckets:
            client.create_bucket(Bucket=bucket)

    def _make_node(self, number: int) -> GatewayProcess:
        network, name = self.network, f"n{number + 1}"
        host, prefix = network.node(number)
        folder = self.folder / name
        folder.mkdir(parents=True)
        node = GatewayProcess(folder, self._settings, prefix=prefix)
        settings = node.settings
        settings["node"] = {**settings["node"], "id": name, "rack": self.racks[number]}
        settings["s3"]["listen"] = f"{host}:{network.port('s3', number)}"
        settings["admin"]["listen"] = f"{host}:{network.port('admin', number)}"
        settings["origins"] = {"main": self._origin_settings(number, folder)}
        if self.clustered:
            (folder / "cluster-secret").write_text(SECRET)
            redis_host, redis_port = network.wire(
                "redis", number, (self.redis.host, self.redis.port)
            )
            listen = (host, network.port("peers", number))
            advertise_host, advertise_port = network.wire("peers", number, listen)
            settings["cluster"] = {
                "redis_url": f"redis://{redis_host}:{redis_port}/0",
                "name": "fleet",
                "secret_file": str(folder / "cluster-secret"),
                "listen": f"{listen[0]}:{listen[1]}",
                "advertise": f"{advertise_host}:{advertise_port}",
            } | settings.get("cluster", {})
        node.merge(self._node_settings(number))
        return node

    def _origin_settings(self, number: int, folder: Path) -> dict[str, Any]:
        if self._kind == "directory":
            return {"type": "directory", "path": str(self.folder / "origin")}
        url = urlsplit(self.origin.url)
        host, port = self.network.wire("origin", number, (url.hostname or "", url.port or 0))
        return {
            **s3_origin_settings(f"http://{host}:{port}", folder),
            "connect_timeout_seconds": 2,
            "read_timeout_seconds": 2,
            "attempts": 2,
        }

    def _launch(self, number: int) -> None:
        self.nodes[number].launch()
        self.network.know(number, self.nodes[number].pid)

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = psutil.Process(self.nodes[number].pid)
        for each in (process, *process.children(recursive=True)):
            each.send_signal(what)

    def _end_nodes(self) -> None:
        """At once, whatever they are doing; one that is frozen too."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.kill()
