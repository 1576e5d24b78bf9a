"""What is being made: nameless to others until one rename puts it in its place.

Whatever is written anew begins in the hidden folder `tmp`, under a name that says whose it is
(host, process, the process's start), so that what a crash left is cleaned at the next start, and
what a living process is at work on, here or on another host, is not.
"""

import functools
import itertools
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.paths import STATE_NAME

DRAFTS = (STATE_NAME, "tmp")

# Drafts of other hosts: nobody can tell whether their writer lives, but no upload rests this long.
_FOREIGN_AGE_SECONDS = 24 * 3600

_NAME = re.compile(r"(?P<host>.+)\.(?P<pid>\d+)\.(?P<start>\d+)\.\d+")
_numbers = itertools.count()


def write_whole(base: Folder, names: tuple[str, ...], raw: bytes) -> None:
    """Writes the small file at `names` below `base` durably and all at once, with the folders on
    the way; of two writers at a time the last wins."""
    with base.make(*DRAFTS) as drafts, base.make(*names[:-1]) as folder:
        draft = draft_name()
        fd = drafts.create(draft)
        try:
            view = memoryview(raw)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
            drafts.rename(draft, folder, names[-1])
        except BaseException:
            drafts.unlink(draft)
            raise
        finally:
            os.close(fd)
        folder.sync()


def draft_name() -> str:
    """A name for a new entry in `DRAFTS` that no other process will choose."""
    return f"{_HOST}.{os.getpid()}.{_own_start(os.getpid())}.{next(_numbers)}"


def clean_drafts(base: Folder, now_seconds: float, forget: Callable[[os.stat_result], None]) -> int:
    """Removes the drafts that nobody will finish; says how many. `forget` is told of each first,
    so that what is kept beside it goes too."""
    removed = 0
    try:
        folder = base.enter(*DRAFTS)
    except ABSENT:
        return 0
    with folder:
        for name, _ in folder.scan():
            status = folder.stat(name)
            if status is not None and is_abandoned(name, now_seconds - status.st_mtime):
                forget(status)
                folder.remove_tree(name)
                removed += 1
    return removed


def is_abandoned(name: str, age_seconds: float) -> bool:
    """Whether the writer of a draft of this name is gone."""
    match = _NAME.fullmatch(name)
    if match is None or match["host"] != _HOST:
        return age_seconds > _FOREIGN_AGE_SECONDS
    return _process_start(int(match["pid"])) != int(match["start"])


@functools.cache
def _own_start(pid: int) -> int:
    return _process_start(pid)


def _process_start(pid: int) -> int:
    """When a process of this host began, in clock ticks since boot; -1 where there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return -1
    # proc(5): the second field may hold anything but ends with the last parenthesis.
    return int(line.rpartition(")")[2].split()[19])


# Process numbers mean something within one PID namespace only: containers may share a host name.
_HOST = f"{socket.gethostname().replace('/', '-')}-{Path('/proc/self/ns/pid').stat().st_ino}"
