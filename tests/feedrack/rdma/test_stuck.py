"""A device that does not let go: no request is lost over it, and no memory used that is still
written to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from feedrack import MemoryLost, open_dataset
from feedrack.rdma import Client
from gateway.rdma.device import VerbFailed
from tests.feedrack.endpoint import Reply, scripted
from tests.feedrack.rdma.ends import DATA, GATEWAY, Gateway, client_of, told
from tests.feedrack.rdma.node import OPTIONS, RdmaNode
from tests.rdma.soft import Fabric, SoftPair, SoftRegistration

FAILED = Reply(500, b"<Code>RDMATransferFailed</Code>", GATEWAY)
MOVED = Reply(200, b"", told())


def refuse(*_: object) -> None:
    raise VerbFailed("Input/output error")


@contextmanager
def stuck(*verbs: str) -> Iterator[None]:
    """The clients' queue pairs refuse these: only theirs let a peer in."""
    with pytest.MonkeyPatch.context() as patch:
        for verb in verbs:
            honest = getattr(SoftPair, verb)

            def one(pair: SoftPair, honest: Callable[[SoftPair], None] = honest) -> None:
                (refuse if pair.remote else honest)(pair)

            patch.setattr(SoftPair, verb, one)
        yield


def test_memory_of_a_queue_pair_that_cannot_be_ended_is_lost_and_no_other(fabric: Fabric) -> None:
    replies = iter([MOVED, FAILED, MOVED])
    gateway = Gateway(fabric, lambda _: next(replies))
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client:
        memory = client.register(bytearray(10))
        assert client.get_into("k", memory).transport == "rdma"
        with stuck("fail", "close"), pytest.raises(MemoryLost):
            client.get_into("k", memory)
        # The session is nobody's any more; the next has its own.
        assert client.get_into("k", client.register(bytearray(10))).transport == "rdma"
        assert gateway.steps == ["prepare", "ready"] * 2


@pytest.mark.parametrize("verb", ["fail", "close"])
def test_one_of_the_two_ways_to_end_it_is_enough(fabric: Fabric, verb: str) -> None:
    gateway = Gateway(fabric, lambda _: FAILED)
    with scripted(gateway) as endpoint, client_of(endpoint.url) as client, stuck(verb):
        memory = client.register(bytearray(10))
        result = client.get_into("k", memory)
        assert (result.transport, result.reason) == ("http", "transfer")
        assert memory.contents() == DATA


def test_a_dataset_is_read_all_the_same_and_its_memory_kept_for_good(
    node: RdmaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put("p/a", b"first")
    node.put("p/b", b"second")
    with open_dataset("s3://train/p/", endpoint_url=node.url, **OPTIONS) as dataset:
        assert dataset.read_batch([0, 1]) == [b"first", b"second"]
        rdma = dataset._reader._rdma
        assert rdma is not None
        [arena] = rdma._arenas.free
        assert node.fabric is not None
        # The gateway's WRITE meets memory that is registered no more.
        for device in {pair.device for pair in node.fabric.pairs.values() if pair.remote}:
            monkeypatch.setattr(device, "regions", {})
        with stuck("fail", "close"):
            assert dataset.read_batch([0, 1]) == [b"first", b"second"]
        assert rdma.counts.fallbacks == {"transfer": 1}
        assert rdma._arenas.free == []
        assert dataset.read_batch([0, 1]) == [b"first", b"second"]
        assert arena not in rdma._arenas.free


def test_memory_that_stays_registered_is_told_of(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = client.register(bytearray(10))
    with monkeypatch.context() as patch:
        patch.setattr(SoftRegistration, "close", refuse)
        with pytest.raises(MemoryLost):
            memory.close()
    # It is asked for again like any other.
    assert client.get_into("k", memory).transport == "rdma"


def test_closing_ends_all_that_can_be_ended_and_tells_of_the_rest(
    node: RdmaNode, fabric: Fabric
) -> None:
    client = client_of(node.url)
    client.get_into("k", client.register(bytearray(10)))
    opened = client._link._opened
    assert opened is not None
    with stuck("fail", "close"), pytest.raises(MemoryLost):
        client.close()
    assert not opened._device._open  # type: ignore[attr-defined]
    client.close()
