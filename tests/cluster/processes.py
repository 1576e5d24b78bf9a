"""A few real nodes over one origin and one Redis, each a process of its own."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.one_redis import OneRedis, one_redis
from tests.node.process import ADMIN_TOKEN, GatewayProcess
from tests.waiting import wait_until

BUCKET = "bucket"


class Nodes:
    """`of["n1"]` is a node; the bucket is there. `objects` are files of the origin."""

    def __init__(self, folder: Path, redis: OneRedis, racks: dict[str, str]) -> None:
        self.redis = redis
        self.origin = folder / "origin"
        (self.origin / BUCKET).mkdir(parents=True)
        (folder / "cluster-secret").write_text("the nodes know each other by this")
        self.of: dict[str, GatewayProcess] = {}
        for id_, rack in racks.items():
            settings = {
                "node": {"id": id_, "rack": rack},
                "origins": {"main": {"type": "directory", "path": str(self.origin)}},
                "cluster": {
                    "redis_url": redis.url,
                    "secret_file": str(folder / "cluster-secret"),
                    "listen": "127.0.0.1:0",
                },
            }
            self.of[id_] = GatewayProcess(folder / id_, settings)

    def put(self, key: str, size_bytes: int) -> bytes:
        """Puts an object where the nodes find it."""
        data = (key.encode() * (size_bytes // len(key) + 1))[:size_bytes]
        path = self.origin / BUCKET / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        age(path)
        return data

    def ask(self, id_: str, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Status and document of a node's admin port."""
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(
            self.of[id_].admin_url + path,
            method=method,
            data=body,
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def held(self, id_: str, dataset: str) -> dict[str, int]:
        """Bytes of a dataset by node, as a node tells."""
        status, document = self.ask(id_, "GET", f"/v1/datasets?dataset={dataset}")
        assert status == 200, document
        return {each["id"]: each["bytes"] for each in document["nodes"]}

    def origin_gets(self) -> float:
        return sum(each.origin_gets() for each in self.of.values() if _runs(each))

    def stop(self) -> None:
        for each in self.of.values():
            if _runs(each):
                each.kill()


def age(path: Path) -> None:
    """As if it had been written an hour ago: what was written just now is not kept."""
    before = time.time() - 3600
    os.utime(path, (before, before))


def _runs(node: GatewayProcess) -> bool:
    return node.process is not None and node.process.poll() is None


@contextmanager
def nodes(folder: Path, racks: dict[str, str]) -> Iterator[Nodes]:
    with one_redis() as redis:
        made = Nodes(folder, redis, racks)
        try:
            for each in made.of.values():
                each.start()
            wait_until(lambda: all(_sees(made, id_) == len(racks) for id_ in racks))
            yield made
        finally:
            made.stop()


def _sees(made: Nodes, id_: str) -> int:
    return int(made.of[id_].counter("feedrack_members"))
