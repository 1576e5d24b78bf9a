"""Whether the device reads files where they lie: the kernel lets read-only mappings of files be
registered from Linux 6.3 on (`make test-rdma-trixie`)."""

import mmap
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrack.rdma import Client
from gateway.rdma.mapped import MappedFiles
from gateway.rdma.verbs import VerbsDevice, open_device
from tests.feedrack.rdma.node import OPTIONS, rdma_node
from tests.rdma.device_contract import completions, connected
from tests.waiting import wait_until

MIB = 1024**2
CAN = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 3)


@pytest.fixture
def near() -> Iterator[VerbsDevice]:
    device = open_device()
    yield device
    device.close()


@pytest.fixture
def far() -> Iterator[VerbsDevice]:
    device = open_device()
    yield device
    device.close()


def test_a_file_is_sent_from_the_page_cache_or_left_to_be_copied(
    near: VerbsDevice, far: VerbsDevice, tmp_path: Path
) -> None:
    data = os.urandom(MIB)
    (tmp_path / "chunk").write_bytes(data)
    descriptor = os.open(tmp_path / "chunk", os.O_RDONLY)
    before = os.fstat(descriptor)
    files = MappedFiles(near, 8 * MIB)
    part = files.part(descriptor, 4096, MIB - 4096)
    assert (part is not None) == CAN
    if part is not None:
        target = mmap.mmap(-1, MIB)
        there = far.register(memoryview(target), remote=True)
        one, other = connected(near, far)

        def sent(work: int) -> bytes:
            size, to = MIB - 4096, there.address
            one.write(work, part.address, size, part.lkey, to=to, rkey=there.rkey)
            assert [each.status for each in completions(near, 1)] == [0]
            return target[:size]

        assert sent(1) == data[4096:]
        # The very pages: what is written to the file is what is sent.
        with (tmp_path / "chunk").open("r+b") as file:
            file.seek(4096)
            file.write(b"changed")
        assert sent(2) == b"changed" + data[4096 + 7 :]
        part.release()
        for each in (one, other, there):
            each.close()
    else:
        # Trying has not touched it: its times are what makes it the file that was verified.
        after = os.fstat(descriptor)
        assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    files.close()
    os.close(descriptor)


def test_a_warm_object_is_sent_from_where_it_lies_or_copied_once() -> None:
    """All of a gateway, its cache on a disk of the machine's: tmpfs cannot say what is cached."""
    folder = Path(tempfile.mkdtemp(dir="/run/disk"))
    data = os.urandom(8 * MIB)
    with (
        rdma_node(folder, None, mode="required", buffers="8MiB") as node,
        Client("s3://train", endpoint_url=node.url, **OPTIONS) as client,
        client.register(mmap.mmap(-1, 8 * MIB)) as memory,
    ):
        node.put("k", data)

        def copied() -> float:
            """How much of a GET's bytes a processor copied."""
            before = node.counted("rdma_copied_bytes_total", operation="GetObject")
            result = client.get_into("k", memory)
            assert (result.size_bytes, result.reason) == (8 * MIB, None)
            assert memory.contents() == data
            return node.counted("rdma_copied_bytes_total", operation="GetObject") - before

        assert copied() == 8 * MIB
        # Once it lies on the disk, and the disk's own checksums were looked at.
        wait_until(lambda: copied() == (0 if CAN else 8 * MIB), "nothing is copied")
        assert copied() == (0 if CAN else 8 * MIB)
