"""What a client of long life, a slow gateway or a hostile one brings to light."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access
from feedrack.errors import FeedrackError
from feedrack.rdma import opening
from feedrack.rdma.link import Link
from feedrack.rdma.memory import of_buffer
from feedrack.rdma.opening import NoRdma, Wanted
from gateway.rdma import verbs
from tests.feedrack.endpoint import Reply, scripted
from tests.feedrack.rdma_node import RdmaNode, rdma_node
from tests.feedrack.test_rdma_failing import DATA, GATEWAY, Gateway, client_of, told
from tests.rdma.soft import Fabric

MIB = 1024**2


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    fabric = Fabric()
    monkeypatch.setattr(opening, "_absent", {})
    monkeypatch.setattr(verbs, "open_device", lambda *_: fabric.device())
    return fabric


@pytest.fixture
def node(fabric: Fabric, tmp_path: Path) -> Iterator[RdmaNode]:
    with rdma_node(tmp_path, fabric) as node:
        node.put("k", DATA)
        yield node


def test_a_gateway_without_rdma_is_no_trouble_for_as_long_as_a_job_runs(fabric: Fabric) -> None:
    """A pause after each try, of a minute at most: a day has more than a thousand."""
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    gateway.refuse["prepare"] = Reply(501, b"", GATEWAY)
    clock = [0.0]
    with scripted(gateway) as endpoint:
        http = HttpClient("train", Access(endpoint_url=endpoint.url, anonymous=True, attempts=1))
        link = Link(http, Wanted(), now=lambda: clock[0])
        memory = of_buffer(bytearray(10))
        for _ in range(1100):
            clock[0] += 61.0
            with pytest.raises(NoRdma):
                link.lease(memory)
        link.close()
        http.close()


def test_what_does_not_fit_is_told_with_all_after_it_in_any_number_of_requests(
    fabric: Fabric, node: RdmaNode
) -> None:
    node.put("large", bytes(100))
    with client_of(node.url) as client, client.register(bytearray(50)) as memory:
        rows = client.batch_into([*["none"] * 9_999, "large", "k", "k"], memory)
        assert [row.status for row in rows[9_998:]] == [404, 507, 507, 507]


def test_a_transfer_that_goes_on_is_not_given_up(fabric: Fabric, node: RdmaNode) -> None:
    """As over HTTP, where a time limit is for an endpoint that stays silent."""
    data = os.urandom(3 * MIB)
    node.put("big", data)
    with client_of(node.url, timeout_seconds=0.6) as client:
        memory = client.register(bytearray(3 * MIB))
        assert client.get_into("k", memory).transport == "rdma"

        def slowly(_: object) -> None:
            time.sleep(0.3)

        fabric.on_move = slowly
        result = client.get_into("big", memory)
        fabric.on_move = lambda _: None
        assert memory.contents() == data
        assert result.transport == "rdma"


def test_an_answer_whose_headers_were_lost_is_not_an_empty_object(fabric: Fabric) -> None:
    """A proxy that passes on what it knows alone: the bytes moved, and nobody says so."""
    gateway = Gateway(fabric, lambda _: Reply(200, b"", GATEWAY))
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        result = client.get_into("k", memory)
        assert result.size_bytes == len(DATA)
        assert memory.contents() == DATA


@pytest.mark.parametrize(
    "prepared",
    [
        b'{"session":"x","address":%s,"idle_seconds":300.0}',
        b'{"session":"00000000000000000000000000000001","address":%s,"idle_seconds":1e400}',
    ],
)
def test_a_session_that_cannot_be_is_not_used(fabric: Fabric, prepared: bytes) -> None:
    gateway = Gateway(fabric, lambda _: Reply(200, b"", told()))
    address = (
        b'{"qpn":17,"psn":1,"gid":"::1","mtu":4096,"link":"ethernet","lid":0,"traffic_class":0}'
    )
    gateway.refuse["prepare"] = Reply(200, prepared % address, GATEWAY)
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        for _ in range(5):
            result = client.get_into("k", memory)
            assert memory.contents() == DATA
        assert result.transport == "http"
        assert gateway.steps.count("prepare") <= 2


def test_a_part_of_no_bytes_is_no_part(fabric: Fabric, node: RdmaNode) -> None:
    with client_of(node.url) as client, client.register(bytearray(10)) as memory:
        for part_bytes in (0, -1):
            with pytest.raises(FeedrackError):
                client.upload_from("new", memory, part_bytes)
    assert not (node.folder / "new").exists()
