"""Supervisor and child hear each other, whole messages only, and each other's end."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from gateway.processes.control import (
    Asked,
    ChildEnd,
    ControlLost,
    Failed,
    Prepared,
    Ready,
    Start,
    SupervisorEnd,
)

START = Start(
    role="worker", number=3, generation=2, config={}, folder="/run", s3_url="http://x", heads=7
)


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorEnd, ChildEnd]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SupervisorEnd(ours), ChildEnd(theirs)


async def test_a_child_gets_its_start_and_then_its_orders(
    ends: tuple[SupervisorEnd, ChildEnd],
) -> None:
    supervisor, child = ends
    supervisor.start(START)
    # Given before the child looks for them.
    supervisor.order("reload")
    assert child.receive_start() == START
    heard: list[str] = []
    lost = asyncio.Event()
    child.open(on_order=heard.append, on_lost=lost.set)
    supervisor.order("drain")
    supervisor.close()
    await asyncio.wait_for(lost.wait(), 60)
    assert heard == ["reload", "drain"]
    child.tell(Ready())


def test_a_supervisor_hears_its_child_in_any_pieces() -> None:
    ours, theirs = socket.socketpair()
    supervisor, child = SupervisorEnd(ours), ChildEnd(theirs)
    ours.setblocking(False)
    assert supervisor.receive() == []
    child.tell(Prepared())
    child.tell(Asked("restart"))
    theirs.sendall(b'{"type":"Fai')
    assert supervisor.receive() == [Prepared(), Asked("restart")]
    theirs.sendall(b'led","reason":"why","status":2}\n')
    assert supervisor.receive() == [Failed("why", 2)]
    theirs.close()
    with pytest.raises(ControlLost):
        supervisor.receive()
    # To one that is gone nothing can be said, which is no error.
    supervisor.order("drain")
    supervisor.close()


def test_a_child_whose_supervisor_is_gone_before_it_says_anything_finds_out(
    ends: tuple[SupervisorEnd, ChildEnd],
) -> None:
    supervisor, child = ends
    supervisor.close()
    with pytest.raises(ControlLost):
        child.receive_start()
