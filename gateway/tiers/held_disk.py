"""The local disk as another process of the node reads it: what `DiskTier` holds, with no say in it.

It opens what the index in the file names, notes what it read for the keeper (`take_notes`), and
lets go within about a second of files that the keeper removed, so that their space becomes free.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from gateway.config import CacheConfig
from gateway.index.reading import HeldReader
from gateway.index.records import Table, chunk_key, decode_object, find, object_key
from gateway.model.objects import ObjectInfo, ObjectRef, Span
from gateway.tiers.chunk_reading import ChunkLookup
from gateway.tiers.layout import index_path
from gateway.tiers.notes import Notebook, Notes
from gateway.tiers.open_files import DiskThreads, OpenFiles
from gateway.tiers.protocol import InstantReader, SpanReader, TierName
from gateway.tiers.regions import Regions
from gateway.tiers.small_reading import SmallLookup

_TIDY_SECONDS = 1.0


class HeldDisk:
    """Read-only counterpart of `DiskTier`, in a process of its own. One event loop; `start` before
    anything else. Where the keeper has no cache open, nothing is found."""

    def __init__(
        self,
        config: CacheConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        tidy_seconds: float = _TIDY_SECONDS,
    ) -> None:
        self._small_bytes = int(config.small_object_limit)
        self._tidy_seconds = tidy_seconds
        self._index = HeldReader(index_path(config.path), now=now)
        self._threads = DiskThreads()
        self._files = OpenFiles(self._threads)
        self._notebook = Notebook()
        regions = Regions()
        self._small = SmallLookup(
            config.path,
            index=self._index,
            files=self._files,
            regions=regions,
            owner=self._notebook.small,
        )
        self._chunks = ChunkLookup(
            config.path,
            index=self._index,
            files=self._files,
            regions=regions,
            owner=self._notebook.chunks,
            now=now,
        )
        self._tidying: asyncio.Task[None] | None = None

    @property
    def name(self) -> TierName:
        return "disk"

    async def start(self) -> None:
        """Begins to look after open files."""
        self._index.look()
        self._tidying = asyncio.create_task(self._tidy())

    async def close(self) -> None:
        """Lets go of everything. Nothing may be read afterwards."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        self._index.close()
        self._files.close()
        self._threads.close()

    @property
    def index_file(self) -> tuple[int, int] | None:
        """Device and inode of the index that the last look-up was made in; None for none."""
        return self._index.file

    def holds(self, span: Span) -> bool:
        """Whether a small object or a chunk is here."""
        digest = span.version.digest
        if span.version.size_bytes <= self._small_bytes:
            return self._small.find(digest, span) is not None
        return self._chunks.find(chunk_key(digest, span.number), span) is not None

    def open_now(self, span: Span) -> InstantReader | None:
        """As `open`, without waiting: None where it is not held here or would need a thread."""
        if span.version.size_bytes <= self._small_bytes:
            return self._small.open_now(span)
        return self._chunks.open_now(span)

    async def open(self, span: Span) -> SpanReader | None:
        """A reader of a small object or a chunk, or None where it is not in the index yet, or not
        any more."""
        if span.version.size_bytes <= self._small_bytes:
            return await self._small.open(span)
        return await self._chunks.open(span)

    def recall(self, ref: ObjectRef) -> ObjectInfo | None:
        """What was last remembered of the object; None where nothing is."""
        raw = self._index.get(Table.OBJECTS, object_key(ref))
        if raw is None:
            return None
        try:
            return find(decode_object(raw), ref)
        except msgspec.MsgspecError:
            return None

    def take_notes(self) -> Notes:
        """What the keeper should be told since the last time (`DiskTier.note`)."""
        return self._notebook.take()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(self._tidy_seconds)
            await self._files.drop_removed()
