"""The two ends of RDMA without a card: a client, and a gateway that says what a test has it say."""

from typing import Any

import msgspec
import pytest

from feedrack.rdma import Client, opening
from gateway.rdma import verbs
from gateway.rdma.wire import Prepared
from tests.feedrack.endpoint import Asked, Reply, Script
from tests.feedrack.rdma.node import OPTIONS
from tests.rdma.soft import Fabric

GATEWAY = {"x-feedrack-node": "n1"}
DATA = b"1234567890"


def reach(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this process a device on the fabric, until the test is over."""
    monkeypatch.setattr(opening, "_absent", {})
    monkeypatch.setattr(verbs, "open_device", lambda *_: fabric.device())


def client_of(url: str, **options: Any) -> Client:
    return Client("s3://train", endpoint_url=url, **{**OPTIONS, "attempts": 2, **options})


class Gateway:
    """Answers the session's steps; `then` the requests with a token, and `plain` all others."""

    def __init__(self, fabric: Fabric, then: Script) -> None:
        self.device = fabric.device()
        self.steps: list[str] = []
        self.then = then
        self.refuse: dict[str, Reply] = {}
        self.node = dict(GATEWAY)

    def __call__(self, asked: Asked) -> Reply:
        if asked.target.startswith("/?feedrack-rdma="):
            step = asked.target.partition("=")[2]
            self.steps.append(step)
            if step in self.refuse:
                return self.refuse[step]
            if step == "prepare":
                pair = self.device.pair(depth=2, remote=False)
                prepared = Prepared(f"{len(self.steps):032x}", pair.address, 300.0)
                return Reply(200, msgspec.json.encode(prepared), GATEWAY)
            return Reply(204, b"", GATEWAY)
        if "x-amz-rdma-token" in asked.headers:
            return self.then(asked)
        return Reply(200, DATA if asked.method == "GET" else b"", self.node)


def told(reply: str = "200", moved: str = "10", **more: str) -> dict[str, str]:
    return {
        **GATEWAY,
        "x-amz-rdma-reply": reply,
        "x-amz-rdma-bytes-transferred": moved,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
