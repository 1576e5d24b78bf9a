"""Nodes as processes of their own, killed and frozen while they are read through."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cluster.members import Member
from gateway.cluster.placement import homes
from gateway.model.objects import ObjectRef
from tests.cluster.test_reading_near import put
from tests.node.process import GatewayProcess, s3_origin_settings
from tests.faulty import Fault, FlakyOrigin, flaky_origin
from tests.origins import ACCESS_KEY, SECRET_KEY, MotoServer, moto_server

CHUNK = 1024 * 1024
RACKS = {"a1": "a", "b1": "b", "c1": "c"}


class Processes:
    """Three nodes in three racks over one S3 service that fails on demand."""

    def __init__(self, folder: Path, origin: FlakyOrigin) -> None:
        self.origin = origin
        self.nodes: dict[str, GatewayProcess] = {}
        self.members = [
            Member(
                id=id_,
                incarnation="1",
                rack=rack,
                zone="z1",
                peers=f"127.0.0.1:{_free_port()}",
                s3="",
                admin="",
                capacity_bytes=2**28,
                version="0",
            )
            for id_, rack in RACKS.items()
        ]
        for member in self.members:
            settings: dict[str, Any] = {
                "node": {"id": member.id, "rack": member.rack},
                "origins": {"main": s3_origin_settings(origin.url, folder)},
                "buckets": {"train": {"freshness_seconds": 3600}},
                "cluster": {
                    "redis_url": "redis://127.0.0.1:1/0",
                    "secret_file": str(folder / "between"),
                    "listen": member.peers,
                },
            }
            (folder / "between").write_text("between us")
            place = folder / member.id
            place.mkdir()
            (place / "members.json").write_bytes(msgspec.json.encode(self.members))
            node = GatewayProcess(place, settings, module="tests.cluster.fixed_node")
            self.nodes[member.id] = node.start()

    def key_at(self, id_: str) -> str:
        return next(
            key
            for key in (f"k{n}" for n in range(1000))
            if homes(self.members, ObjectRef("main", "train", key), 0)[0].id == id_
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
