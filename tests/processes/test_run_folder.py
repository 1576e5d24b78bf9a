"""A node's run folder is private, has a name that sockets can have, and does not outlive it."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.run_folder import RunFolder


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="run") as folder:
        yield Path(folder)


def made(base: Path) -> RunFolder:
    return RunFolder({"RUNTIME_DIRECTORY": str(base)})


def test_a_run_folder_is_its_owners_alone_and_goes_with_the_node(base: Path) -> None:
    folder = made(base)
    assert folder.path.parent == base
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.metrics.is_dir()
    folder.remove()
    assert list(base.iterdir()) == []


def test_where_a_socket_could_have_no_name_another_folder_is_taken(base: Path) -> None:
    deep = base / ("x" * 90)
    deep.mkdir()
    folder = made(deep)
    assert folder.path.parent != deep
    assert list(deep.iterdir()) == []
    assert len(os.fsencode(folder.tunnels)) <= 107
    folder.remove()


def test_a_folder_that_a_process_still_has_is_left_and_one_that_nobody_has_is_removed(
    base: Path,
) -> None:
    lived = made(base)
    # A child inherits the lock, and with it keeps the folder.
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lived.lock]
    )
    os.close(lived.lock)
    second = made(base)
    assert lived.path.is_dir()
    child.communicate(b"\n", timeout=30)
    third = made(base)
    assert not lived.path.exists()
    assert second.path.is_dir()
    assert third.path.is_dir()
    second.remove()
    third.remove()


def test_what_is_no_run_folder_is_left(base: Path) -> None:
    (base / "feedrack-new").mkdir()
    (base / "feedrack-file").touch()
    (base / "feedrack-link").symlink_to("feedrack-new")
    (base / "other").mkdir()
    made(base).remove()
    assert len(list(base.iterdir())) == 4
