"""A client and a node on one fabric, in the place of cards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrack.rdma import Client
from tests.feedrack.rdma.ends import DATA, client_of, reach
from tests.feedrack.rdma.node import RdmaNode, rdma_node
from tests.rdma.soft import Fabric


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """What the client's device and the other end's hang on."""
    fabric = Fabric()
    reach(fabric, monkeypatch)
    return fabric


@pytest.fixture
def node(fabric: Fabric, tmp_path: Path) -> Iterator[RdmaNode]:
    with rdma_node(tmp_path, fabric) as node:
        node.put("k", DATA)
        yield node


@pytest.fixture
def client(node: RdmaNode) -> Iterator[Client]:
    with client_of(node.url) as client:
        yield client
