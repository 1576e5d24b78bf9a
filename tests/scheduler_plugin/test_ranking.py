"""Which places come first, and why."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.ranking import (
    COMMON_FEATURE,
    MOST_NODES,
    MOST_RACKS,
    Held,
    Layout,
    common_feature,
    rank,
)
from scheduler_plugin.slurm.model import Host

GIB = 1024**3


def host(name: str, rack: str, **how: object) -> Host:
    known: dict[str, object] = {"features": frozenset({name, rack}), "partitions": ("main",)}
    return Host(name, **(known | how))  # type: ignore[arg-type]


HOSTS = [host("n1", "rack1"), host("n2", "rack1"), host("n3", "rack2"), host("n4", "rack2")]


def features(held: Sequence[Held], hosts: Sequence[Host] = HOSTS, at: str = "main") -> list[str]:
    return [each.feature for each in rank(held, Layout.of(hosts)).places.get(at, ())]


def test_the_node_that_holds_it_then_its_rack() -> None:
    assert features([Held("n4", "rack2", GIB)]) == ["n4", "rack2"]


def test_more_is_better() -> None:
    held = [Held("n4", "rack2", 2 * GIB), Held("n1", "rack1", GIB)]
    assert features(held) == ["n4", "rack2", "rack1"]


def test_equals_go_by_name_and_all_nodes_before_all_racks() -> None:
    held = [Held("n4", "rack2", GIB), Held("n1", "rack1", GIB)]
    assert features(held) == ["n1", "n4", "rack1", "rack2"]


def test_a_node_that_holds_little_is_not_put_before_the_rack_that_holds_much() -> None:
    held = [Held("n1", "rack1", GIB // 2), Held("gateway", "rack2", GIB)]
    assert features(held) == ["rack2", "rack1"]


def test_a_rack_counts_what_its_nodes_hold_together() -> None:
    held = [Held("n1", "rack1", GIB), Held("n3", "rack2", GIB), Held("n4", "rack2", GIB)]
    assert features(held) == ["n3", "n4", "rack2", "rack1"]


def even_rack(count: int, **how: object) -> tuple[list[Host], list[Held]]:
    hosts = [host(f"m{number:02}", "rack3", **how) for number in range(count)]
    return hosts, [Held(each.name, "rack3", GIB) for each in hosts]


def test_nodes_of_a_large_rack_that_hold_even_shares_are_not_named() -> None:
    hosts, held = even_rack(16)
    assert features(held, hosts) == ["rack3"]
    # An idle one is no better for that.
    assert features(held, [*hosts[1:], host("m00", "rack3", load=1.0)]) == ["rack3"]
    assert features([*held, Held("m07", "rack3", 10 * GIB)], hosts) == ["m07", "rack3"]
    hosts, held = even_rack(4)
    assert features(held, hosts) == ["m00", "m01", "m02", "m03", "rack3"]


def test_crumbs_are_not_named() -> None:
    held = [Held("n4", "rack2", 100 * GIB), Held("n1", "rack1", GIB)]
    assert features(held) == ["n4", "rack2"]


def test_what_is_being_evicted_counts_as_it_will_be() -> None:
    held = [Held("n4", "rack2", 10 * GIB, lost_per_second=GIB), Held("n1", "rack1", GIB)]
    assert features(held) == ["n1", "rack1"]
    slowly = [Held("n4", "rack2", 10 * GIB, lost_per_second=1.0), Held("n1", "rack1", GIB)]
    assert features(slowly)[0] == "n4"


def test_of_two_as_good_the_idle_one_comes_first() -> None:
    hosts = [*HOSTS[:2], host("n3", "rack2", load=1.0), HOSTS[3]]
    assert features([Held("n3", "rack2", GIB), Held("n4", "rack2", GIB)], hosts)[:2] == ["n4", "n3"]


def test_a_busy_holder_still_comes_before_its_idle_rack() -> None:
    hosts = [*HOSTS[:3], host("n4", "rack2", load=1.0)]
    assert features([Held("n4", "rack2", GIB)], hosts) == ["n4", "rack2"]


def test_hosts_that_start_nothing_are_not_named() -> None:
    hosts = [*HOSTS[:3], host("n4", "rack2", usable=False)]
    ranking = rank([Held("n4", "rack2", GIB)], Layout.of(hosts))
    assert [(each.feature, each.hosts) for each in ranking.places["main"]] == [("rack2", 1)]


def test_a_host_without_its_name_as_a_feature_counts_for_its_rack() -> None:
    hosts = [*HOSTS[:3], host("n4", "rack2", features=frozenset({"rack2"}))]
    assert features([Held("n4", "rack2", GIB)], hosts) == ["rack2"]


def test_places_are_by_partition() -> None:
    hosts = [*HOSTS[:3], host("n4", "rack2", partitions=("other",))]
    ranking = rank([Held("n4", "rack2", GIB)], Layout.of(hosts))
    found = {name: [each.feature for each in places] for name, places in ranking.places.items()}
    assert found == {"main": ["rack2"], "other": ["n4", "rack2"], "*": ["n4", "rack2"]}
    assert [each.hosts for each in ranking.places["*"]] == [1, 2]


def test_nothing_held_is_no_ranking() -> None:
    assert rank([], Layout.of(HOSTS)).empty
    assert rank([Held("n4", "rack2", 0)], Layout.of(HOSTS)).empty
    assert rank([Held("n9", "rack9", GIB)], Layout.of(HOSTS)).empty
    assert rank([Held("n4", "rack2", GIB)], Layout.of([])).empty


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([{"a", "b"}, {"b", "c"}], "b"),
        ([{"a"}, {"b"}], ""),
        ([{"z", "a", COMMON_FEATURE}, {"a", COMMON_FEATURE}], COMMON_FEATURE),
        ([], ""),
    ],
)
def test_the_common_feature_is_of_all_hosts(sets: list[set[str]], expected: str) -> None:
    hosts = [Host(f"n{number}", frozenset(names), ()) for number, names in enumerate(sets)]
    assert common_feature(hosts) == expected


def test_a_host_that_is_down_must_have_it_too() -> None:
    hosts = [Host("n1", frozenset({"a"}), ()), Host("n2", frozenset(), (), usable=False)]
    assert common_feature(hosts) == ""


NAMES = [f"n{number}" for number in range(8)]
ANY_HOSTS = st.lists(
    st.builds(
        Host,
        st.sampled_from(NAMES),
        st.frozensets(st.sampled_from([*NAMES, "rack1", "rack2", "rack3"]), max_size=4),
        st.lists(st.sampled_from(["main", "other"]), unique=True).map(tuple),
        cpus=st.integers(1, 8),
        load=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
        usable=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)
ANY_HELD = st.lists(
    st.builds(
        Held,
        st.sampled_from([*NAMES, "elsewhere"]),
        st.sampled_from(["rack1", "rack2", "rack9"]),
        st.integers(0, 2**50),
        st.sampled_from([0.0, 1.0, 1024.0]),
    ),
    max_size=10,
)


@given(hosts=ANY_HOSTS, held=ANY_HELD)
def test_whatever_the_facts_places_can_be_had_and_are_in_order(
    hosts: list[Host], held: list[Held]
) -> None:
    ranking = rank(held, Layout.of(hosts))
    assert ranking == rank(list(reversed(held)), Layout.of(list(reversed(hosts))))
    for partition, places in ranking.places.items():
        there = [each for each in hosts if each.usable and (partition in {"*", *each.partitions})]
        for place in places:
            count = sum(place.feature in each.features for each in there)
            assert count >= place.hosts >= 1
            assert place.saved_bytes > 0
        racks = {each.rack for each in held}
        for kind in (
            [each for each in places if each.feature not in racks],
            [each for each in places if each.feature in racks],
        ):
            saved = [each.saved_bytes for each in kind]
            assert saved == sorted(saved, reverse=True)
        assert len(places) <= MOST_NODES + MOST_RACKS
        assert len({each.feature for each in places}) == len(places)


def test_a_place_is_as_busy_as_its_usable_hosts_are_on_the_whole() -> None:
    layout = Layout.of(
        [
            Host("n1", frozenset({"n1", "rack1"}), ("main",), load=1.0),
            Host("n2", frozenset({"n2", "rack1"}), ("main",), load=0.5),
            Host("n3", frozenset({"n3", "rack1"}), ("main",), load=0.0, usable=False),
        ]
    )
    assert layout.load("main", "rack1") == 0.75
    assert layout.load("*", "n2") == 0.5
    assert (layout.load("main", "n3"), layout.load("other", "n1")) == (0.0, 0.0)
