"""One at a time where that is said, and nobody left behind."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from gateway.tiers.origin_directory.locks import Locks

WAIT_SECONDS = 10


@pytest.fixture
def locks() -> Locks:
    return Locks()


def test_one_name_is_held_by_one(locks: Locks) -> None:
    total = 0

    def add(_: int) -> None:
        nonlocal total
        for _ in range(200):
            with locks.hold("a"):
                seen = total
                total = seen + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert total == 800


def test_another_name_is_free(locks: Locks) -> None:
    with locks.hold("a"), locks.hold("b"), locks.try_hold("a") as mine, locks.try_hold("c") as free:
        assert not mine
        assert free
    with locks.try_hold("a") as mine:
        assert mine


def test_a_name_is_let_go_on_an_error(locks: Locks) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold("a"):
        raise ZeroDivisionError
    with locks.try_hold("a") as mine:
        assert mine


def test_a_gate_closes_behind_the_last_to_leave(locks: Locks) -> None:
    inside, leave, closed = Event(), Event(), Event()

    def pass_through() -> None:
        with locks.share("b"):
            inside.set()
            assert leave.wait(WAIT_SECONDS)
            assert not closed.is_set()

    def close() -> None:
        with locks.close("b"):
            closed.set()

    def run(pool: ThreadPoolExecutor, work: Callable[[], None]) -> "Future[None]":
        return pool.submit(work)

    with ThreadPoolExecutor(3) as pool:
        first = run(pool, pass_through)
        assert inside.wait(WAIT_SECONDS)
        closing = run(pool, close)
        with locks.share("another"):
            leave.set()
        first.result(WAIT_SECONDS)
        closing.result(WAIT_SECONDS)
        assert closed.is_set()
    with locks.share("b"):
        assert locks._inside == {"b": 1}
    assert locks._inside == {}
    assert locks._held == set()
