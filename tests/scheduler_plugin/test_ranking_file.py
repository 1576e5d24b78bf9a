"""The file as the other side reads it, and its limits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_plugin.dataset import parse_dataset
from scheduler_plugin.ranking import Place, Ranking
from scheduler_plugin.ranking_file import (
    MOST_BYTES,
    MOST_READERS,
    Entry,
    Readers,
    Rules,
    Written,
    read,
    render,
)

IMAGENET = parse_dataset("s3://train/imagenet")
RANKING = Ranking(
    {
        "*": (Place("n4", 1, 64, 9.0, "rack2"), Place("rack2", 2, 64, 5.0)),
        "main": (Place("n4", 1, 64, 9.0, None),),
    }
)


def test_it_is_the_text_that_the_docs_show() -> None:
    entries = [
        Entry(RANKING, Readers(users=frozenset({1001}), groups=frozenset({100}))),
        Entry(RANKING, Readers(everybody=True), (parse_dataset("s3://train/labels"),)),
    ]
    rules = Rules(arrays=False, default_partition="main", common_feature="feedrack")
    rules = replace(rules, sizes={"main": 3, "*": 4})
    assert render(IMAGENET, entries, expires=1796000000, rules=rules).decode() == (
        "feedrack-ranking 1 1796000000 no main feedrack\n"
        "dataset s3://train/imagenet\n"
        "users 0 1001\n"
        "groups 100\n"
        "[main] 3\n"
        "n4 1 64 -\n"
        "[*] 4\n"
        "n4 1 64 rack2\n"
        "rack2 2 64 -\n"
        "with s3://train/labels\n"
        "users *\n"
        "groups\n"
        "[main] 3\n"
        "n4 1 64 -\n"
        "[*] 4\n"
        "n4 1 64 rack2\n"
        "rack2 2 64 -\n"
        "end\n"
    )


@pytest.mark.parametrize(
    ("rules", "word"),
    [
        (Rules(common_needed=True), "!"),
        (Rules(common_needed=False), "-"),
        (Rules(common_feature="all nodes"), "!"),
        (Rules(common_feature="all"), "all"),
    ],
)
def test_it_says_whether_there_is_a_feature_that_all_have(rules: Rules, word: str) -> None:
    first = render(IMAGENET, [], expires=1, rules=rules).splitlines()[0]
    assert first == f"feedrack-ranking 1 1 yes - {word}".encode()


def test_a_name_that_slurm_could_not_have_is_left_out() -> None:
    places = (Place("n4|x", 1, 1, 1.0), Place("n4\nusers *", 1, 1, 1.0), Place("n5", 1, 1, 1.0))
    ranking = Ranking({"main": places, "a]\nb": places})
    text = render(IMAGENET, [Entry(ranking, Readers())], expires=1, rules=Rules()).decode()
    assert "n5 1 1 -" in text
    assert "n4" not in text
    assert "a]" not in text


def test_it_stays_small_and_whole() -> None:
    places = tuple(Place("n" * 60 + str(number), 1, 1, 1.0) for number in range(26))
    ranking = Ranking({f"partition{number}": places for number in range(100)})
    others = [
        Entry(RANKING, Readers(everybody=True), (parse_dataset(f"s3://train/{number}"),))
        for number in range(500)
    ]
    raw = render(
        IMAGENET, [Entry(ranking, Readers(everybody=True)), *others], expires=1, rules=Rules()
    )
    assert len(raw) <= MOST_BYTES
    assert raw.endswith(b"\nend\n")
    assert re.findall(rb"^\[(.*)\] 0$", raw, re.MULTILINE)[0] == b"partition0"


def test_too_many_readers_are_none() -> None:
    readers = Readers(users=frozenset(range(MOST_READERS + 1)))
    assert b"users 0\ngroups\n" in render(
        IMAGENET, [Entry(RANKING, readers)], expires=1, rules=Rules()
    )


def test_who_may_know_of_two_datasets_may_of_each() -> None:
    everybody = Readers(everybody=True)
    some = Readers(users=frozenset({1, 2}), groups=frozenset({7}))
    others = Readers(users=frozenset({2, 3}), groups=frozenset({8}))
    assert everybody.both(some) == some.both(everybody) == some
    assert some.both(others) == Readers(users=frozenset({2}))
    assert some.knows(1, 0)
    assert some.knows(9, 7)
    assert some.knows(0, 0)
    assert not some.knows(3, 8)


def test_what_is_written_is_read_back() -> None:
    together = Entry(RANKING, Readers(everybody=True), (parse_dataset("s3://train/labels"),))
    content = render(
        IMAGENET,
        [Entry(RANKING, Readers(users=frozenset({1001}))), together],
        expires=1796000000,
        rules=Rules(default_partition="main"),
    )
    assert read(content) == Written(1796000000, {"main": ["n4"], "*": ["n4", "rack2"]})
    assert read(content[:-1]) is None
    assert read(content.replace(b"ranking 1", b"ranking 2")) is None


@given(st.binary() | st.binary().map(lambda some: b"feedrack-ranking 1 5 " + some + b"\nend\n"))
def test_whatever_lies_there_is_read_or_is_none(content: bytes) -> None:
    found = read(content)
    assert found is None or found.expires >= 0
