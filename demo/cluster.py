"""Six nodes in three racks before one origin, as plain processes on this machine: `make cluster`.

Shows what makes them one: the origin is asked for each byte once, however many nodes are asked at
the same moment; a write through one node is seen through all; a node that dies is not missed.
"""

import argparse
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from rich.box import SIMPLE
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from demo.node import ACCESS_KEY, DemoNode

_RACKS = ("r1", "r1", "r2", "r2", "r3", "r3")
_BUCKET = "demo"
_MIB = 1024**2
_CHUNK_BYTES = 8 * _MIB
_LARGE_BYTES = 96 * _MIB
_SMALL = 200
_READERS_A_NODE = 4
_PATIENCE_SECONDS = 30.0

_CONFIG = """\
[node]
id = "{id}"
rack = "{rack}"

[s3]
listen = "127.0.0.1:{{s3_port}}"

[admin]
listen = "127.0.0.1:0"
token_file = "{top}/token"
public_metrics = true

[cache]
path = "{{folder}}/cache"
capacity = "1GiB"

[cluster]
redis_url = "redis://127.0.0.1:{redis_port}/0"
secret_file = "{top}/cluster-secret"
listen = "127.0.0.1:0"

[origins.folder]
type = "directory"
path = "{top}/origin"

[[tenants]]
name = "demo"
access_key = "{{access_key}}"
secret_key_file = "{{folder}}/secret"
policy = [{{{{ allow = ["*"], buckets = ["*"] }}}}]
"""

console = Console(highlight=False)


