"""The local disk as a tier: chunks and small objects within a capacity, warm over restarts.

The cache is disposable and never in the way. A disk that is full, read-only, failing or gone makes
the tier take nothing in (`accepting` is False) while it still serves what it can; it looks every
few seconds whether the disk is well again, and goes on by itself.
"""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import lmdb
import structlog
from msgspec import Struct

from gateway.cluster.datasets import Counter
from gateway.config import CacheConfig, ConfigError
from gateway.errors import FeedrackError, TierFull, TierUnavailable
from gateway.index.held import HeldIndex, IndexLost, translated
from gateway.index.records import Table, chunk_span, small_span
from gateway.model.objects import ObjectInfo, ObjectRef, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.folder import Folder
from gateway.tiers.heads import Heads
from gateway.tiers.health import Health, Reason, reason_at
from gateway.tiers.holding import Found, Holding, Sizes, recover
from gateway.tiers.landing import Landing, land
from gateway.tiers.notes import Notes
from gateway.tiers.open_files import DiskThreads
from gateway.tiers.pieces import Pieces
from gateway.tiers.protocol import InstantReader, SpanReader, TierName
from gateway.tiers.staging import SpanWriter

__all__ = ["DiskTier", "DiskUsage", "Landing", "SpanWriter"]

_LOOK_SECONDS = 2.0
# Memory that fills receive into, of the whole node.
_PIECES_BYTES = 256 * 1024**2
_PIECE_BYTES = 1024**2

log = structlog.get_logger()


class DiskUsage(Struct, frozen=True, kw_only=True):
    """What the cache holds now. `degraded`: why nothing is taken in, None while all is well.
    `evicted_bytes`: what has gone to make room since the tier was built."""

    bytes: int
    capacity_bytes: int
    chunks: int
    shards: int
    objects: int
    degraded: Reason | None
    evicted_bytes: int


class HoldingObserver(Protocol):
    """Hears of what the disk holds, as its index has it. Called on the event loop; must be quick,
    and must not raise."""

    def opened(self, index: HeldIndex) -> None:
        """The folder is open and holds what the index says, over restarts."""
        ...

    def changed(self, table: Table, key: bytes, before: bytes | None, now: bytes | None) -> None:
        """A chunk or small object came, was replaced, or went; of each its record in the index."""
        ...

    def closed(self) -> None:
        """The disk is gone, and all that was on it."""
        ...


