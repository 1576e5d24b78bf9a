"""Packed objects out of shards: from the shard on this disk, from one on its way in, or from a cold
one, of which the object alone or the whole is fetched as `Packs.wants_whole` says.

A shard is one span as large as its file; an object is a stretch of it.
"""

from typing import TypeVar

import xxhash

from gateway.errors import Corrupt
from gateway.index.records import BLOCK_BYTES
from gateway.model.objects import Span
from gateway.store.fill import Filler, FollowingReader
from gateway.telemetry.metrics import Metrics
from gateway.tiers.chunk_reading import ChunkReader
from gateway.tiers.disk import DiskTier
from gateway.tiers.packed.appetite import comes_soon
from gateway.tiers.protocol import (
    FileRegion,
    InstantReader,
    Origin,
    PackedAt,
    Packs,
    SpanReader,
    TierName,
)

Block = TypeVar("Block", bytes | memoryview, bytes | bytearray | memoryview)


class Shards:
    """Opens the spans of packed objects."""

    def __init__(self, disk: DiskTier, filler: Filler, metrics: Metrics) -> None:
        self._disk = disk
        self._filler = filler
        self._metrics = metrics

    def open_now(self, at: PackedAt, span: Span) -> InstantReader | None:
        """A reader of the span out of a shard that is here, if that needs no waiting."""
        following = self._following(at, span)
        if following is not None:
            return StretchReader(following, at, span)
        held = self._disk.open_now(at.shard)
        return StretchReader(held, at, span) if held is not None else None

    async def open(
        self, at: PackedAt, span: Span, packs: Packs, origin: Origin
    ) -> SpanReader | None:
        """A reader of the span out of a shard that is here or will be; None where the span is to be
        fetched by itself."""
        following = self._following(at, span)
        if following is None and self._filler.received_bytes(at.shard) is None:
            held = await self._disk.open(at.shard)
            if held is not None:
                return StretchReader(held, at, span)
            following = self._following(at, span) or self._begun(at, packs, origin)
        if following is None:
            self._metrics.packed_cold_reads.labels("range").inc()
            return None
        return StretchReader(following, at, span)

    def _begun(self, at: PackedAt, packs: Packs, origin: Origin) -> FollowingReader | None:
        """A reader that follows the shard, which comes in from now on; None where it does not."""
        on_its_way = self._filler.received_bytes(at.shard) is not None
        if on_its_way or not self._disk.accepting or not packs.wants_whole(at):
            return None
        self._metrics.packed_cold_reads.labels("shard").inc()
        return self._filler.start(at.shard, origin)

    def _following(self, at: PackedAt, span: Span) -> FollowingReader | None:
        """A reader that follows the shard as it comes in, where the span will have come soon."""
        received_bytes = self._filler.received_bytes(at.shard)
        if received_bytes is None or not comes_soon(at.offset + span.stop, received_bytes):
            return None
        return self._filler.find(at.shard)


class StretchReader:
    """Reads a packed object's span out of its shard. Read as a whole it is held against its
    checksum: a shard may have been damaged before it came here."""

    def __init__(self, reader: SpanReader, at: PackedAt, span: Span) -> None:
        self._reader = reader
        self._at = at
        self._start = at.offset + span.start
        self._size_bytes = span.size_bytes

    @property
    def tier(self) -> TierName:
        return self._reader.tier

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        return self._checked(await self._reader.read(self._start + offset, size_bytes))

    def read_now(self, offset: int, limit_bytes: int) -> bytes | bytearray | memoryview | None:
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        reader = self._reader
        if size_bytes == self._at.size_bytes < BLOCK_BYTES and isinstance(reader, ChunkReader):
            # Its own checksum is enough; that of a block would have all of the block read.
            lying = reader.as_it_lies(self._start, size_bytes)
            if lying is not None and xxhash.xxh3_64_intdigest(lying) == self._at.checksum:
                return lying
        block = reader.read_now(self._start + offset, size_bytes)
        return None if block is None else self._checked(block)

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        return self._reader.region(self._start + offset, size_bytes)

    async def close(self) -> None:
        await self._reader.close()

    def release(self) -> None:
        reader = self._reader
        assert hasattr(reader, "release")  # noqa: S101 - `open_now` gives readers that can
        reader.release()

    def _checked(self, block: Block) -> Block:
        whole = len(block) == self._at.size_bytes
        if whole and xxhash.xxh3_64_intdigest(block) != self._at.checksum:
            raise Corrupt("a shard does not hold what its index says")
        return block
