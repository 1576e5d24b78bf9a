"""A question put before something was written there is not its answer."""

import asyncio

import pytest

from gateway.errors import TierUnavailable
from gateway.tiers.packed.latest import Latest


async def test_a_question_under_way_when_it_is_doubted_is_put_again() -> None:
    asked: list[asyncio.Event] = []

    async def ask() -> None:
        asked.append(asyncio.Event())
        await asked[-1].wait()

    # A clock that stands still: not the time counts, but what came first.
    latest = Latest(ask, lambda: 5.0)
    waiting = asyncio.create_task(latest.since(1.0))
    while not asked:
        await asyncio.sleep(0)
    latest.doubt()
    asked[0].set()
    while len(asked) < 2:
        await asyncio.sleep(0)
    assert not waiting.done()
    asked[1].set()
    await waiting
    assert latest.at == 5.0
    latest.doubt()
    again = asyncio.create_task(latest.since(1.0))
    while len(asked) < 3:
        await asyncio.sleep(0)
    asked[2].set()
    await again


async def test_a_question_that_fails_is_not_put_again_and_again_for_nobody() -> None:
    clock = 5.0
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise TierUnavailable("nobody there")

    latest = Latest(ask, lambda: clock)
    for _ in range(5):
        latest.refresh()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert asked == 1
    # Who waits for the answer asks all the same.
    with pytest.raises(TierUnavailable):
        await latest.since(1.0)
    assert asked == 2
    clock += 2.0
    latest.refresh()
    await asyncio.sleep(0)
    assert asked == 3
