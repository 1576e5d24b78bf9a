"""A store in memory, and one that is disturbed: for what must be tried thousands of times.

It is held to the same tests as the real ones (`bucket` in conftest.py)."""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from packer.stores.protocol import (
    ConditionFailed,
    Deletion,
    Got,
    Listed,
    ObjectMissing,
    Store,
    StoreError,
)


class MemoryStore:
    """A bucket in memory; its clock goes on by a millisecond with each write."""

    is_gateway = False
    bypassed = False

    def __init__(self, *, conditional: bool = True) -> None:
        self.bucket = "memory"
        self.requests = 0
        self.clock_ms = 1_790_000_000_000
        self._conditional = conditional
        self._objects: dict[str, tuple[bytes, dict[str, str], int]] = {}

    def close(self) -> None:
        pass

    def seconds(self) -> float:
        return self.clock_ms / 1000

    def listing(self, prefix: str) -> Iterator[Listed]:
        for key in sorted(self._objects, key=str.encode):
            if key.startswith(prefix) and key in self._objects:
                yield self.head(key)

    def get(self, key: str, etag: str | None = None) -> Got:
        data, headers, _ = self._found(key)
        if etag not in (None, etag_of(data)):
            raise ConditionFailed(key, 412)
        return Got(data, etag_of(data), headers)

    def read(self, key: str, offset: int, size_bytes: int) -> bytes:
        data = self._found(key)[0][offset : offset + size_bytes]
        if len(data) != size_bytes:
            raise StoreError("too short")
        return data

    def open(self, key: str, etag: str | None = None) -> BinaryIO:
        return io.BytesIO(self.get(key, etag).data)

    def head(self, key: str) -> Listed:
        data, headers, modified_ms = self._found(key)
        return Listed(key, len(data), etag_of(data), modified_ms, headers=headers)

    def put(
        self,
        key: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> str:
        if if_absent and key in self._objects:
            raise ConditionFailed(key, 412)
        if if_match is not None and etag_of(self._found(key)[0]) != if_match:
            raise ConditionFailed(key, 412)
        self.clock_ms += 1
        self._objects[key] = (data, dict(headers or {}), self.clock_ms)
        return etag_of(data)

    def put_file(
        self,
        key: str,
        path: Path,
        sent: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        self.put(key, path.read_bytes(), headers=headers, if_absent=if_absent)

    def delete(self, objects: Sequence[Deletion]) -> list[tuple[str, StoreError]]:
        failed: list[tuple[str, StoreError]] = []
        for item in objects:
            found = self._objects.get(item.key)
            if found is None:
                continue
            if item.etag not in (None, etag_of(found[0])):
                failed.append((item.key, ConditionFailed(item.key, 412)))
            else:
                del self._objects[item.key]
        return failed

    def tags(self, key: str) -> tuple[tuple[str, str], ...]:
        return ()

    def conditional_deletes(self, key: str) -> bool:
        return self._conditional

    def clean_uploads(self, prefix: str) -> None:
        pass

    def _found(self, key: str) -> tuple[bytes, dict[str, str], int]:
        if key not in self._objects:
            raise ObjectMissing(key, 404)
        return self._objects[key]


class Crashed(BaseException):
    """The process is no more: nothing that it does reaches the store."""


class Disturbed:
    """A store before each request of which something happens, and which may crash."""

    def __init__(self, store: Store, disturb: Callable[[], None], crash_at: int) -> None:
        self._store = store
        self._disturb = disturb
        self._left = crash_at

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if name not in ("get", "read", "open", "head", "put", "put_file", "delete", "listing"):
            return found

        def disturbed(*arguments: object, **named: object) -> object:
            self._left -= 1
            if self._left < 0:
                raise Crashed
            self._disturb()
            return found(*arguments, **named)

        return disturbed


def etag_of(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()
