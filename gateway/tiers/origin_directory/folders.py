"""Folders by file descriptor: the only way the directory origin reaches a file.

Every step from the root names one entry and refuses symbolic links (`O_NOFOLLOW`), so neither a
link nor a folder swapped for one in the middle of an operation leads out of the root, and a path
may be longer than PATH_MAX.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.errors import AccessDenied

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RENAME_EXCHANGE = 2

ABSENT = (FileNotFoundError, NotADirectoryError)


class Folder:
    """An open folder. Close it, or use it as a context manager."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """The folder at a trusted path; links in it are followed."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of it; safe twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def enter(self, *names: str) -> "Folder":
        """A folder further down. FileNotFoundError, NotADirectoryError (a link is one too)."""
        fd = os.open(".", _FOLDER, dir_fd=self.fd)
        for name in names:
            try:
                inner = os.open(name, _FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return Folder(fd)

    def make(self, *names: str) -> "Folder":
        """As `enter`, and creates what is missing, durably."""
        folder = self.enter()
        for name in names:
            with folder:
                folder = folder.enter_or_make(name)
        return folder

    def enter_or_make(self, name: str) -> "Folder":
        """One step of `make`."""
        try:
            return self.enter(name)
        except FileNotFoundError:
            try:
                os.mkdir(name, dir_fd=self.fd)
            except FileExistsError:
                return self.enter(name)
        self.sync()
        return self.enter(name)

    def stat(self, name: str) -> os.stat_result | None:
        """What is there under `name` itself (a link is not followed), or None."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except ABSENT:
            return None

    def status(self) -> os.stat_result:
        """The folder's own."""
        return os.fstat(self.fd)

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A descriptor of a file for as long as the block runs."""
        fd = self.open(name)
        try:
            yield fd
        finally:
            os.close(fd)

    def open(self, name: str) -> int:
        """A descriptor to read from. Never waits for a pipe's other end."""
        try:
            return os.open(name, _READ, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise AccessDenied("A symbolic link is not followed.") from error
            raise

    def read(self, name: str) -> bytes | None:
        """All bytes of a small file, or None where there is none."""
        try:
            with self.reading(name) as fd:
                return os.read(fd, os.fstat(fd).st_size + 1)
        except ABSENT:
            return None

    def create(self, name: str) -> int:
        """A descriptor of a new file to write to; others may read it as the umask says."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o666, dir_fd=self.fd)

    def scan(self) -> list[tuple[str, int]]:
        """Every entry's name and its `stat.S_IF*` kind, in no order; not atomic, as readdir is."""
        return list(self.entries())

    def entries(self) -> Iterator[tuple[str, int]]:
        """As `scan`, one after the other, for folders that may hold millions."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name, _kind(entry)
        finally:
            os.close(fd)

    def rename(self, name: str, target: "Folder", target_name: str) -> None:
        """Moves an entry, replacing what may be replaced."""
        os.rename(name, target_name, src_dir_fd=self.fd, dst_dir_fd=target.fd)

    def unlink(self, name: str) -> bool:
        """Removes a file; says whether there was one."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, name: str) -> bool:
        """Removes an empty folder; says whether it is gone."""
        try:
            os.rmdir(name, dir_fd=self.fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                return False
            raise
        return True

    def remove_tree(self, name: str) -> None:
        """Removes an entry with all below it; links are removed, not followed."""
        try:
            with self.enter(name) as inner:
                for entry, _ in inner.scan():
                    inner.remove_tree(entry)
        except NotADirectoryError:
            self.unlink(name)
        except FileNotFoundError:
            return
        else:
            self.remove_folder(name)

    def sync(self) -> None:
        """Makes the names in this folder durable (where the file system syncs folders at all)."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def exchange(one: Folder, name: str, other: Folder, other_name: str) -> bool:
    """Swaps two entries in one instant; False where the file system or libc cannot (NFS)."""
    if _renameat2 is None:
        return False
    if _renameat2(one.fd, os.fsencode(name), other.fd, os.fsencode(other_name), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM):
            return False
        raise OSError(number, os.strerror(number), name)
    return True


def _kind(entry: "os.DirEntry[str]") -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def _find_renameat2() -> "ctypes._NamedFuncPointer | None":
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint,
        )
    return function


_renameat2 = _find_renameat2()
