"""The file descriptor of a device's completion channel, which pyverbs tells from 59 on only:
before, it is the one event channel that is open now and was not a moment ago.

A device that is opened has an event channel too (of its ports), and one that is closed may leave
its number to the next. So all that open and close here take turns; and where somebody else in this
process, such as a library of collectives, was at it in that moment, it is tried again.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.rdma.device import RdmaUnavailable

_ATTEMPTS = 20


class Turn:
    """Whose turn it is to open or close. A thread that has it may take it again: a device that
    nobody holds any more is closed wherever that is noticed."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a child, where a thread of its parent's may hold the lock for ever."""
        self.lock = threading.RLock()


turn = Turn()
os.register_at_fork(after_in_child=turn.renew)


def open_channel(make: Callable[[], Any]) -> tuple[Any, int]:
    """What `make` makes, and its descriptor. RdmaUnavailable where that cannot be told."""
    for _ in range(_ATTEMPTS):
        with turn.lock:
            before = event_descriptors()
            channel = make()
            told = getattr(channel, "fd", None)
            if told is not None:
                return channel, int(told)
            fresh = event_descriptors() - before
        if len(fresh) == 1:
            return channel, fresh.pop()
        channel.close()
    raise RdmaUnavailable("the completion channel's descriptor cannot be told from others'")


def event_descriptors() -> set[int]:
    """The open descriptors that are event channels of devices."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            if "infinibandevent" in str(each.readlink()):
                found.add(int(each.name))
        except OSError:
            continue
    return found
