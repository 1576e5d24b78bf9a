"""Guards as the system sees them: processes that hold a lock."""

import contextlib
from pathlib import Path

import psutil


def guards(lock: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(lock) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
