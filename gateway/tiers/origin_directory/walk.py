"""Listing a bucket in the UTF-8 byte order of keys, from folders that are in no order at all.

A folder's entries are sorted as the keys they begin: a file `a` as `a`, a folder `a` as `a/`, which
puts `a-b` before everything in the folder and `a0` behind it. Folders are read one at a time, when
their turn comes, and those that hold nothing wanted (before the marker, outside the prefix, under a
common prefix already told) not at all.

Memory is bounded whatever a folder holds: of a large one only a window of its entries is sorted at
a time. A window of a folder that is at rest is wide and kept for the next pages as long as the
folder has not changed; one of a folder that is written to is narrow and read anew.
"""

import stat
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import NamedTuple

from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.locks import Locks
from gateway.tiers.origin_directory.objects import Bucket, find, moving_gate
from gateway.tiers.origin_directory.paths import (
    KEY_LIMIT_BYTES,
    SEGMENT_LIMIT,
    decode,
    encode,
    is_chained,
    names_of,
)

# A change within the same tick of the folder's clock would not be seen.
_SETTLED_NS = 2_000_000_000
_KEPT_FROM_ENTRIES = 1000
_KEPT_ENTRIES = 1_000_000
_WIDE_ENTRIES = 100_000
_NARROW_ENTRIES = 4_000
# More pieces than the longest key has; only others could make such folders.
_CHAIN_LIMIT = 16


class Entries(NamedTuple):
    """A window of a folder's segments as they sort: files as they are, folders with a slash at the
    end and, for the object that may lie in them, without one too. `folders` are those without.

    All there are from `start` to the last name, or to the folder's end where `is_last`.
    """

    start: bytes
    names: tuple[bytes, ...]
    folders: frozenset[bytes]
    is_last: bool
    # Long segments lie in folders of their own, whose changes the folder's time does not tell.
    has_chains: bool

    def covers(self, name: bytes) -> bool:
        """Whether `name` is among these if it is there at all."""
        return self.start <= name and (self.is_last or name <= self.names[-1])


class Scans:
    """Sorted windows of folders, kept while the folders stay as they are: the pages of one listing
    share them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[int, Entries]] = OrderedDict()
        self._lock = Lock()
        self._scanning = Locks()
        self._total = 0

    def entries(self, folder: Folder, start: bytes) -> Entries:
        """The folder's entries now, from `start` on."""
        status = folder.status()
        place = (status.st_dev, status.st_ino)
        if status.st_mtime_ns >= time.time_ns() - _SETTLED_NS:
            return _read(folder, start, _NARROW_ENTRIES)
        kept = self._find(place, status.st_mtime_ns, start)
        if kept is not None:
            return kept
        # Many who ask for one large folder at once share one reading of it.
        with self._scanning.hold(place):
            kept = self._find(place, status.st_mtime_ns, start)
            if kept is not None:
                return kept
            entries = _read(folder, start, _WIDE_ENTRIES)
            if len(entries.names) >= _KEPT_FROM_ENTRIES and not entries.has_chains:
                self._keep(place, status.st_mtime_ns, entries)
        return entries

    def _find(self, place: tuple[int, int], mtime_ns: int, start: bytes) -> Entries | None:
        with self._lock:
            kept = self._kept.get(place)
            if kept is None or kept[0] != mtime_ns or not kept[1].covers(start):
                return None
            self._kept.move_to_end(place)
            return kept[1]

    def _keep(self, place: tuple[int, int], mtime_ns: int, entries: Entries) -> None:
        with self._lock:
            old = self._kept.pop(place, None)
            self._total += len(entries.names) - (len(old[1].names) if old is not None else 0)
            self._kept[place] = (mtime_ns, entries)
            while self._total > _KEPT_ENTRIES:
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
            if full[: len(self._prefix)] > self._prefix:
                return
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
        low = max(self._after, self._prefix)
        start = low[len(folder) :] if low.startswith(folder) else b""
        first: bytes | None = start.partition(b"/")[0]
        while first is not None:
            try:
                with (
                    self._bucket.locks.share(moving_gate(self._bucket)),
                    self._bucket.folder.enter(*names) as opened,
                ):
                    entries = self._scans.entries(opened, first)
            except ABSENT:
                return
            for index in range(bisect_left(entries.names, first), len(entries.names)):
                name = entries.names[index]
                yield name, name not in entries.folders
            first = None if entries.is_last else entries.names[-1] + b"\0"

    def _is_there(self, key: str) -> bool:
        with find(self._bucket, names_of(key)) as place:
            return place is not None

    def _may_hold(self, folder: bytes) -> bool:
        """Whether any key that begins with `folder` is wanted."""
        return (
            folder.count(b"/") < SEGMENT_LIMIT
            and (folder > self._after or self._after.startswith(folder))
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


def _read(folder: Folder, start: bytes, limit: int) -> Entries:
    """The first `limit` entries from `start` on; twice as many are in memory at most."""
    names: list[bytes] = []
    folders: set[bytes] = set()
    stop: bytes | None = None
    chains: list[str] = []
    for segment, is_folder in _segments(folder, (), chains):
        for name in (segment, segment + b"/") if is_folder else (segment,):
            if name < start or (stop is not None and name > stop):
                continue
            names.append(name)
            if is_folder and name is segment:
                folders.add(name)
        if len(names) >= 2 * limit:
            names.sort()
            del names[limit:]
            folders.intersection_update(names)
            stop = names[-1]
    names.sort()
    is_last = stop is None and len(names) <= limit
    del names[limit:]
    folders.intersection_update(names)
    return Entries(start, tuple(names), frozenset(folders), is_last, has_chains=bool(chains))


def _segments(
    folder: Folder, chain: tuple[str, ...], chains: list[str]
) -> Iterator[tuple[bytes, bool]]:
    """The segments of a folder's entries and whether each is a folder; what is none is left out:
    links, devices, our own files, names that are not UTF-8. `chains` gets the long ones' folders,
    also those that are empty."""
    for name, kind in folder.entries():
        names = (*chain, name)
        if kind == stat.S_IFDIR and is_chained(name) and len(names) < _CHAIN_LIMIT:
            chains.append(name)
            try:
                with folder.enter(name) as inner:
                    yield from _segments(inner, names, chains)
            except ABSENT:
                continue
        elif kind in (stat.S_IFREG, stat.S_IFDIR):
            segment = decode(names)
            if segment is not None:
                yield segment.encode("utf-8"), kind == stat.S_IFDIR