class DiskTier:
    """The cache on this node's disk. One event loop; `start` before anything else.

    `on_index` is told which file is the index while what it says of objects can be believed by
    other processes, and None before it no longer can. `observer` hears of what is held.
    """

    def __init__(
        self,
        config: CacheConfig,
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.monotonic,
        look_seconds: float = _LOOK_SECONDS,
        on_index: Callable[[Path | None], None] = lambda _: None,
        observer: HoldingObserver | None = None,
    ) -> None:
        self._config = config
        self._observer = observer
        self._on_index = on_index
        self._metrics = metrics
        self._now = now
        self._look_seconds = look_seconds
        self._health = Health(metrics)
        self._threads = DiskThreads()
        self._pieces = Pieces(_PIECES_BYTES, min(_PIECE_BYTES, int(config.chunk_size)))
        self._holding: Holding | None = None
        self._heads: Heads | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._lost: str | None = None
        self._beside_bytes = 0
        # By folders that are not open any more.
        self._evicted_before_bytes = 0

    @property
    def name(self) -> TierName:
        return "disk"

    @property
    def accepting(self) -> bool:
        """Whether bytes are taken in; False means: pass through."""
        return self._holding is not None and self._health.reason is None

    async def start(self) -> None:
        """Recovers what is held. ConfigError where another process uses the folder; a disk that
        cannot be used is no error: the tier is degraded and keeps trying."""
        self._metrics.cache_capacity_bytes.set(self._config.capacity)
        await self._attach(blind=False)
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Writes what waits in memory. Nothing may be read or written afterwards, so what the
        index says stays true."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._let_go_of_folder()
        self._threads.close()

    # Bytes
    def holds(self, span: Span) -> bool:
        """Whether a small object or a chunk is here."""
        holding = self._holding
        if holding is None:
            return False
        return holding.small.holds(span) if self.is_small(span) else holding.chunks.holds(span)

    def open_now(self, span: Span) -> InstantReader | None:
        """As `open`, without waiting: None where it is not held here or would need a thread."""
        holding = self._holding
        if holding is None:
            return None
        if self.is_small(span):
            return holding.small.open_now(span)
        return holding.chunks.open_now(span)

    async def open(self, span: Span) -> SpanReader | None:
        """A reader of a small object or a chunk, or None where it is not held here."""
        holding = self._holding
        if holding is None:
            return None
        if self.is_small(span):
            return await holding.small.open(span)
        return await holding.chunks.open(span)

    def note(self, notes: Notes) -> None:
        """Takes in what another process of the node read here (`HeldDisk.take_notes`): it counts as
        read, and what was found corrupt is dropped."""
        if self._holding is not None:
            self._holding.note(notes)

    async def begin(self, size_bytes: int) -> SpanWriter:
        """A growing chunk file with room for `size_bytes`. TierFull, TierUnavailable."""
        holding = self._accepting()
        try:
            return await holding.staging.begin(size_bytes)
        except (TierFull, TierUnavailable) as error:
            self._unkept(error)
            raise

    async def land(self, size_bytes: int) -> Landing:
        """A chunk of `size_bytes` that is to come in by a fill. TierFull, TierUnavailable."""
        holding = self._accepting()
        try:
            return await land(holding.staging, self._pieces, size_bytes)
        except (TierFull, TierUnavailable) as error:
            self._unkept(error)
            raise

    async def keep(self, span: Span, data: bytes) -> None:
        """Keeps a whole small object; nothing where it is held. TierFull, TierUnavailable."""
        if not self.is_small(span) or len(data) != span.size_bytes:
            raise ValueError("not a whole small object")
        holding = self._accepting()
        try:
            await holding.small.keep(span, data)
        except (TierFull, TierUnavailable) as error:
            self._unkept(error)
            raise

    # What is known of objects
    async def remember(self, ref: ObjectRef, info: ObjectInfo) -> None:
        """Remembers what an object is, over restarts, and lets go of the version it replaces."""
        if self._heads is not None:
            self._heads.remember(ref, info, takes_in=self._health.reason is None)

    def recall(self, ref: ObjectRef) -> ObjectInfo | None:
        """What was last remembered of the object; None where nothing is."""
        return self._heads.recall(ref) if self._heads is not None else None

    async def forget(self, ref: ObjectRef) -> None:
        """Forgets a key in all its version ids and lets go of what is held of them. On return it
        is forgotten for good: by whoever starts with this folder if the process dies now, and by
        those who read its index as long as `on_index` lets them."""
        if self._heads is not None and not await self._heads.forget(ref):
            await self._distrust()

    async def forget_heads(self, origin: str, bucket: str) -> None:
        """Forgets what is remembered of a bucket's objects, but keeps their bytes: whatever is
        current is asked anew. As `forget`, for good."""
        if self._heads is not None and not await self._heads.forget_bucket(origin, bucket):
            await self._distrust()

    async def _distrust(self) -> None:
        """What was to be forgotten could not be written down: nothing in the index is believed."""
        holding = self._holding
        self._on_index(None)
        if holding is not None:
            await self._threads.write(holding.folder.distrust)

    def take_beside(self, size_bytes: int) -> None:
        """So many bytes in all lie in the folder that are not the cache's to evict, and count."""
        before, self._beside_bytes = self._beside_bytes, size_bytes
        if self._holding is not None:
            self._holding.room.take(size_bytes - before)

    # Looking in from outside
    def usage(self) -> DiskUsage:
        """What is held now."""
        holding = self._holding
        return DiskUsage(
            bytes=holding.room.used_bytes if holding else 0,
            capacity_bytes=self._config.capacity,
            chunks=len(holding.policy) - holding.small.sealed if holding else 0,
            shards=holding.small.shards if holding else 0,
            objects=holding.index.entries(Table.OBJECTS) if holding else 0,
            degraded=self._health.reason,
            evicted_bytes=self._evicted_before_bytes
            + (holding.room.evicted_bytes if holding else 0),
        )

    async def held_bytes(self, origin: str, bucket: str, prefix: str) -> int:
        """Object bytes held of the keys with that prefix; reads the whole index, in a thread."""
        holding = self._holding
        if holding is None:
            return 0
        return await holding.held_bytes(origin, bucket, prefix)

    async def held_by_folder(self) -> dict[Counter, int]:
        """Object bytes held by the folder their keys are counted under, packs' files under their
        packs; reads the whole index, in a thread."""
        holding = self._holding
        return {} if holding is None else await holding.held_by_folder()

    async def held(self, limit: int) -> AsyncIterator[list[Span]]:
        """Everything that is held, `limit` at a time; what comes and goes meanwhile may be among it
        or not. Ends early where the disk is lost."""
        holding = self._holding
        if holding is None:
            return
        await holding.small.log.flush()
        await holding.index.flush()
        chunk_bytes = int(self._config.chunk_size)
        for table, read in ((Table.CHUNKS, chunk_span), (Table.SMALL, small_span)):
            passed: bytes | None = b""
            while passed is not None:
                try:
                    entries, passed = await holding.index.walk(table, passed, limit)
                except IndexLost:
                    return
                found = (read(key, raw, chunk_bytes) for key, raw in entries)
                yield [each for each in found if each is not None]

    def is_small(self, span: Span) -> bool:
        """Whether it is a whole small object."""
        return span.version.size_bytes <= self._config.small_object_limit

    def _accepting(self) -> Holding:
        if self._holding is None or self._health.reason is not None:
            error = TierUnavailable(f"the cache disk takes nothing in: {self._health.reason}")
            self._unkept(error)
            raise error
        return self._holding

    def _unkept(self, error: TierFull | TierUnavailable) -> None:
        full = isinstance(error, TierFull)
        self._metrics.cache_unkept.labels("full" if full else "degraded").inc()

    # The disk coming and going
    async def _attach(self, *, blind: bool) -> None:
        """Opens the folder and recovers. `blind`: there was a time when nothing could be noted."""
        folder: Folder | None = None
        try:
            folder = await self._threads.write(
                Folder, self._config.path, int(self._config.chunk_size)
            )
            index, found = await self._threads.write(self._open_index, folder, blind)
            holding = Holding(
                self._config,
                folder,
                index,
                found,
                self._threads,
                self._metrics,
                lambda error: self._failed(holding, error),
                self._now,
            )
            self._holding = holding
            self._heads = Heads(holding, self._config.small_object_limit)
            holding.room.take(self._beside_bytes)
            await holding.room.shrink()
            if not await index.flush():
                await self._detach()
                return
            await self._threads.write(folder.begin_session)
        except (OSError, FeedrackError) as error:
            if self._holding is not None:
                await self._detach()
            elif folder is not None:
                await self._threads.write(folder.close)
            if isinstance(error, ConfigError) and not blind:
                raise
            self._health.failed(
                reason_at(error, self._config.path) if isinstance(error, OSError) else "io-error",
                str(error),
            )
            return
        self._health.recovered()
        self._on_index(folder.index_path)
        if self._observer is not None:
            index.observe(self._observer.changed)
            self._observer.opened(index)
        log.info("cache open", path=str(self._config.path), bytes=holding.room.used_bytes)

    def _open_index(self, folder: Folder, blind: bool) -> tuple[HeldIndex, Found]:
        if not folder.index_is_sound():
            folder.start_over()
        try:
            return self._read_index(folder, blind)
        except lmdb.Error as error:
            failure = translated(error, folder.index_path)
            if isinstance(failure, OSError) and failure.errno != errno.EIO:
                raise failure from error
            log.exception("index unusable: starting empty")
            folder.start_over()
            return self._read_index(folder, blind)

    def _read_index(self, folder: Folder, blind: bool) -> tuple[HeldIndex, Found]:
        index = HeldIndex(folder.index_path, Sizes(self._config).index_bytes)
        try:
            if blind or not folder.trusted:
                index.clear(Table.OBJECTS)
            found = recover(folder, index)
        except BaseException:
            index.abandon()
            raise
        self._metrics.cache_corrupt.inc(index.damaged)
        return index, found

    async def _detach(self) -> None:
        # From here on writes are not noted in the index.
        self._on_index(None)
        if self._observer is not None and self._holding is not None:
            self._observer.closed()
        await self._let_go_of_folder()

    async def _let_go_of_folder(self) -> None:
        holding, self._holding, self._heads = self._holding, None, None
        if holding is None:
            return
        self._evicted_before_bytes += holding.room.evicted_bytes
        whole = await holding.close()
        if not whole:
            await self._threads.write(holding.folder.distrust)
        try:
            await self._threads.write(lambda: holding.folder.close(clean=whole))
        except OSError as error:
            log.warning("the cache's session could not be ended", reason=str(error))
        self._metrics.cache_bytes.set(0)

    def _failed(self, holding: Holding, error: OSError | IndexLost) -> None:
        if holding is not self._holding:
            return
        if isinstance(error, IndexLost):
            self._lost = str(error)
            self._health.failed("io-error", str(error))
        else:
            self._health.failed(reason_at(error, self._config.path), str(error))
        self._look_now.set()

    async def _look(self) -> None:
        """Watches over the disk for as long as the tier is open."""
        while True:
            try:
                async with asyncio.timeout(self._look_seconds):
                    await self._look_now.wait()
            except TimeoutError:
                await self._look_after()
            else:
                self._look_now.clear()
                await self._look_closer()

    async def _look_closer(self) -> None:
        """Something failed just now: is the folder still there, is the index still good?"""
        holding = self._holding
        if holding is None:
            return
        if self._lost is not None:
            log.error("cache starts empty", reason=self._lost)
            self._lost = None
            await self._detach()
            await self._threads.write(self._remove_index, holding.folder)
            await self._attach(blind=True)
        elif not await self._threads.read(holding.folder.is_there):
            self._health.failed("missing", f"{self._config.path} is not there any more")
            await self._detach()

    def _remove_index(self, folder: Folder) -> None:
        try:
            folder.remove_index()
        except OSError:
            log.exception("the index cannot be removed")

    async def _look_after(self) -> None:
        await self._look_closer()
        holding = self._holding
        if holding is None:
            await self._attach(blind=True)
            return
        if self._health.reason == "full":
            holding.files.close_idle()
        try:
            if self._health.reason is not None:
                await self._threads.write(holding.folder.probe)
            await self._threads.write(holding.folder.beat)
            await holding.index.clear_dead_readers()
        except OSError as error:
            self._health.failed(reason_at(error, self._config.path), str(error))
            return
        if self._health.reason is not None and await holding.index.flush():
            self._health.recovered()
            self._on_index(holding.folder.index_path)
