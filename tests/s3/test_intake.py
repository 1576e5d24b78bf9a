"""A client is read from only when nobody has a reason against it any more."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.s3.intake import Intake, Reason

REASONS: list[Reason] = ["backlog", "kept", "tunnel"]


@pytest.fixture
async def transport() -> AsyncIterator[asyncio.ReadTransport]:
    ours, theirs = socket.socketpair()
    with theirs:
        wire, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        yield wire
        wire.close()
        await asyncio.sleep(0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(REASONS))))
async def test_it_is_read_exactly_while_there_is_no_reason(
    transport: asyncio.Transport, steps: list[tuple[bool, Reason]]
) -> None:
    intake = Intake(transport)
    held: set[Reason] = set()
    for pauses, reason in [*steps, *((False, reason) for reason in REASONS)]:
        if pauses:
            intake.pause(reason)
            held.add(reason)
        else:
            intake.resume(reason)
            held.discard(reason)
        assert transport.is_reading() == (not held)
