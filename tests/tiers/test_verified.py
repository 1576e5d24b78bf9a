"""What was verified is known while the file is the same and its bytes stay in the page cache."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tiers.verified import Stamp, Verified, stamp_of

ONE: Stamp = (1, 2, 3, 4)
OTHER: Stamp = (1, 2, 3, 5)


def test_blocks_that_were_told_are_known_in_a_row_from_any_of_them() -> None:
    verified = Verified()
    verified.tell("c", ONE, 2, 3)
    assert [verified.run("c", ONE, first, 10) for first in range(6)] == [0, 0, 3, 2, 1, 0]
    assert verified.run("c", ONE, 2, 2) == 2
    assert verified.run("d", ONE, 2, 2) == 0
    verified.tell("c", ONE, 0, 2)
    assert verified.run("c", ONE, 0, 128) == 5


def test_another_stamp_is_another_file() -> None:
    verified = Verified()
    verified.tell("c", ONE, 0, 4)
    assert verified.seen("c", 0, 4)
    assert verified.run("c", OTHER, 0, 4) == 0
    # It has changed: not even the old stamp brings back what was known.
    assert verified.run("c", ONE, 0, 4) == 0
    assert not verified.seen("c", 0, 4)
    verified.tell("c", ONE, 0, 4)
    verified.tell("c", OTHER, 2, 1)
    assert verified.run("c", OTHER, 0, 4) == 0
    assert verified.run("c", OTHER, 2, 4) == 1


def test_what_left_the_page_cache_takes_along_what_lies_behind_it() -> None:
    verified = Verified()
    verified.tell("c", ONE, 0, 8)
    verified.left("c", 5)
    assert verified.run("c", ONE, 0, 8) == 5
    verified.left("c", 0)
    assert len(verified) == 0
    verified.left("c", 0)
    verified.forget("c")


def test_the_first_told_is_forgotten_first_once_there_are_too_many() -> None:
    verified = Verified(limit_files=3)
    for name in "abcd":
        verified.tell(name, ONE, 0)
    verified.tell("b", ONE, 1)
    assert len(verified) == 3
    assert [verified.run(name, ONE, 0, 2) for name in "abcd"] == [0, 2, 1, 1]


stamps = st.sampled_from([ONE, OTHER])
steps = st.lists(
    st.tuples(
        st.sampled_from(["tell", "run", "left", "forget"]),
        st.sampled_from(["a", "b"]),
        stamps,
        st.integers(0, 140),
        st.integers(1, 140),
    ),
    max_size=60,
)


@given(steps=steps)
def test_it_knows_no_more_and_no_less_than_a_set_of_blocks(
    steps: list[tuple[str, str, Stamp, int, int]],
) -> None:
    verified = Verified()
    expected: dict[str, tuple[Stamp, set[int]]] = {}
    for step, name, stamp, first, count in steps:
        known, blocks = expected.get(name, (None, set()))
        match step:
            case "tell":
                blocks = blocks if known == stamp else set()
                expected[name] = stamp, blocks | set(range(first, first + count))
            case "left" if known is not None:
                expected[name] = known, {block for block in blocks if block < first}
            case "forget":
                expected.pop(name, None)
            case "run":
                if known != stamp:
                    blocks = set()
                    expected.pop(name, None)
                run = 0
                while run < count and first + run in blocks:
                    run += 1
                assert verified.run(name, stamp, first, count) == run
                continue
        getattr(verified, step)(
            *{
                "tell": (name, stamp, first, count),
                "left": (name, first),
                "forget": (name,),
            }[step]
        )
        assert verified.seen(name, first, count) == (
            set(range(first, first + count)) <= expected.get(name, (ONE, set()))[1]
        )


@pytest.mark.parametrize("change", ["write", "truncate", "touch", "replace", "rename"])
def test_every_change_of_a_file_changes_its_stamp(tmp_path: Path, change: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    before = stamp_of(path.stat())
    assert stamp_of(path.stat()) == before
    # Within one tick of an older kernel's clock a change is not told from the one before.
    os.utime(path, ns=(1, 1))
    before = stamp_of(path.stat())
    match change:
        case "write":
            with path.open("r+b") as file:
                file.write(b"y")
        case "truncate":
            os.truncate(path, 50)
        case "touch":
            os.utime(path)
        case "replace":
            (tmp_path / "new").write_bytes(b"x" * 100)
            (tmp_path / "new").replace(path)
        case "rename":
            path = path.rename(tmp_path / "other")
            os.utime(path, ns=(1, 2))
    assert stamp_of(path.stat()) != before