class Cluster:
    """Redis, an origin and six nodes, whose files all lie under `folder`."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "origin" / _BUCKET).mkdir(parents=True)
        self.folder = folder
        self.secret_key = secrets.token_urlsafe(24)
        for name in ("token", "cluster-secret"):
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(32))
        self.redis_port = _free_port()
        self._redis: subprocess.Popen[bytes] | None = None
        self.nodes = [self._node(number) for number in range(len(_RACKS))]

    def start(self) -> None:
        """Starts all, and waits until every node knows every other."""
        self._start_redis()
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_serving()
        for node in self.nodes:
            _wait(lambda node=node: len(self.members(node)) == len(self.nodes), "members")  # type: ignore[misc]

    def stop(self) -> None:
        """Nodes first, all at once, so that none waits for another."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for stopped in [pool.submit(node.stop) for node in self.nodes]:
                stopped.result()
        if self._redis is not None:
            self._redis.terminate()
            self._redis.wait()
            self._redis = None

    def members(self, node: DemoNode) -> list[dict[str, Any]]:
        """Whom a node takes for members."""
        request = urllib.request.Request(  # noqa: S310 - our own admin port
            f"{node.admin_url}/v1/members",
            headers={"Authorization": f"Bearer {(self.folder / 'token').read_text()}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            members: list[dict[str, Any]] = json.load(answer)["members"]
            return members

    def counters(self, nodes: Sequence[DemoNode], name: str, **labels: str) -> int:
        return sum(node.counter(name, **labels) for node in nodes)

    def client(self, node: DemoNode) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=node.endpoint_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(max_pool_connections=32, retries={"max_attempts": 1, "mode": "standard"}),
        )

    def _node(self, number: int) -> DemoNode:
        name = f"n{number + 1}"
        config = _CONFIG.format(
            id=name, rack=_RACKS[number], top=self.folder, redis_port=self.redis_port
        )
        return DemoNode(self.folder / name, config=config, secret_key=self.secret_key)

    def _start_redis(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is needed: apt-get install redis-server")
        with (self.folder / "redis.log").open("wb") as log:
            self._redis = subprocess.Popen(  # noqa: S603 - found by name, as a shell would
                [
                    program, str(Path(__file__).parents[1] / "conf" / "redis.conf"),
                    "--port", str(self.redis_port), "--dir", str(self.folder),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        _wait(lambda: _listens(self.redis_port), "Redis")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    cluster = Cluster(Path.cwd() / ".cluster")
    try:
        cluster.start()
        console.print(
            f"Redis, a folder as the origin, and {len(cluster.nodes)} nodes in "
            f"{len(set(_RACKS))} racks; up in {time.monotonic() - started:.1f} s."
        )
        wrong = _show(cluster)
        if wrong:
            console.print(f"[red]{wrong} things were not as they should be; logs: {cluster.folder}")
            return 1
        _status(cluster)
        _say_how_to_go_on(cluster, keep=arguments.keep)
        while arguments.keep:
            signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        cluster.stop()
    return 0


def _show(cluster: Cluster) -> int:
    """The number of things that went wrong."""
    wrong = _read_cold(cluster)
    wrong += _write_and_see(cluster)
    return wrong + _kill_one(cluster)


def _read_cold(cluster: Cluster) -> int:
    """All nodes at once, several readers each, one large object and many small ones."""
    contents = {"large.bin": os.urandom(_LARGE_BYTES)}
    contents |= {f"small/{number:03}": os.urandom(20_000) for number in range(_SMALL)}
    for key, content in contents.items():
        path = cluster.folder / "origin" / _BUCKET / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        # What was changed a moment ago may change again unseen, and is not kept.
        an_hour_ago = time.time() - 3600
        os.utime(path, (an_hour_ago, an_hour_ago))
    digests = {key: hashlib.sha256(content).digest() for key, content in contents.items()}
    total = sum(map(len, contents.values()))
    chunks = sum(-(-len(content) // _CHUNK_BYTES) for content in contents.values())
    tiers: Counter[str] = Counter()

    def read(node: DemoNode) -> int:
        client, failed = cluster.client(node), 0
        for key, digest in digests.items():
            answer = client.get_object(Bucket=_BUCKET, Key=key)
            tiers[answer["ResponseMetadata"]["HTTPHeaders"].get("x-feedrack-tier", "-")] += 1
            failed += hashlib.sha256(answer["Body"].read()).digest() != digest
        return failed

    readers = cluster.nodes * _READERS_A_NODE
    table = Table("step", "bytes read", "seconds", "first byte from", "origin GETs", "origin bytes",
                  box=SIMPLE)  # fmt: skip
    wrong = 0
    for step, expected in (("read cold", chunks), ("read again", 0)):
        tiers.clear()
        gets, sent = _origin(cluster)
        begun = time.monotonic()
        with ThreadPoolExecutor(len(readers)) as pool:
            wrong += sum(pool.map(read, readers))
        seconds = time.monotonic() - begun
        after_gets, after_sent = _origin(cluster)
        # Each chunk once in the whole cluster, and never again.
        wrong += after_gets - gets != expected
        table.add_row(
            step,
            decimal(total * len(readers)),
            f"{seconds:.1f}",
            ", ".join(f"{tier} {count}" for tier, count in sorted(tiers.items())),
            str(after_gets - gets),
            f"{(after_sent - sent) / total:.2f} x the data",
        )
    console.print(
        f"\n{len(readers)} readers through all nodes at once, each reads {len(contents)} objects, "
        f"{decimal(total)} in {chunks} chunks:"
    )
    console.print(table)
    return wrong


def _origin(cluster: Cluster) -> tuple[int, int]:
    return (
        cluster.counters(cluster.nodes, "feedrack_origin_requests_total", operation="GetObject"),
        cluster.counters(cluster.nodes, "feedrack_origin_read_bytes_total"),
    )


def _write_and_see(cluster: Cluster) -> int:
    """A new version through one node, asked for through all the moment it is answered."""
    clients = [cluster.client(node) for node in cluster.nodes]
    rounds, stale = 20, 0
    waits = []
    for turn in range(rounds):
        content = f"version {turn}".encode()
        begun = time.monotonic()
        clients[turn % len(clients)].put_object(Bucket=_BUCKET, Key="shared", Body=content)
        waits.append(time.monotonic() - begun)
        with ThreadPoolExecutor(len(clients)) as pool:
            seen = pool.map(
                lambda client: client.get_object(Bucket=_BUCKET, Key="shared")["Body"].read(),
                clients,
            )
            stale += sum(body != content for body in seen)
    console.print(
        f"{rounds} writes, each read through all nodes at once when answered: {stale} stale "
        f"answers; a write took {1000 * sorted(waits)[rounds // 2]:.0f} ms."
    )
    return stale


def _kill_one(cluster: Cluster) -> int:
    """A node dies without a word; all others go on, and forget it."""
    *others, victim = cluster.nodes
    victim.kill()
    begun = time.monotonic()
    failed = 0
    for node in others:
        client = cluster.client(node)
        try:
            client.put_object(Bucket=_BUCKET, Key="shared", Body=b"one less")
            failed += client.get_object(Bucket=_BUCKET, Key="shared")["Body"].read() != b"one less"
        except (BotoCoreError, ClientError) as error:
            console.print(f"[red]{node.folder.name}: {error}")
            failed += 1
    wrote = time.monotonic() - begun
    _wait(lambda: all(len(cluster.members(each)) == len(others) for each in others), "the loss")
    gone = time.monotonic() - begun
    victim.start()
    _wait(lambda: len(cluster.members(victim)) == len(cluster.nodes), "its return")
    console.print(
        f"{victim.folder.name} killed: a write and a read through each other node took "
        f"{wrote:.1f} s in all, it was no member after {gone:.1f} s; started again, it is one."
    )
    return failed


def _status(cluster: Cluster) -> None:
    console.print("\nfeedrack status:")
    subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "gateway", "status", "--admin", cluster.nodes[0].admin_url,
         "--token-file", str(cluster.folder / "token")],
        check=True,
    )  # fmt: skip


def _say_how_to_go_on(cluster: Cluster, *, keep: bool) -> None:
    if keep:
        console.print("\nAll stays up until Ctrl-C. In another terminal:\n")
    else:
        console.print(
            "\n`make cluster ARGS=--keep` leaves all up, to be tried by hand like this:\n"
        )
    for node, rack in zip(cluster.nodes, _RACKS, strict=True):
        console.print(
            f"  # {node.folder.name} in {rack}: {node.endpoint_url}, admin {node.admin_url}"
        )
    console.print(
        f"  export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={cluster.secret_key}\n"
        f"  export AWS_ENDPOINT_URL={cluster.nodes[0].endpoint_url} AWS_DEFAULT_REGION=us-east-1\n"
        f"  aws s3 cp README.md s3://{_BUCKET}/ && aws s3 ls s3://{_BUCKET}/ "
        f"--endpoint-url {cluster.nodes[-1].endpoint_url}\n"
        f"  feedrack status --admin {cluster.nodes[0].admin_url} --token-file "
        f"{cluster.folder.relative_to(Path.cwd())}/token\n",
        soft_wrap=True,
    )


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
