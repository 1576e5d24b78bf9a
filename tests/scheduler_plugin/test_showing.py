"""What the operator is told of the file that jobs follow."""

from pathlib import Path

import pytest

from scheduler_plugin.dataset import parse_dataset
from scheduler_plugin.ranking import Held, Place, Ranking
from scheduler_plugin.ranking_file import Entry, Readers, Rules, render
from scheduler_plugin.showing import Followed, Shown, followed
from scheduler_plugin.showing import render as show

IMAGENET = parse_dataset("s3://train/imagenet")
EXPIRES = 1_796_000_000


def write(folder: Path) -> Path:
    path = folder / "train%2Fimagenet"
    ranking = Ranking({"main": (Place("n4", 1, 64, 9.0, "rack2"), Place("rack2", 2, 64, 5.0))})
    entry = Entry(ranking, Readers(everybody=True))
    rules = Rules(default_partition="main")
    path.write_bytes(render(IMAGENET, [entry], expires=EXPIRES, rules=rules))
    return path


def test_a_file_says_how_long_it_is_good_and_what_it_names(tmp_path: Path) -> None:
    path = str(write(tmp_path))
    places = {"main": ["n4", "rack2"]}
    good = followed(tmp_path, IMAGENET, now=EXPIRES - 7)
    assert good == Followed(path, "good", 7, places)
    stale = followed(tmp_path, IMAGENET, now=EXPIRES + 7)
    assert stale == Followed(path, "stale", -7, places)


def test_one_that_is_none_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "train%2Fimagenet"
    assert followed(tmp_path, IMAGENET) == Followed(str(path), "missing")
    path.write_text("no ranking\n")
    assert followed(tmp_path, IMAGENET) == Followed(str(path), "malformed")
    path.unlink()
    path.mkdir()
    assert followed(tmp_path, IMAGENET) == Followed(str(path), "unreadable")
    long = parse_dataset(f"s3://train/{'n' * 300}")
    assert followed(tmp_path, long).state == "missing"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (Followed("/r/x", "good", 7, {"main": ["n4", "rack2"]}), "Jobs follow /r/x, good for 7 s"),
        (Followed("/r/x", "good", 7, {"main": ["n4", "rack2"]}), "  main: n4 rack2\n"),
        (Followed("/r/x", "good", 7, {"*": ["[n4]"]}), "  all partitions: [n4]\n"),
        (Followed("/r/x", "stale", -7), "as without it: /r/x has been stale for 7 s"),
        (Followed("/r/x", "missing"), "as without it: there is no /r/x"),
        (Followed("/r/x", "malformed"), "as without it: /r/x is no ranking"),
        (Followed("/r/x", "unreadable"), "/r/x is not yours to read"),
    ],
)
def test_it_is_said_which_file_jobs_follow(
    file: Followed, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"feature": "n4", "kind": "node", "hosts": 1, "load": 0.5, "saved_bytes": 9}
    held = [Held("n4", "rack2", 9)]
    show(Shown("s3://train/imagenet", held, {"main": [place]}, [], "", file))
    said = capsys.readouterr().out
    assert words in said
    assert " 50% " in said


def test_of_a_dataset_that_nobody_holds_the_file_is_told_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Followed("/r/x", "good", 7, {"main": ["n4"]})
    show(Shown("s3://train/imagenet", [], {}, [], "", file))
    said = capsys.readouterr().out
    assert said.startswith("s3://train/imagenet: nobody holds anything of it.\nJobs follow /r/x")
