"""Files are registered where they lie, once, and let go of when there are too many."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.rdma import mapped
from gateway.rdma.device import VerbFailed
from gateway.rdma.mapped import FROM_BYTES, MappedFiles
from tests.rdma.soft import Fabric, SoftDevice

SIZE = 4 * FROM_BYTES


@pytest.fixture
def device() -> Iterator[SoftDevice]:
    device = Fabric().device()
    yield device
    device.close()


@pytest.fixture
def files(device: SoftDevice) -> Iterator[MappedFiles]:
    files = MappedFiles(device, 8 * SIZE)
    yield files
    files.close()
    assert files.held_bytes == 0
    assert not device.regions


def make(folder: Path, name: str, size: int = SIZE) -> tuple[int, bytes]:
    data = os.urandom(size)
    (folder / name).write_bytes(data)
    return os.open(folder / name, os.O_RDONLY), data


def test_a_part_is_the_files_own_bytes(files: MappedFiles, tmp_path: Path) -> None:
    descriptor, data = make(tmp_path, "a")
    part = files.part(descriptor, FROM_BYTES, 2 * FROM_BYTES)
    assert part is not None
    assert ctypes.string_at(part.address, 2 * FROM_BYTES) == data[FROM_BYTES : 3 * FROM_BYTES]
    part.release()
    os.close(descriptor)


def test_a_file_is_registered_once(files: MappedFiles, device: SoftDevice, tmp_path: Path) -> None:
    descriptor, _ = make(tmp_path, "a")
    for _ in range(3):
        part = files.part(descriptor, 0, SIZE)
        assert part is not None
        part.release()
    assert len(device.regions) == 1
    assert files.held_bytes == SIZE
    os.close(descriptor)


def test_another_file_of_the_same_name_is_another(files: MappedFiles, tmp_path: Path) -> None:
    first, _ = make(tmp_path, "a")
    part = files.part(first, 0, SIZE)
    assert part is not None
    (tmp_path / "a").unlink()
    second, data = make(tmp_path, "a")
    other = files.part(second, 0, SIZE)
    assert other is not None
    assert ctypes.string_at(other.address, SIZE) == data
    for each in (part, other):
        each.release()
    os.close(first)
    os.close(second)


def test_the_one_read_least_recently_goes_first(
    files: MappedFiles, device: SoftDevice, tmp_path: Path
) -> None:
    opened = [make(tmp_path, str(number))[0] for number in range(10)]
    held = files.part(opened[0], 0, SIZE)
    assert held is not None
    addressed = []
    for descriptor in opened[1:]:
        part = files.part(descriptor, 0, SIZE)
        assert part is not None
        addressed.append(part.address)
        part.release()
    assert files.held_bytes == 8 * SIZE
    addresses = {region.address for region in device.regions.values()}
    # The first two that nobody reads any more are gone.
    assert len(addresses - {held.address}) == 7
    assert addresses - {held.address} == set(addressed[-7:])
    # What is being read stays, however old.
    assert ctypes.string_at(held.address, 1)
    assert any(region.address == held.address for region in device.regions.values())
    held.release()
    for descriptor in opened:
        os.close(descriptor)


def test_there_are_never_more_than_so_many(
    files: MappedFiles, device: SoftDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a descriptor and an object of the device's, however small it is."""
    monkeypatch.setattr(mapped, "MOST_PARTS", 2)
    descriptor, _ = make(tmp_path, "a")
    parts = [files.part(descriptor, number * FROM_BYTES, FROM_BYTES) for number in range(3)]
    assert [part is None for part in parts] == [False, False, True]
    for part in parts[:2]:
        assert part is not None
        part.release()
    assert files.part(descriptor, 2 * FROM_BYTES, FROM_BYTES) is not None
    assert len(device.regions) == 2
    os.close(descriptor)


def test_a_removed_file_is_let_go_of(files: MappedFiles, tmp_path: Path) -> None:
    descriptor, _ = make(tmp_path, "a")
    part = files.part(descriptor, 0, SIZE)
    assert part is not None
    os.close(descriptor)
    (tmp_path / "a").unlink()
    files.tidy()
    assert files.held_bytes == SIZE
    part.release()
    files.tidy()
    assert files.held_bytes == 0


@pytest.mark.parametrize(("offset", "size"), [(0, FROM_BYTES - 1), (1, SIZE), (SIZE, FROM_BYTES)])
def test_little_and_what_is_not_there_is_copied(
    files: MappedFiles, tmp_path: Path, offset: int, size: int
) -> None:
    descriptor, _ = make(tmp_path, "a")
    assert files.part(descriptor, offset, size) is None
    os.close(descriptor)


def test_what_would_push_out_all_others_is_copied(files: MappedFiles, tmp_path: Path) -> None:
    descriptor, _ = make(tmp_path, "a", 4 * SIZE)
    assert files.part(descriptor, 0, 2 * SIZE + 1) is None
    os.close(descriptor)


def test_no_more_of_a_file_is_registered_than_is_asked_for(
    files: MappedFiles, device: SoftDevice, tmp_path: Path
) -> None:
    """The rest may not be in memory, and nobody vouches for it."""
    descriptor, data = make(tmp_path, "a", 16 * SIZE + 100)
    part = files.part(descriptor, SIZE + 100, FROM_BYTES)
    assert part is not None
    assert ctypes.string_at(part.address, FROM_BYTES) == data[SIZE + 100 :][:FROM_BYTES]
    [region] = device.regions.values()
    # Whole pages.
    assert region.size_bytes == FROM_BYTES + mmap.PAGESIZE == files.held_bytes
    part.release()
    # The last page ends where the file does.
    last = files.part(descriptor, 15 * SIZE, SIZE + 100)
    assert last is not None
    assert ctypes.string_at(last.address, SIZE + 100) == data[15 * SIZE :]
    last.release()
    os.close(descriptor)


def test_a_device_that_cannot_is_asked_once_a_minute(
    device: SoftDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been for want of memory that may be locked."""
    asked = []

    def refuse(*_: object, **__: object) -> None:
        asked.append(1)
        raise VerbFailed("Cannot allocate memory")

    clock = [1000.0]
    files = MappedFiles(device, 8 * SIZE, now=lambda: clock[0])
    descriptor, _ = make(tmp_path, "a")
    with monkeypatch.context() as patch:
        patch.setattr(device, "register_address", refuse)
        for seconds in (0, 59, 1, 1):
            clock[0] += seconds
            assert files.part(descriptor, 0, SIZE) is None
        assert len(asked) == 2
    clock[0] += 60
    part = files.part(descriptor, 0, SIZE)
    assert part is not None
    part.release()
    os.close(descriptor)
    files.close()
