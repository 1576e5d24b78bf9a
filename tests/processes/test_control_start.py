"""Supervisor and child hear each other, and a child that does not listen holds nobody up."""

import socket

from gateway.processes.control import ChildEnd, Start, SupervisorEnd


def _start(size_bytes: int) -> Start:
    return Start(
        role="worker",
        number=1,
        generation=1,
        config={"large": "x" * size_bytes},
        folder="/nowhere",
        s3_url="http://nowhere",
        heads=0,
    )


def test_a_first_message_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert SupervisorEnd(ours).start(_start(1000))
        assert ChildEnd(theirs).receive_start() == _start(1000)


def test_a_child_that_does_not_read_its_first_message_is_waited_for_a_while_only() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        supervisor = SupervisorEnd(ours)
        assert not supervisor.start(_start(50_000_000), timeout_seconds=0.05)
        assert supervisor.receive() == []


def test_a_child_that_died_at_once_takes_no_message() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert not SupervisorEnd(ours).start(_start(10))
