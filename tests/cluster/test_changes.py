"""What follows from the entries of the stream, and from who has come how far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.changes import (
    ChangeId,
    Picture,
    Run,
    Waits,
    Watch,
    decode_refs,
    encode_refs,
    position,
    written,
)
from gateway.cluster.members import Member, encode_member
from gateway.model.objects import ObjectRef

KEY = ObjectRef("origin", "bucket", "key")
ONE, TWO, THREE = Run("n1", "a"), Run("n2", "a"), Run("n3", "a")


def member(run: Run) -> Member:
    return Member(
        id=run.id, incarnation=run.incarnation, rack="r", zone="z", peers="", s3="", admin="",
        capacity_bytes=1, version="",
    )  # fmt: skip


def joined(run: Run) -> dict[bytes, bytes]:
    return {b"k": b"join", b"d": encode_member(member(run))}


def said(kind: bytes, run: Run, number: int = 1) -> dict[bytes, bytes]:
    return {
        b"k": kind, b"n": run.id.encode(), b"i": run.incarnation.encode(), b"c": b"%d" % number,
        b"d": encode_refs([KEY]),
    }  # fmt: skip


def with_members(*runs: Run) -> Picture:
    picture = Picture()
    picture.begin_with([member(run) for run in runs], {})
    return picture


@given(st.lists(st.tuples(st.text(), st.text(), st.text(alphabet=st.characters()))))
def test_names_of_any_kind_come_back(names: list[tuple[str, str, str]]) -> None:
    refs = tuple(ObjectRef(*each) for each in names)
    assert decode_refs(encode_refs(refs)) == refs


@given(st.binary(max_size=64))
def test_keys_that_are_none_are_refused_and_nothing_else_happens(raw: bytes) -> None:
    try:
        decode_refs(raw)
    except ValueError:
        return


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_places_compare_as_numbers(high: int, low: int) -> None:
    assert position(written((high, low)).encode()) == (high, low)


def test_a_change_is_open_from_begin_to_end() -> None:
    picture = with_members(ONE, TWO)
    begun = picture.apply(said(b"begin", TWO)).begun
    assert begun is not None
    assert begun.refs == (KEY,)
    assert list(picture.open) == [ChangeId(TWO, 1)]
    (ended,) = picture.apply(said(b"end", TWO)).ended
    assert ended.change == ChangeId(TWO, 1)
    assert not ended.abandoned
    assert not picture.open


def test_an_end_of_what_nobody_began_says_nothing() -> None:
    assert not with_members(ONE).apply(said(b"end", ONE)).ended


def test_what_a_member_that_leaves_was_changing_is_abandoned() -> None:
    picture = with_members(ONE, TWO)
    picture.apply(said(b"begin", TWO, 1))
    picture.apply(said(b"begin", ONE, 1))
    applied = picture.apply(said(b"leave", TWO))
    assert applied.gone == TWO
    assert [ended.abandoned for ended in applied.ended] == [True]
    assert list(picture.open) == [ChangeId(ONE, 1)]


def test_a_new_run_of_a_node_ends_the_one_before() -> None:
    picture = with_members(ONE, TWO)
    picture.apply(said(b"begin", TWO))
    applied = picture.apply(joined(Run("n2", "b")))
    assert applied.gone == TWO
    assert applied.ended[0].abandoned
    assert picture.runs() == {ONE, Run("n2", "b")}
    # What is said of the run before is said too late.
    assert picture.apply(said(b"leave", TWO)).gone is None


@pytest.mark.parametrize(
    "fields", [{}, {b"k": b"begin"}, {b"k": b"later", b"n": b"n1", b"i": b"a"}, {b"k": b"join"}]
)
def test_an_entry_of_a_later_version_is_refused(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="entry"):
        with_members(ONE).apply(fields)


def test_a_write_waits_for_all_who_were_members_at_its_place() -> None:
    waits = Waits()
    assert not waits.begun(1, (5, 0), [TWO, THREE])
    assert waits.acked(TWO, (4, 9)) == []
    assert waits.acked(TWO, (5, 0)) == []
    assert waits.missing() == {THREE}
    assert waits.acked(THREE, (7, 0)) == [1]
    assert not waits.missing()


def test_who_has_come_so_far_already_is_not_waited_for() -> None:
    waits = Waits()
    waits.acked(TWO, (9, 0))
    assert waits.begun(1, (5, 0), [TWO])
    assert waits.begun(2, (5, 1), [])


def test_who_is_gone_is_not_waited_for() -> None:
    waits = Waits()
    waits.begun(1, (5, 0), [TWO])
    waits.begun(2, (6, 0), [TWO, THREE])
    assert waits.gone(TWO) == [1]
    assert waits.gone(THREE) == [2]


def test_a_run_that_was_gone_begins_anew() -> None:
    waits = Waits()
    waits.acked(TWO, (9, 0))
    waits.gone(TWO)
    assert not waits.begun(1, (5, 0), [TWO])


def test_a_lease_is_over_once_nobody_has_renewed_it_for_longer_than_it_lasts() -> None:
    watch = Watch(3.15)
    assert not watch.saw(TWO, 7, 100.0)
    assert not watch.saw(TWO, 7, 103.0)
    assert watch.saw(TWO, 7, 103.15)


def test_a_renewal_counts_from_when_it_was_seen() -> None:
    watch = Watch(3.15)
    watch.saw(TWO, 7, 100.0)
    assert not watch.saw(TWO, 8, 103.1)
    assert not watch.saw(TWO, 8, 106.2)
    assert watch.saw(TWO, 8, 106.3)


def test_who_was_not_watched_meanwhile_is_watched_from_the_beginning() -> None:
    watch = Watch(3.15)
    watch.saw(TWO, 7, 100.0)
    watch.forget_others({ONE})
    assert not watch.saw(TWO, 7, 200.0)
