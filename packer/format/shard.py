"""The shard: one sealed LMDB file whose values are extents, read by file offset.

An extent is about 1 MiB of whole small objects, back to back. `ShardWriter` makes shards;
`locate` finds where in the file each extent's bytes lie, by walking the B-tree with plain
reads, so that readers need no memory map: a map of a file that was cut short kills the process,
and a cold page under a map stalls every other request.

The file layout is that of LMDB 0.9 on a 64-bit little-endian machine (`struct MDB_page`,
`MDB_meta` and `MDB_node` in https://github.com/LMDB/lmdb/blob/LMDB_0.9.31/libraries/liblmdb/mdb.c).
Values of at least `MIN_EXTENT_BYTES` lie in overflow pages: contiguous, and never moved or
rewritten while they live, so their offset is good from the commit on.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import lmdb

EXTENT_BYTES = 1024**2
# A shorter value may be kept inside a leaf page, and leaf pages move.
MIN_EXTENT_BYTES = 4080
KEY_BYTES = 8

_PAGE_HEADER = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = struct.Struct("<II16x")  # magic, version, (map address and size)
_TREE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch/leaf/overflow pages, entries, root
_META_TAIL = struct.Struct("<QQ")  # last page, transaction
_NODE = struct.Struct("<HHHH")  # low, high, flags, key size
_PAGE_NUMBER = struct.Struct("<Q")
_OVERFLOW_COUNT = struct.Struct("<I")

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG_VALUE = 1
_NO_PAGE = 2**64 - 1
_MAX_DEPTH = 32
_HEADER_BYTES = _PAGE_HEADER.size


class ShardError(Exception):
    """The file is not a whole shard."""


class Located(NamedTuple):
    """Where a value lies: `length_bytes` from `offset` of the file."""

    key: bytes
    offset: int
    length_bytes: int


def extent_key(number: int) -> bytes:
    """The key of an extent: its number, big-endian, so that keys sort as numbers do."""
    return number.to_bytes(KEY_BYTES, "big")


def file_bytes(value_bytes: int, page_bytes: int = 4096) -> int:
    """How far at most one appended value makes the file grow, with all pages it rewrites."""
    # The commit rewrites the path from the root to the leaf, and the same in the free list.
    return -(-(value_bytes + _HEADER_BYTES) // page_bytes) * page_bytes + 16 * page_bytes


class ExtentBuilder:
    """Whole objects, back to back, on their way into one extent."""

    def __init__(self, target_bytes: int = EXTENT_BYTES) -> None:
        self._target_bytes = target_bytes
        self._pieces: list[bytes] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def fits(self, size_bytes: int) -> bool:
        """Whether an object of that size still belongs here; an empty extent takes any."""
        return not self._pieces or self.size_bytes + size_bytes <= self._target_bytes

    def add(self, data: bytes) -> int:
        """Appends an object; its offset within the extent."""
        offset = self.size_bytes
        self._pieces.append(data)
        self.size_bytes += len(data)
        return offset

    def value(self) -> bytes:
        """The extent's bytes, padded to the least that LMDB keeps in overflow pages."""
        padding = max(0, MIN_EXTENT_BYTES - self.size_bytes)
        return b"".join((*self._pieces, bytes(padding)))


