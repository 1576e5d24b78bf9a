"""The file descriptor of a device's completion channel, which pyverbs tells from 59 on only:
before, it is the one event channel that is open now and was not a moment ago."""

import os
import threading
from pathlib import Path
from typing import Any

from gateway.rdma.device import RdmaUnavailable


class Finding:
    """One after the other: a new channel's descriptor is told by its being new."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a child, where a thread of its parent's may hold the lock for ever."""
        self.lock = threading.Lock()


finding = Finding()
os.register_at_fork(after_in_child=finding.renew)


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


def descriptor_of(channel: Any, before: set[int]) -> int:
    """A channel's descriptor, which pyverbs tells from 59 on only."""
    told = getattr(channel, "fd", None)
    if told is not None:
        return int(told)
    fresh = event_descriptors() - before
    if len(fresh) != 1:
        raise RdmaUnavailable(f"{len(fresh)} descriptors may be the completion channel's")
    return fresh.pop()
