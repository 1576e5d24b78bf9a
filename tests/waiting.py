"""Waits for what is to come to be, as long as a slow machine may take for it.

All share one limit, which only what never comes to be reaches. `what` is the rest of a sentence for
whoever reads of the failure: "it never came to be that …".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

SECONDS = 60.0
_POLL_SECONDS = 0.005
_THREADS_POLL_SECONDS = 0.02


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Returns once the condition holds, which tasks of this loop bring about."""

    async def holds() -> object:
        return condition()

    await until_it(holds, what)


async def until_it(condition: Callable[[], Awaitable[object]], what: str = "") -> None:
    """As `until`, for a condition that is awaited, however long it takes."""
    deadline = time.monotonic() + SECONDS
    while not await condition():
        assert time.monotonic() < deadline, _never(what)
        await asyncio.sleep(_POLL_SECONDS)


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """As `until`, for what threads and processes bring about."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, _never(what)
        time.sleep(_THREADS_POLL_SECONDS)


def _never(what: str) -> str:
    return f"it never came to be that {what}" if what else "it never came to be"
