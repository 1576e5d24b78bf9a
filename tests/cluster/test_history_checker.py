"""The checker finds what it is there for, and nothing else."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.history import Operation, check


def put(value: str, asked: float, answered: float | None, key: str = "k") -> Operation:
    return Operation("put", key, asked, answered, value)


def delete(asked: float, answered: float | None, key: str = "k") -> Operation:
    return Operation("delete", key, asked, answered)


def get(value: str | None, asked: float, answered: float, key: str = "k") -> Operation:
    return Operation("get", key, asked, answered, value)


def copy(value: str | None, asked: float, answered: float | None) -> Operation:
    """From "a" to "k"."""
    return Operation("copy", "k", asked, answered, value, source="a")


def listing(shows: dict[str, str], asked: float, answered: float) -> Operation:
    return Operation("list", "", asked, answered, covers=frozenset({"a", "k"}), shows=shows)


def whys(history: Sequence[Operation], **initial: str) -> list[str]:
    return [violation.why for violation in check(history, initial)]


def test_nothing_is_found_in_a_quiet_history() -> None:
    history = [
        get(None, 0, 1), put("1", 2, 3), get("1", 4, 5), put("2", 6, 7), get("2", 8, 9),
        delete(10, 11), get(None, 12, 13), listing({}, 14, 15),
    ]  # fmt: skip
    assert not whys(history)


def test_of_a_lenient_key_what_is_read_after_a_write_of_unknown_outcome_counts_for_nothing() -> (
    None
):
    torn = [put("1", 0, 1), put("2", 2, None), get("2", 3, 4), listing({"k": "1"}, 5, 6)]
    assert whys(torn)
    assert not check(torn, lenient=["k"])
    stale = [put("1", 0, 1), put("2", 2, 3), get("1", 4, 5), put("3", 6, None)]
    assert check(stale, lenient=["k"])


def test_a_stale_read_is_found() -> None:
    [why] = whys([put("1", 0, 1), put("2", 2, 3), get("1", 4, 5)])
    assert why == "stale: asked 1.000 s after a write of 2 was acknowledged"


def test_a_lost_write_is_found() -> None:
    [why] = whys([put("1", 0, 1), get(None, 2, 3)])
    assert why == "stale: asked 1.000 s after a write of 1 was acknowledged"


def test_a_value_that_nobody_wrote_is_found() -> None:
    assert whys([put("1", 0, 1), get("2", 2, 3)]) == ["a value was read that nobody had written"]


def test_a_value_read_before_it_was_written_is_found() -> None:
    assert whys([get("1", 0, 1), put("1", 2, 3)]) == ["a value was read that nobody had written"]


def test_an_object_that_came_back_after_its_deletion_is_found() -> None:
    [why] = whys([put("1", 0, 1), delete(2, 3), get("1", 4, 5)])
    assert why == "stale: asked 1.000 s after a delete was acknowledged"


def test_two_reads_that_go_back_in_time_are_found() -> None:
    """While the write is under way either value is right, but not the old one after the new."""
    history = [put("1", 0, 1), put("2", 2, 9), get("2", 3, 4), get("1", 5, 6)]
    assert whys(history)


def test_reads_during_a_write_may_see_either() -> None:
    history = [put("1", 0, 1), put("2", 2, 9), get("1", 3, 4), get("2", 5, 6)]
    assert not whys(history)


def test_two_readers_that_disagree_on_the_order_of_two_writes_are_found() -> None:
    history = [
        put("1", 0, 10), put("2", 0, 10),
        get("1", 1, 2), get("2", 3, 4), get("1", 5, 6),
    ]  # fmt: skip
    assert whys(history)


def test_concurrent_writes_may_take_either_order() -> None:
    history = [put("1", 0, 3), put("2", 1, 4), get("1", 5, 6)]
    assert not whys(history)
    history = [put("1", 0, 3), put("2", 1, 4), get("2", 5, 6)]
    assert not whys(history)


def test_a_write_that_failed_may_be_seen_or_not_and_late() -> None:
    assert not whys([put("1", 0, 1), put("2", 2, None), get("1", 3, 4)])
    assert not whys([put("1", 0, 1), put("2", 2, None), get("1", 3, 4), get("2", 90, 91)])


def test_a_write_that_failed_takes_effect_once() -> None:
    history = [put("1", 0, 1), put("2", 2, None), get("2", 3, 4), put("3", 5, 6), get("2", 7, 8)]
    assert whys(history)


def test_a_delete_that_failed_explains_one_absence_and_not_two() -> None:
    once = [put("1", 0, 1), delete(2, None), get(None, 3, 4)]
    assert not whys(once)
    assert whys([*once, put("2", 5, 6), get(None, 7, 8)])
    assert not whys([*once, put("2", 5, 6), delete(6, None), get(None, 7, 8)])


def test_a_read_that_saw_a_failed_write_binds_those_after_it() -> None:
    history = [put("1", 0, 1), put("2", 2, None), get("2", 3, 4), get("1", 5, 6)]
    assert whys(history)


def test_a_listing_that_misses_an_acknowledged_put_is_found() -> None:
    assert not whys([put("1", 0, 1), listing({"k": "1"}, 2, 3)])
    assert whys([put("1", 0, 1), listing({}, 2, 3)])


def test_a_listing_that_shows_what_was_deleted_or_overwritten_is_found() -> None:
    assert whys([put("1", 0, 1), delete(2, 3), listing({"k": "1"}, 4, 5)])
    assert whys([put("1", 0, 1), put("2", 2, 3), listing({"k": "1"}, 4, 5)])


def test_a_copy_of_what_was_overwritten_is_found() -> None:
    before = [put("1", 0, 1, "a"), put("2", 2, 3, "a")]
    assert not whys([*before, copy("2", 4, 5), get("2", 6, 7)])
    assert whys([*before, copy("1", 4, 5)])


def test_a_copy_writes() -> None:
    assert whys([put("1", 0, 1, "a"), copy("1", 2, 3), get(None, 4, 5)])


def test_a_copy_that_found_nothing_reads_nothing_and_writes_nothing() -> None:
    assert not whys([put("9", 0, 1), copy(None, 2, 3), get("9", 4, 5)])
    assert whys([put("1", 0, 1, "a"), copy(None, 2, 3)])


def test_a_copy_that_failed_may_have_written_what_its_source_held() -> None:
    before = [put("1", 0, 1, "a"), put("9", 0, 1), copy(None, 2, None)]
    assert not whys([*before, get("1", 3, 4)])
    assert not whys([*before, get("9", 3, 4)])
    assert whys([*before, get("8", 3, 4)])


def test_what_was_there_before_counts() -> None:
    assert not whys([get("0", 0, 1)], k="0")
    assert whys([get(None, 0, 1)], k="0")


def test_a_violation_tells_who_saw_what() -> None:
    [violation] = check([put("1", 0, 1), put("2", 2, 3), get("1", 4, 5)])
    assert "> " in str(violation)
    assert "put k 2" in str(violation)


def atomic_history(seed: int, *, clients: int = 6, length: int = 120) -> list[Operation]:
    """What a store without fault tells: every operation takes effect at one moment of its own."""
    chance = random.Random(seed)
    operations: list[tuple[float, Operation]] = []
    for client in range(clients):
        now = chance.random()
        for turn in range(length // clients):
            asked = now
            moment = asked + chance.random()
            answered = moment + chance.random()
            now = answered + chance.random()
            what = chance.choice(("put", "get", "get", "delete", "list"))
            lost = what in ("put", "delete") and chance.random() < 0.2
            key = chance.choice(("a", "k"))
            operations.append(
                (
                    moment,
                    Operation(
                        what,  # type: ignore[arg-type]
                        "" if what == "list" else key,
                        asked,
                        None if lost else answered,
                        f"{client}-{turn}" if what == "put" else None,
                        covers=frozenset({"a", "k"}) if what == "list" else frozenset(),
                        client=client,
                    ),
                )
            )
    return _answered(sorted(operations, key=lambda pair: pair[0]), chance)


def _answered(operations: list[tuple[float, Operation]], chance: random.Random) -> list[Operation]:
    held: dict[str, str | None] = {"a": None, "k": None}
    told = []
    for _, each in operations:
        value, shows = each.value, {}
        if each.what == "get":
            value = held[each.key]
        elif each.what == "list":
            shows = {key: found for key, found in held.items() if found is not None}
        elif each.answered is not None or chance.random() < 0.5:
            held[each.key] = each.value
        told.append(
            Operation(
                each.what, each.key, each.asked, each.answered, value,
                covers=each.covers, shows=shows, client=each.client,
            )
        )  # fmt: skip
    return told


@given(st.integers(0, 2**32))
def test_a_store_that_does_no_wrong_is_never_accused(seed: int) -> None:
    assert not whys(atomic_history(seed))


@pytest.mark.parametrize("seed", range(20))
def test_one_stale_answer_among_many_is_found(seed: int) -> None:
    """A read is made to tell the value before the last that was certain when it was asked."""
    history = atomic_history(seed)
    for number, each in enumerate(history):
        if each.what != "get":
            continue
        written = [
            other
            for other in history
            if other.what == "put" and other.key == each.key and other.answered is not None
        ]
        old = [
            first.value
            for first in written
            for second in written
            if (first.answered or 0) < second.asked
            and (second.answered or 0) < each.asked
            and not any(
                read.what == "get" and read.value == first.value and read.asked > second.asked
                for read in history
            )
        ]
        if old:
            assert each.answered is not None
            lied = get(old[0], each.asked, each.answered, each.key)
            assert whys([*history[:number], lied, *history[number + 1 :]])
            return
    pytest.fail("no read came late enough")
