"""A start removes what a dead node left, and nothing that anybody else may have put there."""

import os
import socket
from pathlib import Path

import pytest

from gateway.processes import run_folder
from gateway.processes.run_folder import RunFolder


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place where nodes of this test start."""
    monkeypatch.setattr(run_folder, "_bases", lambda _: [tmp_path])
    return tmp_path


def _left(*, files: bool = True) -> Path:
    """What a node leaves that dies with all its processes."""
    folder = RunFolder()
    if files:
        with socket.socket(socket.AF_UNIX) as wire:
            # By a short name: a test's folder may have a long one.
            os.chdir(folder.path)
            wire.bind("keeper.sock")
            os.chdir("/")
        for name in ("LOCK", "counter_17.db", "gauge_mostrecent_17.db", "histogram_ended.db"):
            (folder.metrics / name).write_bytes(b"counts")
    os.close(folder.lock)
    return folder.path


def _contents(base: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in base.rglob("*") if path.is_file()}


@pytest.mark.parametrize("files", [False, True])
def test_what_a_dead_node_left_is_removed_by_the_next_start(base: Path, files: bool) -> None:
    left = _left(files=files)
    folder = RunFolder()
    assert not left.exists()
    assert list(base.iterdir()) == [folder.path]
    folder.remove()
    assert not list(base.iterdir())


def test_what_a_living_node_holds_stays(base: Path) -> None:
    first, second = RunFolder(), RunFolder()
    assert first.path.exists()
    for folder in (first, second):
        folder.remove()
    assert not list(base.iterdir())


@pytest.mark.parametrize("name", ["feedrack-data", "feedrack-", ".feedrack-run-data"])
@pytest.mark.parametrize("lock", [b"", b"an object called lock"])
def test_a_folder_of_somebody_else_is_left_alone(base: Path, name: str, lock: bytes) -> None:
    (base / name / "metrics").mkdir(parents=True)
    (base / name / "lock").write_bytes(lock)
    (base / name / "metrics/counter_1.db").write_bytes(b"mine")
    before = _contents(base)
    RunFolder().remove()
    assert _contents(base) == before


@pytest.mark.parametrize("name", ["mine", "metrics/mine", "metrics/mine.db", "metrics/a/LOCK"])
def test_a_run_folder_with_anything_else_in_it_is_left_as_it_is(base: Path, name: str) -> None:
    left = _left()
    (left / name).parent.mkdir(exist_ok=True)
    (left / name).write_bytes(b"mine")
    before = _contents(base)
    RunFolder().remove()
    assert _contents(base) == before
    assert (left / "keeper.sock").exists()


@pytest.mark.parametrize("name", ["lock", "metrics", "folder"])
def test_what_a_link_points_to_is_left_alone(
    base: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    left = _left(files=False)
    moved = left if name == "folder" else left / name
    target = moved.rename(elsewhere / "target")
    moved.symlink_to(target)
    before = _contents(elsewhere)
    RunFolder().remove()
    assert _contents(elsewhere) == before
    assert target.exists()
    assert moved.is_symlink()
