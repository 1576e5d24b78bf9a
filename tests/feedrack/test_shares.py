"""Ranks and workers together read every position once, and a loader can keep the order."""

from hypothesis import given
from hypothesis import strategies as st

from feedrack.shares import Share, blocks


@given(st.integers(0, 200), st.integers(1, 5), st.booleans())
def test_ranks_share_an_order_out(count: int, world_size: int, even: bool) -> None:
    order = list(range(count))
    shares = [Share(rank, world_size, even).of(order) for rank in range(world_size)]
    everything = sorted(index for share in shares for index in share)
    if even:
        assert len({len(share) for share in shares}) == 1
        assert everything == order[: count - count % world_size]
    else:
        assert everything == order


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 5))
def test_workers_asked_in_turn_give_the_order(count: int, batch_size: int, workers: int) -> None:
    order = list(range(count))
    waiting = [blocks(order, batch_size, worker, workers) for worker in range(workers)]
    found: list[int] = []
    turn = 0
    while block := next(waiting[turn % workers], None):
        found += block
        turn += 1
    assert found == order
