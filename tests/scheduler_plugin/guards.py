"""Guards as the system sees them: processes that hold a lock."""

import contextlib
from pathlib import Path

import psutil

from tests.waiting import wait_until


def guards(lock: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(lock) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def the_guard(lock: Path) -> psutil.Process:
    """The one there is, once it is alone: whoever starts it is one, too, until it has forked."""
    wait_until(lambda: len(guards(lock)) == 1, "there is one guard, and not several")
    [guard] = guards(lock)
    return guard
