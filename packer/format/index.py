"""The index of a pack: every key of its prefix with what a gateway needs to answer for it.

Written once, in key order, in bounded memory. Read through LMDB's map, so only after size and
SHA-256 of the file have been checked: a file cut short kills whoever maps it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import lmdb
import msgspec

from packer.format.records import (
    ABOUT,
    HEAD_BYTES,
    OBJECT,
    ORDINAL_BYTES,
    Grouper,
    Record,
    decode_group,
    decode_record,
    encode_record,
    group_key,
)

FORMAT_VERSION = 1
# More sets of headers than this are kept within their records: the writer's table stays small.
SHARED_HEADERS = 65_536

_FORMAT_KEY = ABOUT + b"format"
_SHARDS_KEY = ABOUT + b"shards"
_HEADERS_KEY = ABOUT + b"h"
_COMMIT_BYTES = 16 * 1024**2
_GROWTH_BYTES = 64 * 1024**2
_END = OBJECT[:-1] + bytes([OBJECT[0] + 1])


class IndexDamaged(Exception):  # noqa: N818 - said of a file, not of a call
    """The file is not an index of a version this code knows."""


class ShardRef(NamedTuple):
    """A shard as the index names it."""

    sha256: str
    size_bytes: int


class IndexWriter:
    """Writes an index: `add` every key in order, then `close`.

    The file is complete once `close` has returned. Raises lmdb.Error, OSError, and ValueError for
    keys out of order.
    """

    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(
            str(path), subdir=False, lock=False, readahead=False, map_size=_GROWTH_BYTES
        )
        self._map_bytes = _GROWTH_BYTES
        self._grouper = Grouper()
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._headers: dict[tuple[tuple[str, str], ...], int] = {}
        self._last = b""
        self.entries = 0

    def add(self, key: bytes, record: Record) -> None:
        """Adds the next key. The headers of `record` are a set, not a number."""
        if key <= self._last:
            raise ValueError("keys of an index come in order, each once")
        self._last = key
        if isinstance(record.headers, dict) and record.headers:
            record = self._shared(record, record.headers)
        for name, value in self._grouper.add(key, encode_record(record)):
            self._put(name, value)
        self.entries += 1

    def close(self, shards: Iterable[ShardRef]) -> None:
        """Ends the index with the table of shards that its records mean."""
        for name, value in self._grouper.finish():
            self._put(name, value)
        self._commit()
        about = {
            _FORMAT_KEY: msgspec.msgpack.encode(FORMAT_VERSION),
            _SHARDS_KEY: msgspec.msgpack.encode(list(shards)),
        }
        for headers, number in self._headers.items():
            about[_headers_key(number)] = msgspec.msgpack.encode(dict(headers))
        room_bytes = sum(len(value) + 8192 for value in about.values())
        self._make_room(room_bytes)
        with self._environment.begin(write=True) as transaction:
            for name, value in sorted(about.items()):
                transaction.put(name, value)
        self._environment.sync(True)
        self._environment.close()

    def abandon(self) -> None:
        """Closes a file that will not become an index."""
        self._environment.close()

    def _shared(self, record: Record, headers: dict[str, str]) -> Record:
        form = tuple(sorted(headers.items()))
        number = self._headers.get(form)
        if number is None:
            if len(self._headers) >= SHARED_HEADERS:
                return record
            number = self._headers[form] = len(self._headers)
        return msgspec.structs.replace(record, headers=number)

    def _put(self, name: bytes, value: bytes) -> None:
        self._pending.append((name, value))
        self._pending_bytes += len(name) + len(value) + 64
        if self._pending_bytes >= _COMMIT_BYTES:
            self._commit()

    def _commit(self) -> None:
        if not self._pending:
            return
        self._make_room(4 * self._pending_bytes)
        with (
            self._environment.begin(write=True) as transaction,
            transaction.cursor() as cursor,
        ):
            cursor.putmulti(self._pending, append=True)
        self._pending = []
        self._pending_bytes = 0

    def _make_room(self, size_bytes: int) -> None:
        used = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        if used + size_bytes + 1024**2 > self._map_bytes:
            self._map_bytes = used + size_bytes + _GROWTH_BYTES
            self._environment.set_mapsize(self._map_bytes)


class Index:
    """An index that lies on the local disk, checked against its manifest before.

    One object a process and file (LMDB); not to be carried over a fork. Raises IndexDamaged for
    what is no index of this version, msgspec.MsgspecError for a damaged record.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._environment = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, max_readers=1, readahead=False
            )
        except lmdb.Error as error:
            raise IndexDamaged(str(error)) from error
        self._transaction = self._environment.begin(buffers=False)
        version = self._transaction.get(_FORMAT_KEY)
        if version is None or msgspec.msgpack.decode(version) != FORMAT_VERSION:
            self.close()
            raise IndexDamaged("not an index of version 1")
        table = self._transaction.get(_SHARDS_KEY)
        self.shards = msgspec.msgpack.decode(table or b"\x90", type=list[ShardRef])
        self._sets: dict[int, dict[str, str]] = {}

    def get(self, key: bytes) -> Record | None:
        """What is known of a key; its headers as a set."""
        if len(key) < HEAD_BYTES:
            raw = self._transaction.get(OBJECT + key)
            return None if raw is None else self._whole(decode_record(raw))
        head, rest = key[:HEAD_BYTES], key[HEAD_BYTES:]
        group = self._group(head, self._ordinal(head, rest))
        return next((self._whole(found) for own, found in group or () if own == rest), None)

    def walk(self, start: bytes = b"") -> Iterator[tuple[bytes, Record]]:
        """Every key from `start` on, in order of bytes."""
        with self._transaction.cursor() as cursor:
            if len(start) < HEAD_BYTES:
                at = OBJECT + start
            else:
                head = start[:HEAD_BYTES]
                at = group_key(head, max(0, self._ordinal(head, start[HEAD_BYTES:])))
            if not cursor.set_range(at):
                return
            for name, raw in cursor:
                if len(name) <= HEAD_BYTES:
                    yield name[1:], self._whole(decode_record(raw))
                    continue
                head = name[1:-ORDINAL_BYTES]
                for rest, record in decode_group(raw):
                    if head + rest >= start:
                        yield head + rest, self._whole(record)

    def close(self) -> None:
        """Lets the file go."""
        self._transaction.abort()
        self._environment.close()

    def __enter__(self) -> "Index":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _whole(self, record: Record) -> Record:
        number = record.headers
        if isinstance(number, dict):
            return record
        headers = self._sets.get(number)
        if headers is None:
            raw = self._transaction.get(_headers_key(number))
            if raw is None:
                raise IndexDamaged(f"no set of headers {number}")
            headers = self._sets[number] = msgspec.msgpack.decode(raw, type=dict[str, str])
        return msgspec.structs.replace(record, headers=headers)

    def _group(self, head: bytes, ordinal: int) -> list[tuple[bytes, Record]] | None:
        raw = self._transaction.get(group_key(head, ordinal)) if ordinal >= 0 else None
        return None if raw is None else decode_group(raw)

    def _ordinal(self, head: bytes, rest: bytes) -> int:
        """The last group that begins at or before `rest`; -1 where there is none."""

        def begins_by(ordinal: int) -> bool:
            group = self._group(head, ordinal)
            return group is not None and group[0][0] <= rest

        if not begins_by(0):
            return -1
        step = 1
        while begins_by(step):
            step *= 2
        low, high = step // 2, step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if begins_by(middle) else (low, middle)
        return low


def common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """The common prefix that stands for `key` in a listing; None where the key itself does."""
    if not delimiter:
        return None
    at = key.find(delimiter, len(prefix))
    return None if at < 0 else key[: at + len(delimiter)]


def beyond(prefix: bytes) -> bytes | None:
    """The least key greater than all that begin with `prefix`; None where there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _headers_key(number: int) -> bytes:
    return _HEADERS_KEY + number.to_bytes(4, "big")
