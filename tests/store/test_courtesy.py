"""A prefetch keeps out of the way of reads, and still comes to an end."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.courtesy import (
    GAP_SECONDS,
    LONGEST_REST_SECONDS,
    LONGEST_WAIT_SECONDS,
    QUIET_SECONDS,
    Courtesy,
)


class Node:
    """A clock, and reads that wait."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.waiting = 0
        self.courtesy = Courtesy(lambda: self.waiting, now=lambda: self.seconds)


def test_with_nobody_reading_nothing_is_held_up() -> None:
    node = Node()

    assert node.courtesy.may_begin()
    assert node.courtesy.may_begin()
    assert node.courtesy.rest_seconds(0.0, 0.0) == 0


def test_nothing_begins_while_a_read_waits_or_lately_did() -> None:
    node = Node()
    node.waiting = 1
    assert not node.courtesy.may_begin()
    node.waiting = 0
    node.seconds += QUIET_SECONDS / 2
    assert not node.courtesy.may_begin()
    node.seconds += QUIET_SECONDS
    assert node.courtesy.may_begin()


def test_what_is_on_its_way_rests_while_a_read_waits() -> None:
    node = Node()
    node.waiting = 1

    assert node.courtesy.rest_seconds(0.0, 0.0) > 0
    node.waiting = 0
    assert node.courtesy.rest_seconds(0.0, 0.05) == 0


def test_while_reads_are_answered_pieces_keep_their_distance_over_the_whole_node() -> None:
    node = Node()
    pieces = 0
    for _ in range(1000):
        node.seconds += 0.01
        node.courtesy.read()
        # Several are on their way; each would go on if it might.
        pieces += sum(node.courtesy.rest_seconds(0.0, 0.0) == 0 for _ in range(4))

    assert 10 / GAP_SECONDS - 2 <= pieces <= 10 / GAP_SECONDS + 1


def test_the_busier_the_event_loop_the_longer_the_rest() -> None:
    node = Node()
    node.courtesy.read()
    assert node.courtesy.rest_seconds(0.0, 0.0) == 0
    node.seconds += GAP_SECONDS
    node.courtesy.read()

    assert node.courtesy.rest_seconds(0.02, 0.0) > 0
    assert node.courtesy.rest_seconds(0.0, 0.0) == 0


def test_once_nobody_reads_any_more_nothing_is_held_up() -> None:
    node = Node()
    node.courtesy.read()
    node.courtesy.rest_seconds(0.0, 0.0)
    assert node.courtesy.rest_seconds(0.0, 0.0) > 0

    node.seconds += QUIET_SECONDS

    assert node.courtesy.rest_seconds(0.0, 0.0) == 0
    assert node.courtesy.may_begin()


def test_on_a_node_that_always_reads_a_prefetch_still_begins_now_and_then() -> None:
    node = Node()
    node.waiting = 5
    begun = 0
    for _ in range(1000):
        node.seconds += 0.1
        begun += node.courtesy.may_begin()

    assert 100 / LONGEST_WAIT_SECONDS - 2 <= begun <= 100 / LONGEST_WAIT_SECONDS


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3), st.booleans()), max_size=50))
def test_every_rest_ends(steps: list[tuple[float, int, bool]]) -> None:
    node = Node()
    for seconds, waiting, reads in steps:
        node.seconds += seconds
        node.waiting = waiting
        if reads:
            node.courtesy.read()
        rested, turns = 0.0, 0
        while (rest := node.courtesy.rest_seconds(0.5, rested)) > 0:
            node.seconds += rest
            rested += rest
            turns += 1
            assert turns < 200
        assert rested <= LONGEST_REST_SECONDS
