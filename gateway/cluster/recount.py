"""Counts what a disk holds out of its index, piece by piece, behind everything else."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from gateway.cluster.holdings import Holdings
from gateway.cluster.rebuilding import Rebuilding
from gateway.index.held import HeldIndex, IndexLost
from gateway.index.records import Table

# Read and taken in at once: a few milliseconds of the event loop.
_PIECE_ENTRIES = 500
_REST_SECONDS = 0.002
_RETRY_SECONDS = 1.0

log = structlog.get_logger()


class Recount:
    """Keeps `holdings` what the disk holds, as `HoldingObserver`. `on_whole`: all is counted."""

    def __init__(
        self, holdings: Holdings, rebuilding: Rebuilding, on_whole: Callable[[], None]
    ) -> None:
        self._holdings = holdings
        self._rebuilding = rebuilding
        self._on_whole = on_whole
        self._index: HeldIndex | None = None
        self._task: asyncio.Task[None] | None = None
        self._damaged = 0

    # What the disk tells (`HoldingObserver`)
    def opened(self, index: HeldIndex) -> None:
        """Begins to count what there is."""
        self._index = index
        self._begin()

    def changed(self, table: Table, key: bytes, before: bytes | None, now: bytes | None) -> None:
        """Takes in a change."""
        self._holdings.changed(table, key, before, now)
        index = self._index
        if index is not None and (self._holdings.doubtful or index.damaged != self._damaged):
            log.warning("holdings counted anew", reason="entries of the index are damaged")
            self._begin()

    def closed(self) -> None:
        """Nothing is held any more."""
        self._stop()
        self._index = None
        self._holdings.clear()

    async def close(self) -> None:
        """Ends the counting. What was told stays told."""
        task = self._task
        self._stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self) -> None:
        self._stop()
        assert self._index is not None  # noqa: S101 - both callers have one
        self._damaged = self._index.damaged
        self._holdings.begin()
        self._task = asyncio.create_task(self._count(self._index))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._rebuilding.end("counting")

    async def _count(self, index: HeldIndex) -> None:
        total = index.entries(Table.CHUNKS) + index.entries(Table.SMALL)
        done = 0
        for table in (Table.CHUNKS, Table.SMALL):
            passed: bytes | None = b""
            while passed is not None:
                # What was written before must be in the file for the piece to have it.
                if not await index.flush():
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    entries, passed = await index.walk(table, passed, _PIECE_ENTRIES)
                except IndexLost:
                    # Whoever keeps the disk starts over with another index, and says so.
                    return
                self._damaged = index.damaged
                self._holdings.count(table, entries, passed, partial(index.get, table))
                done += len(entries)
                self._rebuilding.step("counting", done, max(total, done))
                await asyncio.sleep(_REST_SECONDS)
        self._rebuilding.end("counting")
        self._on_whole()
