"""A bucket that is a folder, as a gateway's directory origin has it, of files that others put.

Keys are relative paths. Files that a gateway wrote may carry metadata that only it can read, so a
folder with such files is refused (docs/pack-format.md, "On a directory").
"""

import errno
import fcntl
import mimetypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from packer.stores.protocol import (
    ConditionFailed,
    Deletion,
    Got,
    Listed,
    ObjectMissing,
    ObjectUnreadable,
    StoreError,
)

_OURS = ".feedrack~"
_ATTRIBUTE = "user.feedrack"
_DEFAULT_TYPE = "binary/octet-stream"
_GATEWAY = "was written through a gateway, which alone can read it: pack through the gateway"


class DirectoryStore:
    """A folder as a bucket. Writes are hidden files, synced and renamed."""

    is_gateway = False
    bypassed = False

    def __init__(self, root: Path, bucket: str) -> None:
        self.bucket = bucket
        self._root = root / bucket
        self._requests = 0
        if bucket in ("", ".", "..") or "/" in bucket or not self._root.is_dir():
            raise StoreError(f"no bucket {bucket} in {root}", 404)

    @property
    def requests(self) -> int:
        return self._requests

    def close(self) -> None:
        """Nothing is kept open."""

    def seconds(self) -> float:
        return time.time()

    def listing(self, prefix: str) -> Iterator[Listed]:
        yield from self._below(self._root, "", prefix)

    def get(self, key: str, etag: str | None = None) -> Got:
        self._requests += 1
        with self.open(key, etag) as file:
            before = os.fstat(file.fileno())
            data = file.read()
            # A file that is written in place has no version of its own: two looks must agree.
            after = os.fstat(file.fileno())
        if etag_of(before) != etag_of(after) or len(data) != after.st_size:
            raise ConditionFailed(f"{key} was written while it was read", 412)
        return Got(data, etag_of(after), {"content-type": content_type(key)})

    def read(self, key: str, offset: int, size_bytes: int) -> bytes:
        self._requests += 1
        with self.open(key) as file:
            data = os.pread(file.fileno(), size_bytes, offset)
        if len(data) != size_bytes:
            raise StoreError(f"{key}: {size_bytes} bytes from {offset} are not there")
        return data

    def open(self, key: str, etag: str | None = None) -> BinaryIO:
        try:
            file = self._path(key).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectMissing(f"no object {key}", 404) from error
        except PermissionError as error:
            raise ObjectUnreadable(f"{key}: {error}", 403) from error
        status = os.fstat(file.fileno())
        if etag is not None and etag_of(status) != etag:
            file.close()
            raise ConditionFailed(f"{key} is not that version", 412)
        return file

    def head(self, key: str) -> Listed:
        self._requests += 1
        try:
            status = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissing(f"no object {key}", 404) from error
        return msgspec.structs.replace(
            listed(key, status), headers={"content-type": content_type(key)}
        )

    def put(
        self,
        key: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        self._requests += 1
        _refuse_metadata(key, headers)
        path = self._path(key)
        with self._scratch(path) as scratch:
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if if_absent:
                _link(key, scratch, path)
            elif if_match is not None:
                self._replace_if(key, path, scratch, if_match)
            else:
                scratch.replace(path)
            status = path.stat()
        _sync_folder(path.parent)
        return etag_of(status)

    def put_file(
        self,
        key: str,
        path: Path,
        sent: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        self._requests += 1
        _refuse_metadata(key, headers)
        target = self._path(key)
        with self._scratch(target) as scratch:
            with path.open("rb") as source, scratch.open("wb") as file:
                left_bytes = path.stat().st_size
                while left_bytes:
                    moved = os.sendfile(file.fileno(), source.fileno(), None, 16 * 1024**2)
                    if not moved:
                        raise StoreError(f"{path} was cut short")
                    left_bytes -= moved
                    sent(moved)
                os.fsync(file.fileno())
            if if_absent:
                _link(key, scratch, target)
            else:
                scratch.replace(target)
        _sync_folder(target.parent)

    def delete(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        failed: list[tuple[str, StoreError]] = []
        for item in objects:
            self._requests += 1
            path = self._path(item.key)
            try:
                if item.etag is not None and etag_of(path.stat()) != item.etag:
                    failed.append((item.key, ConditionFailed(f"{item.key} has changed", 412)))
                    continue
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failed.append((item.key, StoreError(f"{item.key}: {error}")))
                continue
            with suppress(OSError):
                for folder in path.relative_to(self._root).parents:
                    if folder != Path():
                        (self._root / folder).rmdir()
        return failed

    def tags(self, key: str) -> tuple[tuple[str, str], ...]:  # noqa: ARG002 - files have none
        return ()

    def conditional_deletes(self, key: str) -> bool:  # noqa: ARG002 - other stores try it there
        # A look and an unlink: others can come between.
        return False

    def clean_uploads(self, prefix: str) -> None:
        """Nothing to clean: uploads to a directory have no parts."""

    def _below(self, folder: Path, before: str, prefix: str) -> Iterator[Listed]:
        try:
            with os.scandir(folder) as entries:
                # A folder sorts as its name with a slash: so keys come in the order of bytes.
                found = sorted(
                    (os.fsencode(entry.name) + b"/" * entry.is_dir(follow_symlinks=False), entry)
                    for entry in entries
                    if not entry.is_symlink()
                )
        except FileNotFoundError:
            return
        for name, entry in found:
            if name.startswith(b".feedrack~") and not name.startswith(b".feedrack~packer"):
                if name.rstrip(b"/") == b".feedrack~state":
                    continue
                raise StoreError(f"{before}{entry.name} {_GATEWAY}")
            try:
                key = before + name.decode()
            except UnicodeDecodeError as error:
                raise StoreError(f"{folder}: a name that is not UTF-8: {name!r}") from error
            if name.startswith(b".feedrack~packer"):
                continue
            if name.endswith(b"/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._below(folder / entry.name, key, prefix)
            elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    if key.startswith(".feedrack/"):
                        yield listed(key, entry.stat())
                        continue
                    if _written_by_gateway(folder / entry.name):
                        raise StoreError(f"{key} {_GATEWAY}")
                    yield listed(key, entry.stat())

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(
            part in ("", ".", "..") or part.startswith(_OURS) or "\0" in part or len(part) > 255
            for part in parts
        ):
            raise StoreError(f"a directory has no place for the key {key!r}")
        return self._root.joinpath(*parts)

    @contextmanager
    def _scratch(self, path: Path) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.parent / f"{_OURS}packer-{os.getpid()}-{time.monotonic_ns()}"
        try:
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)

    def _replace_if(self, key: str, path: Path, scratch: Path, etag: str) -> None:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self.head(key).etag != etag:
                raise ConditionFailed(f"{key} is not that version", 412)
            scratch.replace(path)
        finally:
            os.close(descriptor)


def etag_of(status: os.stat_result) -> str:
    """The ETag that a gateway gives a file of others."""
    return f"f{status.st_mtime_ns:x}.{status.st_ino:x}.{status.st_size:x}"


def listed(key: str, status: os.stat_result) -> Listed:
    """A file as a listing says it."""
    modified_ms = max(0, status.st_mtime_ns // 1_000_000)
    return Listed(key, status.st_size, etag_of(status), modified_ms)


def content_type(key: str) -> str:
    """The type that a key's suffix says."""
    return mimetypes.guess_type(key)[0] or _DEFAULT_TYPE


def _refuse_metadata(key: str, headers: Mapping[str, str] | None) -> None:
    if any(name.startswith("x-amz-meta-") for name in headers or ()):
        raise ObjectUnreadable(f"{key}: a directory keeps no user metadata")


def _written_by_gateway(path: Path) -> bool:
    try:
        os.getxattr(path, _ATTRIBUTE, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.ENOENT):
            raise
        return False
    return True


def _link(key: str, scratch: Path, target: Path) -> None:
    """Gives a file its name unless there is one of that name."""
    try:
        target.hardlink_to(scratch)
    except FileExistsError as error:
        raise ConditionFailed(f"{key} exists", 412) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
