"""Objects between memory and a gateway: by RDMA where both ends can, with the same results over
HTTP."""

import mmap
import os
import threading
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from feedrack.errors import (
    MissingBucket,
    MissingObject,
    ObjectChanged,
    RangeOutside,
    WrongAddress,
    WrongMemory,
)
from feedrack.rdma import Client, opening
from tests.feedrack.rdma.ends import reach
from tests.feedrack.rdma.node import OPTIONS, RdmaNode, rdma_node
from tests.rdma.soft import Fabric

MIB = 1024**2
# The gateway's buffers are of 1 MiB.
SIZES = [0, 1, 4096, MIB - 1, MIB, MIB + 1, 5 * MIB + 17]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RdmaNode]:
    with rdma_node(tmp_path_factory.mktemp("node"), Fabric()) as node:
        yield node


@pytest.fixture
def node(shared: RdmaNode, monkeypatch: pytest.MonkeyPatch) -> RdmaNode:
    """A gateway that this process reaches by RDMA."""
    reach(shared.fabric, monkeypatch)
    return shared


@pytest.fixture
def client(node: RdmaNode) -> Iterator[Client]:
    with Client("s3://train", endpoint_url=node.url, **OPTIONS) as client:
        yield client


@pytest.fixture
def without(node: RdmaNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client whose host has no RDMA."""
    with Client("s3://train", endpoint_url=node.url, device="none", **OPTIONS) as client:
        absence = opening._Absence(opening.Cause("no-device", "none"), float("inf"))
        opening._absent[opening.Wanted("none")] = absence
        yield client


@pytest.fixture(params=["client", "without"])
def either(request: pytest.FixtureRequest) -> Client:
    """Each way must give the same."""
    found: Client = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_an_object_is_read_into_memory(client: Client, node: RdmaNode, size: int) -> None:
    data = os.urandom(size)
    node.put("k", data)
    with client.register(bytearray(6 * MIB)) as memory:
        for _ in range(2):
            result = client.get_into("k", memory)
            assert (result.size_bytes, result.transport, result.reason) == (size, "rdma", None)
            assert memory.view is not None
            assert memory.view[:size] == data
            assert not any(memory.view[size : size + 100])
            assert result.etag == client.get_into("k", memory, etag=result.etag).etag
    assert client.counts == (4, 4 * size, {})


@pytest.mark.parametrize("size", SIZES)
def test_an_object_is_written_out_of_memory(client: Client, node: RdmaNode, size: int) -> None:
    data = bytearray(os.urandom(size + 10))
    with client.register(data) as memory:
        result = client.put_from("w", memory[5 : 5 + size])
    assert (result.size_bytes, result.transport) == (size, "rdma")
    assert node.read("w") == data[5 : 5 + size]


def test_what_is_written_keeps_its_type_and_metadata(either: Client, node: RdmaNode) -> None:
    with either.register(bytearray(b"12345")) as memory:
        result = either.put_from("m", memory, content_type="text/x", metadata={"a": "b"})
    found = node.s3().head_object(Bucket="train", Key="m")
    assert (found["ContentType"], found["Metadata"]) == ("text/x", {"a": "b"})
    assert found["ETag"].strip('"') == result.etag
    with pytest.raises(WrongAddress):
        either.put_from("m", memory, metadata={"a": "\n"})


@pytest.mark.parametrize("size", [1, 5 * MIB, 12 * MIB + 3])
def test_an_object_is_written_in_parts(either: Client, node: RdmaNode, size: int) -> None:
    data = bytearray(os.urandom(size))
    with either.register(data) as memory:
        result = either.upload_from("u", memory, 5 * MIB, content_type="text/x")
        assert result.size_bytes == size
        assert result.etag.endswith(f"-{max(1, -(-size // (5 * MIB)))}")
    assert node.read("u") == data


def test_an_upload_that_fails_leaves_nothing(either: Client, node: RdmaNode) -> None:
    memory = either.register_dmabuf(-1, 0, 10)
    with pytest.raises(WrongMemory):
        either.upload_from("never", memory, 5)
    assert not (node.folder / "never").exists()
    assert "Uploads" not in node.s3().list_multipart_uploads(Bucket="train")


@pytest.mark.parametrize("wanted", ["bytes=10-19", "bytes=-7", "bytes=90-", "bytes=0-0"])
def test_a_part_of_an_object_is_read(either: Client, node: RdmaNode, wanted: str) -> None:
    data = os.urandom(100)
    node.put("r", data)
    memory = either.register(bytearray(100))
    result = either.get_into("r", memory, wanted)
    assert memory.view is not None
    assert memory.view[: result.size_bytes] == either.get("r", wanted)
    assert "content-range" in result.headers


def test_errors_are_those_of_any_read(either: Client, node: RdmaNode) -> None:
    node.put("e", b"12345")
    memory = either.register(bytearray(b"....."))
    with pytest.raises(MissingObject):
        either.get_into("gone", memory)
    with pytest.raises(RangeOutside):
        either.get_into("e", memory, "bytes=10-")
    with pytest.raises(ObjectChanged):
        either.get_into("e", memory, etag="other")
    with pytest.raises(WrongMemory, match="5 bytes do not fit"):
        either.get_into("e", memory[:4])
    assert memory.contents() == b"....."
    # None of them cost the session.
    either.get_into("e", memory)
    assert either.counts.transfers in (0, 1)
    assert set(either.counts.fallbacks) <= {"no-device"}


@pytest.mark.parametrize("operation", ["get", "put", "batch"])
def test_an_error_over_http_does_not_tell_of_rdma(
    without: Client, node: RdmaNode, operation: str
) -> None:
    gone = Client("s3://nowhere", endpoint_url=node.url, device="none", **OPTIONS)
    memory = gone.register(bytearray(5))
    asks: dict[str, Callable[[], object]] = {
        "get": lambda: gone.get_into("k", memory),
        "put": lambda: gone.put_from("k", memory),
        "batch": lambda: gone.batch_into(["k"], memory),
    }
    with gone, pytest.raises(MissingBucket) as caught:
        asks[operation]()
    assert gone.counts.fallbacks == {"no-device": 1}
    assert caught.value.__context__ is None


def test_memory_is_whatever_can_be_written(client: Client, node: RdmaNode) -> None:
    node.put("t", bytes(range(80)))
    for buffer in (bytearray(80), mmap.mmap(-1, 4096), array("d", [0.0] * 10)):
        with client.register(buffer) as memory:
            assert client.get_into("t", memory).transport == "rdma"
        assert bytes(memoryview(buffer).cast("B")[:80]) == bytes(range(80))
    target = bytearray(80)
    whole = client.register(target)
    address, _ = whole.locate(client._link.opened())
    with client.register_address(address, 80) as memory:
        assert client.get_into("t", memory[10:], "bytes=0-69").transport == "rdma"
    assert target[10:] == bytes(range(70))
    for wrong in (b"fixed", memoryview(bytearray(9))[::2]):
        with pytest.raises(WrongMemory):
            client.register(wrong)
    with pytest.raises(WrongMemory):
        whole[::2]
    assert client.counts.fallbacks == {}


def test_memory_of_a_device_is_reached_by_its_functions(either: Client, node: RdmaNode) -> None:
    # A soft device registers no dma-buf, so all of it goes over HTTP.
    data = os.urandom(9 * MIB)
    node.put("d", data)
    far = bytearray(9 * MIB)

    def copy(offset: int, piece: bytes) -> None:
        far[offset : offset + len(piece)] = piece

    memory = either.register_dmabuf(
        3, 0, len(far), copy=copy, read=lambda offset, size: bytes(far[offset : offset + size])
    )
    assert either.get_into("d", memory).transport == "http"
    assert far == data
    assert either.put_from("d2", memory[100:200]).size_bytes == 100
    assert node.read("d2") == data[100:200]
    with pytest.raises(WrongMemory, match="copy"):
        either.get_into("d", either.register_dmabuf(3, 0, len(far)))


def test_a_client_is_used_by_many_threads(client: Client, node: RdmaNode) -> None:
    objects = {f"many/{number}": os.urandom(number * 50_000) for number in range(12)}
    for key, data in objects.items():
        node.put(key, data)
    wrong: list[object] = []

    def work(seed: int) -> None:
        with client.register(bytearray(MIB)) as memory:
            for number in range(12):
                key = f"many/{(number * seed) % 12}"
                result = client.get_into(key, memory)
                assert memory.view is not None
                if memory.view[: result.size_bytes] != objects[key] or result.reason:
                    wrong.append((key, result.reason))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 5, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert client.counts.transfers == 60
    assert len(client._link._opened._pairs) == 1  # type: ignore[union-attr]


# Batches


@pytest.fixture
def objects(node: RdmaNode) -> dict[str, bytes]:
    found = {f"b/{number}": os.urandom(number * 977) for number in range(50)}
    for key, data in found.items():
        node.put(key, data)
    return found


def test_a_batch_lies_in_memory_in_the_order_asked(
    either: Client, objects: dict[str, bytes]
) -> None:
    keys = [*list(objects)[::-1], "gone", "b/3"]
    ranges = [None] * (len(keys) - 1) + ["bytes=5-9"]
    memory = either.register(bytearray(2 * MIB))
    rows = either.batch_into(keys, memory, ranges)
    assert [row.key for row in rows] == keys
    for row in rows[:-2]:
        assert row.memory.contents() == objects[row.key]
        assert (row.status, row.length) == (200, len(objects[row.key]))
        assert row.etag
        assert row.last_modified_ms
    assert (rows[-2].status, rows[-2].code, rows[-2].length) == (404, "NoSuchKey", 0)
    assert rows[-1].status == 206
    assert rows[-1].range == f"bytes 5-9/{len(objects['b/3'])}"
    assert rows[-1].memory.contents() == objects["b/3"][5:10]
    ends = [(row.offset, row.offset + row.length) for row in rows]
    assert all(before[1] == after[0] for before, after in pairwise(ends))


def test_what_does_not_fit_is_told_with_all_after_it(
    either: Client, objects: dict[str, bytes]
) -> None:
    room = len(objects["b/1"]) + len(objects["b/2"]) + 10
    memory = either.register(bytearray(room))
    rows = either.batch_into(["b/1", "b/2", "b/3", "b/0", "gone"], memory)
    assert [(row.status, row.code) for row in rows] == [
        (200, ""),
        (200, ""),
        *[(507, "RDMAMemoryFull")] * 3,
    ]
    with pytest.raises(WrongMemory):
        either.batch_into(["b/1", "b/49"], memory, strict=True)


def test_a_strict_batch_raises_the_first_that_cannot_be_had(
    either: Client, objects: dict[str, bytes]
) -> None:
    memory = either.register(bytearray(MIB))
    with pytest.raises(MissingObject) as caught:
        either.batch_into(["b/1", "gone&1", "b/2"], memory, strict=True)
    assert caught.value.key == "gone&1"
    assert len(either.batch_into(list(objects)[:5], memory, strict=True)) == 5


def test_a_batch_of_more_than_one_request(either: Client, objects: dict[str, bytes]) -> None:
    keys = ["b/1", "b/2"] * 5_001
    memory = either.register(bytearray(5_001 * 3 * 977))
    rows = either.batch_into(keys, memory)
    assert len(rows) == len(keys)
    assert rows[-1].offset + rows[-1].length == len(memory)
    assert rows[-1].memory.contents() == objects["b/2"]


def test_nothing_is_asked_for_once_the_memory_is_full(
    either: Client, objects: dict[str, bytes], node: RdmaNode
) -> None:
    asked = {"operation": "GetObjects", "tenant": "demo", "code": "200"}
    before = node.counted("requests_total", **asked)
    # The second does not fit; what is empty after it would.
    keys = ["b/1", "b/2"] + ["b/0"] * 20_000
    with either.register(bytearray(977 + 10)) as memory:
        rows = either.batch_into(keys, memory)
    assert [row.key for row in rows] == keys
    assert rows[0].memory.contents() == objects["b/1"]
    assert {row[1:4] + row[8:9] for row in rows[1:]} == {(507, 977, 0, "RDMAMemoryFull")}
    assert {len(row.memory) for row in rows[1:]} == {0}
    assert node.counted("requests_total", **asked) - before == 1


def test_a_client_is_of_a_bucket() -> None:
    with pytest.raises(WrongAddress):
        Client("s3://train/prefix", **OPTIONS)


def test_both_ways_were_gone(client: Client, without: Client, node: RdmaNode) -> None:
    node.put("ways", b"12345")
    for subject, transport, reason in ((client, "rdma", None), (without, "http", "no-device")):
        before = node.counted("rdma_fallbacks_total", reason="no-device")
        result = subject.get_into("ways", subject.register(bytearray(5)))
        assert (result.transport, result.reason) == (transport, reason)
        after = node.counted("rdma_fallbacks_total", reason="no-device")
        assert after - before == (transport == "http")


def test_a_client_that_was_closed_opens_anew(client: Client, node: RdmaNode) -> None:
    node.put("again", b"12345")
    target = bytearray(5)
    memory = client.register(target)
    for _ in range(2):
        target[:] = b"....."
        assert client.get_into("again", memory).transport == "rdma"
        assert target == b"12345"
        client.close()
        client.close()
        memory.close()


def test_closing_leaves_no_session_behind(node: RdmaNode, tmp_path: Path) -> None:
    with Client("s3://train", endpoint_url=node.url, **OPTIONS) as client:
        node.put("x", b"1")
        client.get_into("x", client.register(bytearray(1)))
        held = len(list(node.rdma._table))
    assert len(list(node.rdma._table)) == held - 1
