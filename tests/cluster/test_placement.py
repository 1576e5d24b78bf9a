"""Homes: each has its share by capacity, and only shares move."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.members import Member, Members
from gateway.cluster.placement import Placement, homes
from gateway.model.objects import ObjectRef

KEYS = [ObjectRef("main", "train", f"epoch/{n}") for n in range(300)]


def member(id_: str, *, rack: str = "r1", capacity: int = 100, state: str = "serving") -> Member:
    return Member(
        id=id_,
        incarnation="1",
        rack=rack,
        zone="z1",
        peers="127.0.0.1:1",
        s3="",
        admin="",
        capacity_bytes=capacity,
        version="0",
        state=state,  # type: ignore[arg-type]
    )


ids = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


@given(ids, st.data())
def test_a_member_that_joins_takes_over_only_what_is_its_own(
    names: list[str], data: st.DataObject
) -> None:
    members = [member(name) for name in names]
    new = member("the new one", capacity=data.draw(st.integers(1, 1000)))
    for ref in KEYS[:40]:
        before = homes(members, ref, 3)[0]
        after = homes([*members, new], ref, 3)[0]
        assert after in (before, new)


@given(ids, st.data())
def test_what_a_member_leaves_goes_to_who_came_next(names: list[str], data: st.DataObject) -> None:
    members = [member(name) for name in names]
    gone = data.draw(st.sampled_from(members))
    rest = [each for each in members if each != gone]
    for ref in KEYS[:40]:
        order = homes(members, ref, 0, count=len(members))
        order.remove(gone)
        assert homes(rest, ref, 0, count=len(rest)) == order


@given(ids, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(names: list[str], random: object) -> None:
    members = [member(name) for name in names]
    turned = list(reversed(members))
    for ref in KEYS[:20]:
        assert homes(members, ref, 1, count=8) == homes(turned, ref, 1, count=8)
        assert homes(members, ref, 1) == homes(turned, ref, 1, count=8)[:1]


def test_shares_are_as_the_capacities_are() -> None:
    weights = {"a": 100, "b": 200, "c": 300, "d": 400}
    members = [member(id_, capacity=capacity) for id_, capacity in weights.items()]
    found = Counter(
        homes(members, ObjectRef("main", "train", f"{n}"), n % 7)[0].id for n in range(40_000)
    )
    for id_, capacity in weights.items():
        assert abs(found[id_] / 40_000 - capacity / 1000) < 0.015


def test_chunks_of_one_object_are_spread_and_versions_of_a_key_are_not() -> None:
    members = [member(f"n{n}") for n in range(6)]
    ref = KEYS[0]
    assert len({homes(members, ref, number)[0].id for number in range(100)}) == 6
    other = ObjectRef("main", "train", ref.key, "v7")
    assert homes(members, ref, 0) == homes(members, other, 0)


def test_names_that_look_alike_when_joined_are_told_apart() -> None:
    members = [member(f"n{n}") for n in range(50)]
    pairs = [
        (ObjectRef("main", f"b{n}", "c/k"), ObjectRef("main", f"b{n}c", "/k")) for n in range(40)
    ]
    assert any(homes(members, one, 0) != homes(members, two, 0) for one, two in pairs)


def test_a_rack_has_a_home_of_its_own_and_the_best_of_all_is_one_of_them() -> None:
    members = Members("a1")
    members.set([member(f"{rack}{n}", rack=rack) for rack in "abc" for n in (1, 2)])
    placement = Placement(members)
    for ref in KEYS:
        rack_homes = [placement.home_in(rack, ref, 0) for rack in "abc"]
        assert placement.first_home(ref, 0) in rack_homes
        assert placement.rack_home(ref, 0) == rack_homes[0]
        assert placement.is_home(ref, 0) == (rack_homes[0] == members.get("a1"))


def test_without_racks_there_is_one_home() -> None:
    members = Members("a1")
    members.set([member(f"{rack}{n}", rack=rack) for rack in "abc" for n in (1, 2)])
    placement = Placement(members, rack_aware=False)
    assert all(placement.rack_home(ref, 0) == placement.first_home(ref, 0) for ref in KEYS)


def test_who_is_about_to_leave_is_nobodys_home() -> None:
    members = Members("a1")
    members.set([member("a1"), member("a2", state="draining")])
    placement = Placement(members)
    assert all(placement.is_home(ref, 0) for ref in KEYS)
    members.set([member("a1", state="draining"), member("a2")])
    assert not any(placement.is_home(ref, 0) for ref in KEYS)


def test_a_node_that_is_no_member_has_all_at_home() -> None:
    placement = Placement(Members("a1"))
    assert placement.is_home(KEYS[0], 0)
    assert placement.first_home(KEYS[0], 0) is None
