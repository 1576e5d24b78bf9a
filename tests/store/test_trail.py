"""A trail knows what all followers have passed, as counting them all each time would."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.trail import Trail

PIECES = 5
STEPS = st.lists(
    st.one_of(
        st.just(("enter", 0, 0)),
        st.tuples(st.just("move"), st.integers(0, 9), st.integers(1, PIECES)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@given(st.integers(0, 3), STEPS)
def test_passed_is_where_the_last_of_the_followers_stands(
    at_first: int, steps: list[tuple[str, int, int]]
) -> None:
    trail = Trail(PIECES, at_first)
    places = [0] * at_first
    for what, which, far in steps:
        before = trail.passed
        if what == "enter":
            trail.enter()
            places.append(0)
            grown = False
        elif not places:
            continue
        elif what == "move":
            which %= len(places)
            onto = min(PIECES, places[which] + far)
            grown = trail.move(places[which], onto)
            places[which] = onto
        else:
            grown = trail.leave(places.pop(which % len(places)))
        expected = min(places, default=PIECES)
        assert trail.passed == expected
        if what != "enter":
            assert grown is (expected > before)
