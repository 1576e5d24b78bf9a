"""What a prefetch asks for is understood or refused, and is shared out so that each home brings in
its own."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.chunk_sets import chunks_in
from gateway.cluster.members import Member
from gateway.cluster.placement import homes
from gateway.cluster.warming import (
    ITEM_CHUNKS,
    BadPrefetch,
    Found,
    Spec,
    check_priority,
    read_asked,
    share_out,
    size_of,
    targets,
)
from tests.cluster.listed import member

MEMBERS = (member("a", "r1"), member("b", "r1"), member("c", "r2"), member("d", "r2"))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"{}", "either dataset or keys"),
        (b'{"dataset": "s3://b/p", "keys": ["s3://b/k"]}', "either dataset or keys"),
        (b'{"dataset": "b/p"}', "s3://bucket"),
        (b'{"dataset": "s3:///p"}', "s3://bucket"),
        (b'{"keys": ["s3://b"]}', "s3://bucket/key"),
        (b'{"keys": [7]}', "cannot be read"),
        (b'{"dataset": "s3://b/p", "racks": ["r1"], "nodes": ["n1"]}', "not both"),
        (b'{"dataset": "s3://b/p", "priority": "high"}', "cannot be read"),
        (b'{"dataset": "s3://b/p", "priority": 99999999}', "priority"),
        (b'{"dataset": "s3://b/p", "rack": ["r1"]}', "rack"),
        (b'{"dataset": "s3://b/p", "job": "' + b"x" * 200 + b'"}', "too long"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_a_reason(document: bytes, says: str) -> None:
    with pytest.raises(BadPrefetch, match=says):
        read_asked(document)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(BadPrefetch, match="at most"):
        read_asked(msgspec.json.encode({"keys": ["s3://b/k"] * 100_001}))


@pytest.mark.parametrize("value", [True, 1.5, "1", None, 10**9])
def test_a_priority_is_an_integer_of_bounded_size(value: object) -> None:
    with pytest.raises(BadPrefetch, match="priority"):
        check_priority(value)


def test_a_dataset_or_keys_are_understood() -> None:
    spec, priority = read_asked(
        b'{"dataset": "s3://b/p/q", "racks": ["r2"], "priority": -3, "job": "7"}'
    )
    assert (spec, priority) == (Spec("b", "p/q", (), ("r2",), (), "7"), -3)
    spec, priority = read_asked(b'{"keys": ["s3://b/k/l", "s3://c/m"]}')
    assert (spec.keys, priority) == ((("b", "k/l"), ("c", "m")), 0)


def test_racks_are_warmed_each_by_its_nodes_and_nodes_each_for_themselves() -> None:
    def among(spec: Spec, *, rack_aware: bool = True) -> list[list[str]]:
        found = targets(spec, MEMBERS, "r2", rack_aware=rack_aware)
        return [[each.id for each in group] for group in found]

    assert among(Spec("b", "", (), ("r1", "r2", "r9"), (), "")) == [["a", "b"], ["c", "d"]]
    assert among(Spec("b", "", (), (), ("a", "d"), "")) == [["a"], ["d"]]
    assert among(Spec("b", "", (), (), (), "")) == [["c", "d"]]
    assert among(Spec("b", "", (), ("r1",), (), ""), rack_aware=False) == [["a", "b", "c", "d"]]


def each_home(members: Sequence[Member], ref: object, number: int) -> Sequence[Member]:
    return homes(members, ref, number)  # type: ignore[arg-type]


@given(st.integers(1, 3000), st.integers(1, 4))
def test_every_chunk_goes_to_its_home_once_in_each_rack(size_bytes: int, nodes: int) -> None:
    found = Found("b", "k", "e", size_bytes, "main", "b")
    groups = [MEMBERS[:nodes], MEMBERS[2:]]

    shares = share_out(found, groups, each_home, chunk_bytes=10, small_bytes=7)

    count = 1 if size_bytes <= 7 else -(-size_bytes // 10)
    expected = sorted(
        (each_home(group, found.ref, number)[0].id, number)
        for group in groups
        for number in range(count)
    )
    given_out = [
        (who.id, first + place) for who, first, bits in shares for place in chunks_in(bits)
    ]
    assert sorted(given_out) == expected
    assert all(bits.bit_count() <= ITEM_CHUNKS for _, _, bits in shares)
    assert (
        sum(
            size_of(first, bits, size_bytes, chunk_bytes=10, small_bytes=7)
            for _, first, bits in shares
        )
        == 2 * size_bytes
    )


def test_a_share_of_an_object_can_be_shared_out_again() -> None:
    found = Found("b", "k", "e", 1000, "main", "b")

    shares = share_out(
        found, [MEMBERS[:1]], each_home, chunk_bytes=10, small_bytes=7, wanted=(3, 99, 100)
    )

    assert [(who.id, list(chunks_in(bits))) for who, _, bits in shares] == [("a", [3, 99])]
