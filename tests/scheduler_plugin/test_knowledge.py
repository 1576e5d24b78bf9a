"""What is known of datasets, out of what gateways say."""

import pytest

from scheduler_plugin.dataset import parse_dataset
from scheduler_plugin.knowledge import Holding, Losses, Places, live
from scheduler_plugin.ranking import Held
from scheduler_plugin.told import Counted, GatewayNode

A = parse_dataset("s3://train/a")
AB = parse_dataset("s3://train/a/b")
AC = parse_dataset("s3://train/a/c")
BUCKET = parse_dataset("s3://train")


def test_a_folder_is_the_sum_of_those_below_it() -> None:
    found = live(
        [
            Counted("s3://train/a/b/", {"n1": 1, "n2": 2}, ("demo", "vision")),
            Counted("s3://train/a/c/", {"n1": 10}, ("demo",)),
            Counted("s3://train/a/", {"n3": 100}, ("*",)),
        ]
    )
    assert found[AB].nodes == {"n1": 1, "n2": 2}
    assert found[A].nodes == found[BUCKET].nodes == {"n1": 11, "n2": 2, "n3": 100}
    # Whoever is told of all must be allowed each.
    assert found[A].readers == frozenset({"demo"})
    assert found[AC].readers == frozenset({"demo"})


def test_names_that_no_hint_can_hold_are_left_out() -> None:
    bad = ["s3://train/with blank/", "nonsense", "s3://train/\n/", "s3://T/x/"]
    assert live([Counted(name, {"n1": 1}) for name in bad]) == {}


def test_what_nodes_hold_comes_in_slurms_names() -> None:
    members = [
        GatewayNode("gw-a", "r1", "serving"),
        GatewayNode("gw-b", "r2", "serving"),
        GatewayNode("gw-c", "r2", "draining"),
    ]
    holding = Holding({"gw-a": 5, "gw-b": 6, "gw-c": 7, "gone": 8}, frozenset())
    places = Places.of(members, nodes={"gw-a": "n1"}, racks={"r1": "rack1"})
    held = places.held(holding, {"gw-b": 2.0})
    assert held == [Held("n1", "rack1", 5, 0.0), Held("gw-b", "r2", 6, 2.0)]


def test_what_goes_is_averaged_over_minutes() -> None:
    losses = Losses()
    size = 10_000
    for second in range(0, 600, 10):
        losses.observe({A: Holding({"n1": size - second * 10}, frozenset())}, float(second))
    assert 8.0 < losses.of(A)["n1"] < 10.0
    for second in range(600, 6000, 10):
        losses.observe({A: Holding({"n1": 4_000}, frozenset())}, float(second))
    assert losses.of(A) == {}


def test_what_comes_in_is_no_loss_and_what_is_gone_is_forgotten() -> None:
    losses = Losses()
    losses.observe({A: Holding({"n1": 1}, frozenset())}, 0.0)
    losses.observe({A: Holding({"n1": 1000}, frozenset())}, 10.0)
    assert losses.of(A) == {}
    losses.observe({A: Holding({}, frozenset())}, 20.0)
    assert losses.of(A)["n1"] > 0
    losses.observe({}, 30.0)
    assert losses.of(A) == {}


@pytest.mark.parametrize("meanwhile", [{}, {"n1": 0}, {"n1": 10}])
def test_what_was_away_for_a_moment_was_not_lost(meanwhile: dict[str, int]) -> None:
    """As all of it is when Redis was emptied, and much of it when a node counts anew."""
    losses = Losses()
    size = 10**9
    both = Holding({"n1": size, "n2": 5}, frozenset())
    for second, nodes in ((0, both.nodes), (15, {"n2": 5} | meanwhile), (30, both.nodes)):
        losses.observe({A: Holding(nodes, frozenset())}, float(second))
    [held] = Places({"n1": ("n1", "rack1")}).held(both, losses.of(A))
    assert held.expected_bytes(600.0) > 0.9 * size


def test_what_came_in_before_hides_no_loss() -> None:
    quiet, filled = Losses(), Losses()
    for losses, first in ((quiet, 10**9), (filled, 0)):
        sizes = (first, 10**9, 9 * 10**8, 8 * 10**8)
        for number, size in enumerate(sizes):
            losses.observe({A: Holding({"n1": size}, frozenset())}, 15.0 * number)
    assert quiet.of(A) == filled.of(A) != {}
