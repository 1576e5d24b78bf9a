"""What nodes hold of every dataset there is, a page at a time: from the directory's counters.

    {"datasets": [{"dataset": "s3://train/imagenet/", "nodes": {"n1": 123}, "readers": ["demo"]}],
     "uncounted": {"train": {"n1": 5}},
     "next": null}

A dataset is here a folder that bytes are counted under, without what a deeper one counts: what a
prefix comes to is the sum of all that begin with it. A pack's files count for the prefix that was
packed. `uncounted` are bytes of a bucket that are no dataset's: of folders beyond the bucket's
limit, of packs that are gone or not known yet, of names that no client can say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from gateway.auth.readers import Readers
from gateway.cluster.counters import Counts, sum_up
from gateway.cluster.datasets import REST, Counter
from gateway.errors import TierUnavailable
from gateway.index.records import raw_text
from gateway.model.reserved import PACKS
from gateway.store.buckets import Bucket
from gateway.store.service import ObjectService

MOST_DATASETS = 10_000
# A page ends early beyond: with a thousand nodes a dataset takes some 25 KB.
_PAGE_BYTES = 16 * 1024**2
_FOLDERS_AT_ONCE = 100
_PACKS = PACKS.encode()


class _Counted(Struct, frozen=True):
    """A counter's folder, and the prefix it counts for: None where that cannot be said. `place`
    orders them."""

    place: bytes
    folder: bytes
    prefix: str | None


class DatasetPages:
    """Pages ready for JSON, made one at a time. `ready`: whether the counters can be believed."""

    def __init__(
        self,
        service: ObjectService,
        counts: Counts,
        readers: Readers,
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._service = service
        self._counts = counts
        self._readers = readers
        self._ready = ready
        self._turn = asyncio.Lock()

    async def page(self, after: tuple[str, str] | None, limit: int) -> dict[str, Any]:
        """At most `limit` datasets, by bucket and prefix, that come behind those of `after`.
        TierUnavailable."""
        async with self._turn:
            if not self._ready():
                raise TierUnavailable("this node is no member of the cluster now")
            page = _Page(limit)
            first, begin = after or ("", None)
            for bucket in await self._buckets(first):
                await self._add(page, bucket, begin if bucket.name == first else None)
                if page.full:
                    break
            return page.plain()

    async def _buckets(self, first: str) -> list[Bucket]:
        """Those that clients see and that something is held of, from the name `first` on."""
        seen: dict[str, Bucket] = {}
        for origin, raw in await self._counts.buckets():
            name = _text(raw)
            if name is not None:
                seen |= {each.name: each for each in self._service.buckets_over(origin, name)}
        return [seen[name] for name in sorted(seen) if name >= first]

    async def _add(self, page: "_Page", bucket: Bucket, begin: str | None) -> None:
        """Adds the datasets of a bucket behind the prefix `begin`, until the page is full."""
        origin, raw_bucket = bucket.origin.name, raw_text(bucket.origin_bucket)
        async for some in self._counted(bucket, begin):
            held = await self._counts.held(
                [Counter(origin, raw_bucket, each.folder) for each in some]
            )
            # In order, so that the next page goes on right behind what this one ends with.
            for _, group in groupby(zip(some, held, strict=True), key=lambda pair: pair[0].place):
                prefix: str | None = None
                nodes: dict[str, int] = {}
                for counted, found in group:
                    prefix = counted.prefix
                    sum_up(nodes, found)
                if prefix is None:
                    page.add_uncounted(bucket.name, nodes)
                elif nodes:
                    readers = self._readers.of(bucket.name, prefix, public_read=bucket.public_read)
                    page.add(bucket.name, prefix, nodes, readers)
                if page.full:
                    return

    async def _counted(self, bucket: Bucket, begin: str | None) -> AsyncIterator[list[_Counted]]:
        """A bucket's counters behind the prefix `begin`, in order, and those of one prefix not
        apart."""
        origin, raw_bucket = bucket.origin.name, raw_text(bucket.origin_bucket)
        after = b"" if begin is None else raw_text(begin) + b"\0"
        packs = await self._packs(bucket)
        packed = {each.folder for each in packs}
        packs = [each for each in packs if each.place >= after]
        while True:
            folders = await self._counts.folders(origin, raw_bucket, after, _FOLDERS_AT_ONCE)
            last = len(folders) < _FOLDERS_AT_ONCE
            after = folders[-1] + b"\0" if folders else after
            some = [_counted(folder) for folder in folders if folder not in packed]
            some += [each for each in packs if last or each.place < after]
            packs = [each for each in packs if not last and each.place >= after]
            yield sorted(some, key=lambda each: each.place)
            if last:
                return

    async def _packs(self, bucket: Bucket) -> list[_Counted]:
        """The counters of packs whose prefixes are known."""
        origin, raw_bucket = bucket.origin.name, raw_text(bucket.origin_bucket)
        roots: list[str] = []
        after, last = _PACKS, False
        while not last:
            folders = await self._counts.folders(origin, raw_bucket, after, _FOLDERS_AT_ONCE)
            found = [root for each in folders if each.startswith(_PACKS) and (root := _text(each))]
            roots += found
            last = len(found) < _FOLDERS_AT_ONCE
            after = folders[-1] + b"\0" if folders else after
        prefixes = await self._service.pack_prefixes(bucket.name, roots)
        return [
            _Counted(raw_text(prefix), raw_text(root), prefix) for root, prefix in prefixes.items()
        ]


class _Page:
    """A page that grows: rows as JSON already, so that the numbers need not stay."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: list[msgspec.Raw] = []
        self._size_bytes = 0
        self._uncounted: dict[str, dict[str, int]] = {}
        self._last = ""

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._limit or self._size_bytes >= _PAGE_BYTES

    def add(
        self, bucket: str, prefix: str, nodes: Mapping[str, int], readers: Sequence[str]
    ) -> None:
        self._last = f"s3://{bucket}/{prefix}"
        row = {"dataset": self._last, "nodes": nodes, "readers": readers}
        raw = msgspec.json.encode(row)
        self._rows.append(msgspec.Raw(raw))
        self._size_bytes += len(raw)

    def add_uncounted(self, bucket: str, nodes: Mapping[str, int]) -> None:
        if nodes:
            sum_up(self._uncounted.setdefault(bucket, {}), nodes)

    def plain(self) -> dict[str, Any]:
        """Ready for JSON; `next`: what to go on behind, if there may be more."""
        return {
            "datasets": self._rows,
            "uncounted": self._uncounted,
            "next": self._last if self.full else None,
        }


def _counted(folder: bytes) -> _Counted:
    """A folder of the directory that is no known pack's."""
    no_prefix = folder == REST or folder.startswith(_PACKS)
    return _Counted(folder, folder, None if no_prefix else _text(folder))


def _text(raw: bytes) -> str | None:
    """A name as clients say it; None where they cannot, as it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
