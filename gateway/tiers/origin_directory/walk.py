"""Listing a bucket in the UTF-8 byte order of keys, from folders that are in no order at all.

A folder's entries are sorted as the keys they begin: a file `a` as `a`, a folder `a` as `a/`, which
puts `a-b` before everything in the folder and `a0` behind it. Folders are read one at a time, when
their turn comes, and those that hold nothing wanted (before the marker, outside the prefix, under a
common prefix already told) not at all. What has been read of a large folder is kept for the next
page as long as the folder has not changed.
"""

import stat
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import NamedTuple

from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.objects import Bucket, find, moving_gate
from gateway.tiers.origin_directory.paths import (
    KEY_LIMIT_BYTES,
    decode,
    encode,
    is_chained,
    names_of,
)

# A change within the same tick of the folder's clock would not be seen.
_SETTLED_NS = 2_000_000_000
_KEPT_FROM_ENTRIES = 1000
_KEPT_ENTRIES = 1_000_000
# More pieces than the longest key has; only others could make such folders.
_CHAIN_LIMIT = 16


class Entries(NamedTuple):
    """A folder's segments as they sort: files as they are, folders with a slash at the end and,
    for the object that may lie in them, without one too. `folders` are those without."""

    names: tuple[bytes, ...]
    folders: frozenset[bytes]


class Scans:
    """Sorted folders, kept while they stay as they are: the pages of one listing share them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[int, Entries]] = OrderedDict()
        self._lock = Lock()
        self._total = 0

    def entries(self, folder: Folder) -> Entries:
        """The folder's entries now."""
        status = folder.status()
        place = (status.st_dev, status.st_ino)
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and kept[0] == status.st_mtime_ns:
                self._kept.move_to_end(place)
                return kept[1]
        settled = status.st_mtime_ns < time.time_ns() - _SETTLED_NS
        entries = _read(folder)
        if settled and len(entries.names) >= _KEPT_FROM_ENTRIES:
            self._keep(place, status.st_mtime_ns, entries)
        return entries

    def _keep(self, place: tuple[int, int], mtime_ns: int, entries: Entries) -> None:
        with self._lock:
            old = self._kept.pop(place, None)
            self._total += len(entries.names) - (len(old[1].names) if old is not None else 0)
            self._kept[place] = (mtime_ns, entries)
            while self._total > _KEPT_ENTRIES and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._total -= len(dropped.names)


class Walk:
    """The keys of a bucket in order. `skip` may be called at any time."""

    def __init__(self, bucket: Bucket, scans: Scans, *, prefix: str, after: str) -> None:
        self._bucket = bucket
        self._scans = scans
        self._prefix = prefix.encode("utf-8")
        self._after = after.encode("utf-8")
        self._skipped: bytes | None = None

    def skip(self, prefix: str) -> None:
        """Leaves out all further keys that begin so."""
        self._skipped = prefix.encode("utf-8")

    def keys(self) -> Iterator[str]:
        """Every key that was there all the while, once; of those that came or went, some."""
        # All keys of the prefix lie in the folder of its last slash, or below.
        base = self._prefix[: self._prefix.rfind(b"/") + 1]
        stack = [(base, self._children(base))]
        while stack:
            folder, children = stack[-1]
            child, is_certain = next(children, (None, False))
            if child is None:
                stack.pop()
                continue
            full = folder + child
            if child.endswith(b"/"):
                if self._may_hold(full):
                    stack.append((full, self._children(full)))
            elif self._wants(full):
                key = full.decode("utf-8")
                if is_certain or self._is_there(key):
                    yield key

    def _children(self, folder: bytes) -> Iterator[tuple[bytes, bool]]:
        """The entries of the folder of that key prefix, from where it gets interesting, and
        whether each is certain to be there."""
        names = [name for part in folder.decode("utf-8").split("/")[:-1] for name in encode(part)]
        try:
            with (
                self._bucket.locks.share(moving_gate(self._bucket)),
                self._bucket.folder.enter(*names) as opened,
            ):
                entries = self._scans.entries(opened)
        except ABSENT:
            return
        low = max(self._after, self._prefix)
        start = low[len(folder) :] if low.startswith(folder) else b""
        first = start.partition(b"/")[0]
        for index in range(bisect_left(entries.names, first), len(entries.names)):
            name = entries.names[index]
            yield name, name not in entries.folders

    def _is_there(self, key: str) -> bool:
        with find(self._bucket, names_of(key)) as place:
            return place is not None

    def _may_hold(self, folder: bytes) -> bool:
        """Whether any key that begins with `folder` is wanted."""
        return (
            (folder > self._after or self._after.startswith(folder))
            and (folder.startswith(self._prefix) or self._prefix.startswith(folder))
            and (self._skipped is None or not folder.startswith(self._skipped))
        )

    def _wants(self, key: bytes) -> bool:
        return (
            key > self._after
            and len(key) <= KEY_LIMIT_BYTES
            and key.startswith(self._prefix)
            and (self._skipped is None or not key.startswith(self._skipped))
        )


def _read(folder: Folder) -> Entries:
    names: list[bytes] = []
    folders: set[bytes] = set()
    for segment, is_folder in _segments(folder, ()):
        names.append(segment)
        if is_folder:
            names.append(segment + b"/")
            folders.add(segment)
    names.sort()
    return Entries(tuple(names), frozenset(folders))


def _segments(folder: Folder, chain: tuple[str, ...]) -> Iterator[tuple[bytes, bool]]:
    """The segments of a folder's entries and whether each is a folder; what is none is left out:
    links, devices, our own files, names that are not UTF-8."""
    for name, kind in folder.scan():
        names = (*chain, name)
        if kind == stat.S_IFDIR and is_chained(name) and len(names) < _CHAIN_LIMIT:
            try:
                with folder.enter(name) as inner:
                    yield from _segments(inner, names)
            except ABSENT:
                continue
        elif kind in (stat.S_IFREG, stat.S_IFDIR):
            try:
                name.encode("utf-8")
            except UnicodeEncodeError:
                continue
            segment = decode(names)
            if segment is not None:
                yield segment.encode("utf-8"), kind == stat.S_IFDIR
