"""The folders that the daemon shares with the controller: rankings, put in place by rename, and the
requests that `PrologSlurmctld` drops.

They are for SlurmUser alone. Whatever else lies there is cleared away, or left, never followed.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_TEMPORARY = ".new-"
# More than a controller starts in the time between two looks; the rest has its turn at the next.
_MOST_REQUESTS = 10_000
_LONGEST_ID = 20
_UNFINISHED_SECONDS = 60.0


class FolderUnsafe(Exception):  # noqa: N818 - as the other internal errors
    """Others than its owner can see or change what is in the folder; the message says how."""


def prepare(folder: Path) -> None:
    """Makes a folder that is ours alone. FolderUnsafe, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FolderUnsafe(f"{folder}: not a folder")
    if found.st_uid not in (0, os.geteuid()):
        raise FolderUnsafe(f"{folder}: belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        # Names of files are names of datasets.
        raise FolderUnsafe(f"{folder}: others may look into it, or write to it; chmod 700")


class RankingFolder:
    """Rankings by file name. What has not changed is written again once half of the time is over
    for which it is good."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, tuple[int, int]] = {}

    def write(self, files: Mapping[str, bytes], *, expires: int, now: float) -> int:
        """Puts these in place and clears away all others; the number that were written. An OSError
        is raised after the rest was tried."""
        prepare(self._folder)
        problem: OSError | None = None
        written = 0
        for name, content in files.items():
            # The first line has the time in it, which is no news.
            news = hash(content.partition(b"\n")[2])
            before = self._written.get(name)
            if before is not None and before[0] == news and before[1] - now > (expires - now) / 2:
                continue
            try:
                self._put(name, content)
            except OSError as error:
                problem = error
                continue
            self._written[name] = (news, expires)
            written += 1
        for name in self._others(files):
            self._written.pop(name, None)
            try:
                _remove(self._folder / name)
            except OSError as error:
                problem = error
        if problem is not None:
            raise problem
        return written

    def _put(self, name: str, content: bytes) -> None:
        temporary = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            _write_whole(os.open(temporary, flags, 0o600), content)
            target = self._folder / name
            if not _is_plain_or_gone(target):
                _remove(target)
            temporary.rename(target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _others(self, files: Mapping[str, bytes]) -> Iterable[str]:
        return [each.name for each in self._folder.iterdir() if each.name not in files]


def take_requests(folder: Path) -> Iterator[int]:
    """The ids of the jobs that have just been given their nodes; each is told of once. Nothing is
    read: the name says it all."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(_MOST_REQUESTS), entries, strict=False)]
    except FileNotFoundError:
        return
    for name in names:
        known = name.isascii() and name.isdecimal() and len(name) <= _LONGEST_ID
        if name.startswith(".") and not _is_old(folder / name):
            # On its way there.
            continue
        with contextlib.suppress(FileNotFoundError):
            _remove(folder / name)
        if known:
            yield int(name)


def _write_whole(descriptor: int, content: bytes) -> None:
    """Writes it and closes the file. OSError, also where there is no room for all of it."""
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _is_old(path: Path) -> bool:
    """Whether whoever made it has been ended before it was done."""
    try:
        return time.time() - path.lstat().st_mtime > _UNFINISHED_SECONDS
    except FileNotFoundError:
        return False


def _is_plain_or_gone(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _remove(path: Path) -> None:
    """Removes what it is, a folder only if nothing is in it."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
