"""What jobs have named, over a restart."""

from pathlib import Path

from scheduler_plugin.dataset import parse_hint
from scheduler_plugin.remembered import MOST_REMEMBERED, Remembered

A = parse_hint("s3://train/a")
BOTH = parse_hint("s3://train/a,s3://train/b")


def test_the_latest_come_first_and_outlive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    first = Remembered(path, seconds=100)
    first.see([("alice", A)], 1.0)
    first.see([("alice", BOTH)], 2.0)
    first.save()
    second = Remembered(path, seconds=100)
    second.load()
    assert second.all() == [BOTH, A]
    second.see([("alice", A)], 50.0)
    assert second.all() == [A, BOTH]
    second.see([], 103.0)
    assert second.all() == [A]


def test_there_are_never_too_many(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path / "seen.json", seconds=100)
    hints = [parse_hint(f"s3://train/{number}") for number in range(MOST_REMEMBERED + 5)]
    remembered.see((("alice", hint) for hint in hints), 1.0)
    assert len(remembered.all()) == MOST_REMEMBERED
    assert remembered.all()[0] == hints[-1]


def test_nobody_drives_out_what_others_have_named(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path / "seen.json", seconds=100)
    remembered.see([("alice", A), ("alice", BOTH)], 1.0)
    flood = [parse_hint(f"s3://train/{number}") for number in range(MOST_REMEMBERED)]
    for at in range(3):
        remembered.see((("mallory", hint) for hint in flood), 2.0 + at)
    assert remembered.all()[-2:] == [BOTH, A]
    assert len(remembered.all()) == MOST_REMEMBERED


def test_a_file_that_cannot_be_read_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    for content in (b"", b"{", b'{"nonsense": 1.0, "s3://train/a": 2.0}', b"\xff", b"[1]"):
        path.write_bytes(content)
        remembered = Remembered(path, seconds=100)
        remembered.load()
        assert remembered.all() in ([], [A])


def test_names_that_are_no_text_do_not_hinder_saving(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    remembered = Remembered(path, seconds=100)
    remembered.see([("alice", A), ("alice", parse_hint("s3://train/\udcff"))], 1.0)
    remembered.save()
    again = Remembered(path, seconds=100)
    again.load()
    assert again.all() == [A]
    assert [each.name for each in tmp_path.iterdir()] == ["seen.json"]
