"""What the kernel is asked past Python, and the other ways where it does not offer it."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.tiers import kernel
from gateway.tiers.kernel import CachedOpen, Residency, unset_bytearray
from tests.tiers.cached import descriptor_of, evict_pages

MIB = 1024**2
PAGE = 4096


@pytest.fixture(params=[True, False], ids=["cachestat", "mincore"])
def residency(request: pytest.FixtureRequest) -> Residency:
    return Residency(cachestat=request.param)


def test_pages_are_there_once_written_and_gone_once_evicted(
    tmp_path: Path, residency: Residency
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB + 100))
    with descriptor_of(path) as descriptor:
        assert residency.holds(descriptor, 0, MIB + 100)
        assert residency.holds(descriptor, 5000, 1)
        assert residency.holds(descriptor, MIB, 100)
        evict_pages(descriptor)
        assert not residency.holds(descriptor, 0, MIB + 100)
        assert not residency.holds(descriptor, 5000, 1)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(descriptor, 1, 10 * PAGE)
        assert residency.holds(descriptor, 10 * PAGE, PAGE)
        assert residency.holds(descriptor, 10 * PAGE + 5, 7)
        assert not residency.holds(descriptor, 10 * PAGE - 1, PAGE)
        assert not residency.holds(descriptor, 10 * PAGE + 1, MIB // 2)


def test_what_cannot_be_told_is_not_there(tmp_path: Path, residency: Residency) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * PAGE)
    with descriptor_of(path) as descriptor:
        assert not residency.holds(descriptor, 0, 100 * PAGE)
    assert not residency.holds(descriptor, 0, PAGE)


def test_a_kernel_without_cachestat_is_asked_by_mincore_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_CACHESTAT", 100_000)
    path = tmp_path / "file"
    path.write_bytes(b"x" * PAGE)
    residency = Residency()
    with descriptor_of(path) as descriptor:
        assert residency.holds(descriptor, 0, PAGE)
        assert not residency.cachestat


def test_a_file_whose_name_is_cached_is_opened_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    opener = CachedOpen()
    descriptor = opener.open(str(path))
    if not opener.offered:
        pytest.skip("this kernel or sandbox has no openat2")
    assert descriptor is not None
    assert os.read(descriptor, 10) == b"bytes"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        opener.open(str(path))


def test_a_name_that_is_not_cached_is_left_to_a_thread(tmp_path: Path) -> None:
    # Asked for the first time: only the disk knows. A file system in memory knows at once.
    with suppress(FileNotFoundError):
        assert CachedOpen().open(str(tmp_path / "never-asked")) is None


def test_a_kernel_without_openat2_opens_nothing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_OPENAT2", 100_000)
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    opener = CachedOpen()
    assert opener.open(str(path)) is None
    assert not opener.offered
    assert opener.open(str(path)) is None


@pytest.mark.parametrize("size_bytes", [0, 1, 65_536, MIB + 1])
def test_an_unset_bytearray_is_a_bytearray_of_its_size(size_bytes: int) -> None:
    block = unset_bytearray(size_bytes)
    assert type(block) is bytearray
    assert len(block) == size_bytes
    block[:] = b"x" * size_bytes
    assert block.count(b"x") == size_bytes
    block += b"y"
    assert block[-1:] == b"y"
