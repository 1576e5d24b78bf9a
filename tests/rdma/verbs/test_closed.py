"""A device that was closed refuses; it does not take the process with it."""

import mmap
import os
from collections.abc import Callable

import pytest

from gateway.rdma.device import Device, VerbFailed
from gateway.rdma.verbs import open_device

MEMORY = mmap.mmap(-1, 4096)
ASKED: dict[str, Callable[[Device], object]] = {
    "register": lambda device: device.register(memoryview(MEMORY), remote=True),
    "pair": lambda device: device.pair(depth=1, remote=True),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_closed_device_refuses(asked: str) -> None:
    """Threads share a client, and one of them closes it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            device = open_device()
            device.close()
            ASKED[asked](device)
        except VerbFailed:
            status = 0
        finally:
            os._exit(status)
    # A signal is a negative status: -11 is a segmentation fault.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_pair_may_be_failed() -> None:
    """Which is safe in any state."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pair = open_device().pair(depth=1, remote=True)
            pair.close()
            pair.fail()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
