"""The folders: put in place whole, kept small, never followed out of."""

import os
from pathlib import Path

import pytest

from scheduler_plugin.folders import FolderUnsafe, RankingFolder, prepare, take_requests


def head(expires: int, places: str = "n4") -> bytes:
    return f"feedrack-ranking 1 {expires}\n{places}\nend\n".encode()


def test_rankings_are_put_in_place_and_others_cleared_away(tmp_path: Path) -> None:
    folder = RankingFolder(tmp_path / "rankings")
    assert folder.write({"a": head(100), "b": head(100)}, expires=100, now=0.0) == 2
    (tmp_path / "rankings" / ".new-left").write_bytes(b"half")
    (tmp_path / "rankings" / "stranger").symlink_to("/etc/passwd")
    assert folder.write({"a": head(101)}, expires=101, now=1.0) == 0
    assert [each.name for each in (tmp_path / "rankings").iterdir()] == ["a"]
    assert Path("/etc/passwd").exists()
    assert (tmp_path / "rankings").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "rankings" / "a").stat().st_mode & 0o777 == 0o600


def test_what_has_not_changed_is_written_again_in_time(tmp_path: Path) -> None:
    folder = RankingFolder(tmp_path / "rankings")
    written = [
        folder.write({"a": head(now + 100)}, expires=now + 100, now=float(now))
        for now in range(0, 100, 10)
    ]
    assert written == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert folder.write({"a": head(200, "n5")}, expires=200, now=100.0) == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_stands_in_the_way_is_put_aside(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "rankings" / "a"
    target.parent.mkdir(mode=0o700)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        target.symlink_to(outside)
    RankingFolder(target.parent).write({"a": head(1)}, expires=1, now=0.0)
    assert target.read_bytes() == head(1)
    assert outside.read_bytes() == b"mine"


def test_one_that_cannot_be_written_does_not_hinder_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "rankings"
    (folder / "a" / "full").mkdir(parents=True)
    folder.chmod(0o700)
    with pytest.raises(OSError, match="not empty"):
        RankingFolder(folder).write({"a": head(1), "b": head(1)}, expires=1, now=0.0)
    assert (folder / "b").read_bytes() == head(1)
    assert sorted(each.name for each in folder.iterdir()) == ["a", "b"]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "rankings"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(FolderUnsafe):
        prepare(folder)
    with pytest.raises(FolderUnsafe):
        RankingFolder(folder).write({"a": b"x"}, expires=1, now=0.0)
    link = tmp_path / "link"
    folder.chmod(0o700)
    link.symlink_to(folder)
    with pytest.raises(FolderUnsafe):
        prepare(link)


def test_each_request_is_told_of_once(tmp_path: Path) -> None:
    for name in ("17", "4711", ".17.new", "x17", "-3", "9" * 21, "١٢"):
        (tmp_path / name).write_bytes(b"whatever")
    assert sorted(take_requests(tmp_path)) == [17, 4711]
    assert list(take_requests(tmp_path)) == []
    assert [each.name for each in tmp_path.iterdir()] == [".17.new"]
    os.utime(tmp_path / ".17.new", (1.0, 1.0))
    assert list(take_requests(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_without_its_folder_nothing_was_requested(tmp_path: Path) -> None:
    assert list(take_requests(tmp_path / "gone")) == []