class ShardWriter:
    """A shard that grows by extents, each given the next number as its key.

    Only one writer may have a shard open, and nobody else may open it through LMDB meanwhile.
    `commit` makes what was appended readable in the file; `durable` also syncs it to disk.
    Raises lmdb.Error (with the errno in `code`) and OSError.
    """

    def __init__(self, path: Path, max_bytes: int, *, durable: bool = False) -> None:
        self.path = path
        self._environment = lmdb.open(
            str(path),
            subdir=False,
            lock=False,
            sync=durable,
            readahead=False,
            map_size=-(-max_bytes // 65_536) * 65_536 + 1024**2,
        )
        self._transaction: lmdb.Transaction | None = None
        self._pending: list[bytes] = []
        self.extents = 0
        self._descriptor: int | None = None

    def append(self, value: bytes) -> int:
        """Adds an extent to the commit to come; its number."""
        if len(value) < MIN_EXTENT_BYTES:
            raise ValueError(f"an extent has at least {MIN_EXTENT_BYTES} bytes")
        if self._transaction is None:
            self._transaction = self._environment.begin(write=True)
        number = self.extents + len(self._pending)
        key = extent_key(number)
        self._transaction.put(key, value, append=True)
        self._pending.append(key)
        return number

    def commit(self) -> list[Located]:
        """Writes what was appended; where each of its extents lies, in order.

        After an exception none of them is in the shard, and it can go on or be closed."""
        transaction, self._transaction = self._transaction, None
        pending, self._pending = self._pending, []
        if transaction is None:
            return []
        transaction.commit()
        self.extents += len(pending)
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        tree = _Tree(self._descriptor)
        return [tree.find(key) for key in pending]

    @property
    def file_bytes(self) -> int:
        """The size of the file as it is now."""
        return self.path.stat().st_size

    def close(self) -> None:
        """Seals the shard; what was not committed is not in it. Safe to call twice."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._pending = []
        self._environment.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def locate(path: Path) -> list[Located]:
    """Where the values of a shard lie, in key order. ShardError where it is not a whole shard,
    OSError where it cannot be read. Every offset and length returned lies within the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return list(_Tree(descriptor).walk())
    finally:
        os.close(descriptor)


class _Tree:
    """One consistent view of the main tree of an LMDB file, through preads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file_bytes = os.fstat(descriptor).st_size
        self._page_bytes = 0
        self._visited = 0
        # Commits go to the two meta pages in turn. Both are there from the beginning: a file with
        # one is cut short, and the one may be out of date.
        first = self._meta(0)
        second = self._meta(self._page_bytes)
        _, self._root, self._entries = max(first, second)

    def _meta(self, offset: int) -> tuple[int, int, int]:
        """(transaction, root, entries) of a meta page."""
        raw = self._read(offset, _HEADER_BYTES + _META.size + 2 * _TREE.size + _META_TAIL.size)
        if not _PAGE_HEADER.unpack_from(raw)[2] & _META_PAGE:
            raise ShardError("no meta page")
        if _META.unpack_from(raw, _HEADER_BYTES) != (_MAGIC, _VERSION):
            raise ShardError("not a file of LMDB 0.9")
        trees = _HEADER_BYTES + _META.size
        page_bytes = _TREE.unpack_from(raw, trees)[0]
        if page_bytes < 512 or page_bytes > 65_536 or page_bytes & (page_bytes - 1):
            raise ShardError("a page size that LMDB does not have")
        main = _TREE.unpack_from(raw, trees + _TREE.size)
        _, transaction = _META_TAIL.unpack_from(raw, trees + 2 * _TREE.size)
        self._page_bytes = page_bytes
        return transaction, main[7], main[6]

    def walk(self) -> Iterator[Located]:
        """All values in key order."""
        found = 0
        if self._root != _NO_PAGE:
            for located in self._below(self._root, 1):
                found += 1
                if found > self._entries:
                    raise ShardError("more values than the tree says")
                yield located
        if found != self._entries:
            raise ShardError(f"{found} values where the tree says {self._entries}")

    def find(self, key: bytes) -> Located:
        """The value of one key that is there. ShardError where it is not."""
        number = self._root
        for _ in range(_MAX_DEPTH):
            if number == _NO_PAGE:
                break
            page, flags = self._page(number)
            nodes = self._nodes(page)
            # The first node of a branch has an empty key and stands for everything below.
            first = 0 if flags & _LEAF else 1
            at = bisect_right(nodes, key, first, key=partial(self._key, page)) - 1
            if not flags & _LEAF:
                number = self._child(page, nodes[at])
                continue
            if at < 0 or self._key(page, nodes[at]) != key:
                break
            return self._value(page, number, nodes[at])
        raise ShardError("a value that was written is not in the tree")

    def _below(self, number: int, depth: int) -> Iterator[Located]:
        if depth > _MAX_DEPTH:
            raise ShardError("the tree is too deep")
        self._visited += 1
        if self._visited * self._page_bytes > self._file_bytes:
            raise ShardError("a page is in the tree twice")
        page, flags = self._page(number)
        for node in self._nodes(page):
            if flags & _LEAF:
                yield self._value(page, number, node)
            else:
                yield from self._below(self._child(page, node), depth + 1)

    def _page(self, number: int) -> tuple[bytes, int]:
        page = self._read(number * self._page_bytes, self._page_bytes)
        own, _, flags, _, _ = _PAGE_HEADER.unpack_from(page)
        if own != number or flags & (_BRANCH | _LEAF) not in (_BRANCH, _LEAF):
            raise ShardError(f"page {number} is not part of a tree")
        return page, flags

    def _nodes(self, page: bytes) -> tuple[int, ...]:
        lower: int = _PAGE_HEADER.unpack_from(page)[3]
        count = (lower - _HEADER_BYTES) // 2
        if lower > len(page) or count < 1:
            raise ShardError("a page without nodes")
        nodes = struct.unpack_from(f"<{count}H", page, _HEADER_BYTES)
        if max(nodes) + _NODE.size > len(page):
            raise ShardError("a node past its page")
        return nodes

    def _key(self, page: bytes, node: int) -> bytes:
        size = _NODE.unpack_from(page, node)[3]
        start = node + _NODE.size
        if start + size > len(page):
            raise ShardError("a key past its page")
        return page[start : start + size]

    def _child(self, page: bytes, node: int) -> int:
        low, high, flags, _ = _NODE.unpack_from(page, node)
        number: int = low | high << 16 | flags << 32
        return number

    def _value(self, page: bytes, number: int, node: int) -> Located:
        low, high, flags, _ = _NODE.unpack_from(page, node)
        key = self._key(page, node)
        length = low | high << 16
        start = node + _NODE.size + len(key)
        if not flags & _BIG_VALUE:
            if flags or start + length > len(page):
                raise ShardError("a value past its page")
            return Located(key, number * self._page_bytes + start, length)
        if flags != _BIG_VALUE or start + _PAGE_NUMBER.size > len(page):
            raise ShardError("a value of a kind that shards do not hold")
        (overflow,) = _PAGE_NUMBER.unpack_from(page, start)
        offset = overflow * self._page_bytes
        head = self._read(offset, _HEADER_BYTES)
        own, _, flags, _, _ = _PAGE_HEADER.unpack_from(head)
        (pages,) = _OVERFLOW_COUNT.unpack_from(head, 12)
        offset += _HEADER_BYTES
        if own != overflow or not flags & _OVERFLOW:
            raise ShardError(f"page {overflow} does not begin a value")
        if length > pages * self._page_bytes - _HEADER_BYTES:
            raise ShardError("a value longer than its pages")
        if offset + length > self._file_bytes:
            raise ShardError("a value past the end of the file")
        return Located(key, offset, length)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        if offset + size_bytes > self._file_bytes:
            raise ShardError("a page past the end of the file")
        raw = os.pread(self._descriptor, size_bytes, offset)
        if len(raw) != size_bytes:
            raise ShardError("the file was cut short")
        return raw
