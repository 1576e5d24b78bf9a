"""Everything that is open while the cache's folder is in use, put together and taken apart.

`recover` brings files and index into agreement after any end, however sudden: what has no entry
is removed, what has no file is forgotten. Checksums take care of the rest at the first read.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from gateway.cluster.datasets import Counter, Folders
from gateway.config import CacheConfig
from gateway.errors import TierFull, TierUnavailable
from gateway.index.held import HeldIndex, IndexLost
from gateway.index.records import (
    ChunkRecord,
    SmallRecord,
    Table,
    decode_chunk,
    decode_small,
    extent_key,
    raw_text,
    unpack_entries,
)
from gateway.model.reserved import RESERVED
from gateway.telemetry.metrics import Metrics
from gateway.tiers.chunks import ChunkStore
from gateway.tiers.eviction import Policy, Victim
from gateway.tiers.folder import Folder
from gateway.tiers.notes import Notes
from gateway.tiers.open_files import DiskThreads, OpenFiles
from gateway.tiers.regions import Regions
from gateway.tiers.room import FIXED_BYTES, Item, Room, on_disk
from gateway.tiers.small import SmallStore
from gateway.tiers.staging import Staging

_MIN_SHARD_BYTES = 4 * 1024**2
_MAX_SHARD_BYTES = 256 * 1024**2
_MIN_INDEX_BYTES = 512 * 1024
_EXTENT_ROOM_BYTES = 2 * 1024**2

Failed = Callable[[OSError | IndexLost], None]

log = structlog.get_logger()


class Sizes:
    """How a capacity is divided."""

    def __init__(self, config: CacheConfig) -> None:
        capacity = int(config.capacity)
        shard = min(max(capacity // 64, _MIN_SHARD_BYTES), _MAX_SHARD_BYTES, capacity // 16)
        self.shard_bytes = max(shard, int(config.small_object_limit) + 65_536)
        extent = max(min(_EXTENT_ROOM_BYTES, self.shard_bytes // 2), int(config.small_object_limit))
        self.headroom_bytes = self.shard_bytes // 2 + extent + 65_536
        self.index_bytes = max(capacity // 8, _MIN_INDEX_BYTES)


class Found:
    """What a start found in the folder: keys and sizes, chunks the oldest first."""

    def __init__(self) -> None:
        self.chunks: list[tuple[bytes, int]] = []
        self.shards: dict[int, int] = {}
        self.stale: list[tuple[Table, bytes]] = []


class Holding:
    """The open cache. Built by `Holding.open`; everything runs on one event loop."""

    def __init__(
        self,
        config: CacheConfig,
        folder: Folder,
        index: HeldIndex,
        found: Found,
        threads: DiskThreads,
        metrics: Metrics,
        failed: Failed,
        now: Callable[[], float],
    ) -> None:
        sizes = Sizes(config)
        self.folder = folder
        self.index = index
        self.policy: Policy[Item] = Policy(
            int(config.capacity) - sizes.headroom_bytes - FIXED_BYTES - index.map_bytes,
            on_spent=self._spent,
            is_bundle=lambda item: isinstance(item, int),
        )
        self.files = OpenFiles(threads)
        regions = Regions()
        self.chunks = ChunkStore(
            folder.path,
            chunk_bytes=config.chunk_size,
            index=index,
            policy=self.policy,
            files=self.files,
            regions=regions,
            threads=threads,
            metrics=metrics,
            failed=failed,
            now=now,
        )
        self.small = SmallStore(
            folder.path,
            shard_bytes=sizes.shard_bytes,
            index=index,
            policy=self.policy,
            files=self.files,
            regions=regions,
            threads=threads,
            metrics=metrics,
            failed=failed,
            shards=found.shards,
        )
        self.room = Room(
            config.capacity,
            sizes.headroom_bytes,
            self.policy,
            metrics,
            pinned=self._is_read,
            evict=self._evict,
            seal=self.small.log.seal,
        )
        self.chunks.room = self.room
        self.small.use(self.room)
        self.staging = Staging(
            folder.path,
            room=self.room,
            store=self.chunks,
            files=self.files,
            threads=threads,
            failed=failed,
            metrics=metrics,
        )
        index.serve(grow=self.grow_index, on_error=failed, on_commit=self.trim_index)
        self._trimming: asyncio.Task[None] | None = None
        self._enter(found)

    async def grow_index(self, step_bytes: int) -> bool:
        """Makes room for a larger index."""
        try:
            await self.room.reserve(step_bytes)
        except (TierFull, TierUnavailable):
            return False
        self.policy.resize(self.policy.limit_bytes - step_bytes)
        return True

    def trim_index(self) -> None:
        """Lets go of entries where the index nears its limit."""
        if self._trimming is None and self.index.used_bytes() > self.index.limit_bytes:
            self._trimming = asyncio.create_task(self._trim())

    def note(self, notes: Notes) -> None:
        """Takes in what another process read here."""
        self.small.note(notes)
        self.chunks.note(notes)

    async def held_bytes(self, origin: str, bucket: str, prefix: str) -> int:
        """Object bytes held of the keys with that prefix; reads the whole index, in a thread."""
        await self.small.log.flush()
        await self.index.flush()
        total = 0
        wanted_bucket, wanted_prefix = raw_text(bucket), raw_text(prefix)
        ours = raw_text(RESERVED)

        def visit(decode: Callable[[bytes], ChunkRecord | SmallRecord], raw: bytes) -> None:
            nonlocal total
            try:
                record = decode(raw)
            except msgspec.MsgspecError:
                return
            name = record.name
            here = (name.origin, name.bucket) == (origin, wanted_bucket)
            # What is held of packs counts as the objects that are in them (`Packs.held_bytes`).
            if here and name.key.startswith(wanted_prefix) and not name.key.startswith(ours):
                total += record.size_bytes

        await self.index.scan(Table.CHUNKS, lambda _, raw: visit(decode_chunk, raw))
        await self.index.scan(Table.SMALL, lambda _, raw: visit(decode_small, raw))
        return total

    async def held_by_folder(self) -> dict[Counter, int]:
        """Bytes held by folder, packs' files among them; reads the whole index, in a thread."""
        await self.small.log.flush()
        await self.index.flush()
        folders = Folders()
        found: dict[Counter, int] = {}

        def visit(decode: Callable[[bytes], ChunkRecord | SmallRecord], raw: bytes) -> None:
            try:
                record = decode(raw)
            except msgspec.MsgspecError:
                return
            name = record.name
            counter = folders.counter(name.origin, name.bucket, name.key)
            found[counter] = found.get(counter, 0) + record.size_bytes

        await self.index.scan(Table.CHUNKS, lambda _, raw: visit(decode_chunk, raw))
        await self.index.scan(Table.SMALL, lambda _, raw: visit(decode_small, raw))
        return found

    async def close(self) -> bool:
        """Writes what waits and closes everything but the folder; whether all was written."""
        self.staging.closed = True
        await self.small.log.seal()
        if self._trimming is not None:
            await asyncio.gather(self._trimming, return_exceptions=True)
        await self.chunks.settle()
        whole = await self.index.close()
        self.files.close()
        return whole

    def _enter(self, found: Found) -> None:
        self.room.take(self.index.map_bytes)
        for shard, size_bytes in sorted(found.shards.items()):
            self.policy.add(shard, on_disk(size_bytes), main=True)
            self.room.take(on_disk(size_bytes))
        for key, size_bytes in found.chunks:
            self.policy.add(key, on_disk(size_bytes))
            self.room.take(on_disk(size_bytes))
        for table, key in found.stale:
            self.index.delete(table, key)

    async def _evict(self, victims: list[Victim[Item]]) -> None:
        for victim in victims:
            if isinstance(victim.item, int):
                await self.small.evict(victim.item, victim.size_bytes, main=victim.main)
        await self.chunks.evict([victim for victim in victims if isinstance(victim.item, bytes)])

    def _is_read(self, item: Item) -> bool:
        """Whether its file is in use: evicting it would free nothing yet."""
        return self.small.is_read(item) if isinstance(item, int) else self.chunks.is_read(item)

    def _spent(self, item: Item) -> None:
        if isinstance(item, int):
            self.small.spend(item)

    async def _trim(self) -> None:
        """Forgets an eighth of what is remembered, and evicts one shard or a few chunks."""
        doomed: list[bytes] = []
        limit = max(1, self.index.entries(Table.OBJECTS) // 8)
        try:
            await self.index.scan(Table.OBJECTS, lambda key, _: doomed.append(key), limit=limit)
            for key in doomed[:limit]:
                self.index.delete(Table.OBJECTS, key)
            await self.room.evict_some()
        except TierUnavailable as error:
            log.warning("index not trimmed", reason=str(error))
        else:
            log.info("index trimmed", forgotten=len(doomed[:limit]))
        finally:
            self._trimming = None


def recover(folder: Folder, index: HeldIndex) -> Found:
    """What is held, files and index agreeing. Blocking: for a thread, before the index is used."""
    found = Found()
    files = folder.chunks()
    entries = set(index.keys(Table.CHUNKS))
    for key in files.keys() - entries:
        folder.remove_chunk(key)
    found.stale += [(Table.CHUNKS, key) for key in entries - files.keys()]
    found.chunks = [
        (key, files[key][1])
        for key in sorted(entries & files.keys(), key=lambda key: files[key][0])
    ]
    extents: dict[int, int] = {}
    for raw in index.keys(Table.EXTENTS):
        shard = int.from_bytes(raw[:4], "big")
        extents[shard] = extents.get(shard, 0) + 1
    shards = folder.shards()
    for shard in shards.keys() - extents.keys():
        folder.remove_shard(shard)
    found.shards = {shard: size for shard, size in shards.items() if shard in extents}
    for shard in extents.keys() - shards.keys():
        for number in range(extents[shard]):
            raw_entries = index.committed(Table.EXTENTS, extent_key(shard, number)) or b""
            found.stale.append((Table.EXTENTS, extent_key(shard, number)))
            found.stale += [(Table.SMALL, entry.digest) for entry in unpack_entries(raw_entries)]
    return found
