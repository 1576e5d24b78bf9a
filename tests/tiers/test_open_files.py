"""Open files are shared, bounded in number, and never those of a name that was removed."""

import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.tiers import open_files
from gateway.tiers.open_files import DiskThreads, OpenFiles, kept_open
from tests.waiting import until

T = TypeVar("T")


@asynccontextmanager
async def opened(keep_open: int = 10) -> AsyncIterator[OpenFiles]:
    threads = DiskThreads()
    files = OpenFiles(threads, keep_open=keep_open)
    try:
        yield files
    finally:
        files.close()
        threads.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_the_first_opens_and_the_rest_share(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    async with opened() as files:
        assert files.cached("f") is None
        file = files.open_now("f", path) or await files.acquire("f", path)
        assert files.cached("f") is file
        assert await files.acquire("f", path) is file
        assert await files.read(file, 1, 3) == b"yte"
        for _ in range(3):
            files.release(file)
        assert is_open(file.descriptor)
        files.drop("f")
        assert not is_open(file.descriptor)


async def test_past_the_end_nothing_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    async with opened() as files:
        file = await files.acquire("f", path)
        assert files.read_now(file, 3, 10) is None
        assert await files.read(file, 3, 10) == b"es"
        files.release(file)


async def test_those_not_in_use_are_closed_beyond_the_limit_the_oldest_first(
    tmp_path: Path,
) -> None:
    async with opened(keep_open=3) as files:
        used = []
        for number in range(6):
            path = tmp_path / str(number)
            path.write_bytes(b"x")
            file = await files.acquire(number, path)
            used.append(file)
            if number not in (0, 1):
                files.release(file)
        kept = [files.cached(number) for number in range(6)]
        assert kept == [used[0], used[1], None, None, None, used[5]]
        for file in (*used[:2], *(one for one in kept if one is not None)):
            files.release(file)


async def test_the_limit_follows_what_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert kept_open() == 256
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    assert kept_open() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 2**20))
    assert kept_open() == 4096


async def test_a_file_removed_while_a_thread_opened_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    opened_descriptors = []

    def remove_once_opened(*arguments: object) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        opened_descriptors.append(descriptor)
        path.unlink()
        return descriptor

    async with opened() as files:
        run = files._threads.read

        def read(function: Callable[..., T], *arguments: object) -> object:
            return run(remove_once_opened, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(files._threads, "read", read)
            with pytest.raises(FileNotFoundError):
                await files.acquire("f", path)
        assert not is_open(opened_descriptors[0])
        path.write_bytes(b"new")
        file = await files.acquire("f", path)
        assert await files.read(file, 0, 3) == b"new"
        files.release(file)


async def test_a_name_that_another_file_takes_over_is_that_files(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    async with opened() as files:
        old = await files.acquire("name", tmp_path / "old")
        new = await files.acquire("staged", tmp_path / "new")
        files.release(new)
        files.rename("staged", "name")
        assert files.cached("name") is new
        assert files.cached("staged") is None
        files.release(new)
        # Whoever reads the old one does so to the end.
        assert await files.read(old, 0, 3) == b"old"
        files.release(old)
        assert not is_open(old.descriptor)


@pytest.mark.parametrize("slice_files", [1, 256])
async def test_removed_files_are_let_go_of_once_nobody_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_files: int
) -> None:
    monkeypatch.setattr(open_files, "_SLICE_FILES", slice_files)
    async with opened() as files:
        by_name = {}
        for name in ("kept", "removed", "read"):
            path = tmp_path / name
            path.write_bytes(b"x")
            by_name[name] = await files.acquire(name, path)
            if name != "read":
                files.release(by_name[name])
        await files.drop_removed()
        assert files.cached("removed") is by_name["removed"]
        files.release(by_name["removed"])
        (tmp_path / "removed").unlink()
        (tmp_path / "read").unlink()
        await files.drop_removed()
        await until(lambda: not is_open(by_name["removed"].descriptor))
        assert files.cached("read") is None
        assert await files.read(by_name["read"], 0, 1) == b"x"
        files.release(by_name["read"])
        await until(lambda: not is_open(by_name["read"].descriptor))
        assert files.cached("kept") is by_name["kept"]
        files.release(by_name["kept"])
