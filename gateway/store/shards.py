"""Packed objects out of shards: from the shard on this disk, from one on its way in, or from a cold
one, of which the object alone or the whole is fetched as `Packs.wants_whole` says.

A shard is one span as large as its file; an object is a stretch of it. The disk vouches for what
came in, not for what lay at the origin: an object is held against its checksum when it is first
read out of a shard. One that fails is fetched by itself from then on.
"""

from collections import OrderedDict
from collections.abc import Callable

import xxhash

from gateway.errors import Corrupt
from gateway.model.objects import Span
from gateway.store.fill import Filler, FollowingReader
from gateway.telemetry.metrics import Metrics
from gateway.tiers.chunk_reading import ChunkReader
from gateway.tiers.disk import DiskTier
from gateway.tiers.packed.appetite import comes_soon
from gateway.tiers.protocol import (
    FileRegion,
    InstantReader,
    PackedAt,
    Packs,
    Source,
    SpanReader,
    TierName,
)

# Objects of which is remembered what came of it.
_MOST_JUDGED = 65_536
# Larger objects are not read through before a part of them is given.
_LARGEST_CHECK_BYTES = 16 * 1024**2
_BLOCK_BYTES = 1024**2
_REMEMBERED_BYTES = 32_768


class Judged:
    """Which objects have been held against their checksums as they lie in shards here."""

    def __init__(self) -> None:
        self._sound: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self._unsound = 0

    def sound(self, at: PackedAt) -> bool | None:
        """None where it was not looked at yet, or that was long ago."""
        return self._sound.get((at.shard.version.etag, at.offset))

    def is_unsound(self, at: PackedAt) -> bool:
        return self._unsound > 0 and self.sound(at) is False

    def tell(self, at: PackedAt, *, sound: bool) -> None:
        name = at.shard.version.etag, at.offset
        self._drop(name)
        self._sound[name] = sound
        self._unsound += not sound
        if len(self._sound) > _MOST_JUDGED:
            self._drop(next(iter(self._sound)))

    def forget(self, shard: Span) -> None:
        """The shard comes in anew."""
        for name in [name for name in self._sound if name[0] == shard.version.etag]:
            self._drop(name)

    def _drop(self, name: tuple[str, int]) -> None:
        self._unsound -= self._sound.pop(name, None) is False


class Shards:
    """Opens the spans of packed objects."""

    def __init__(self, disk: DiskTier, filler: Filler, metrics: Metrics) -> None:
        self._disk = disk
        self._filler = filler
        self._metrics = metrics
        self._judged = Judged()

    def open_now(self, at: PackedAt, span: Span) -> InstantReader | None:
        """A reader of the span out of a shard that is here, if that needs no waiting."""
        if self._judged.is_unsound(at):
            return None
        following = self._following(at, span)
        if following is not None:
            return StretchReader(following, at, span, self._judged)
        held = self._disk.open_now(at.shard)
        return StretchReader(held, at, span, self._judged) if held is not None else None

    async def open(
        self, at: PackedAt, span: Span, packs: Packs, source: Callable[[Span], Source]
    ) -> SpanReader | None:
        """A reader of the span out of a shard that is here or will be; None where the span is to be
        fetched by itself. `source`: where shards come from."""
        if self._judged.is_unsound(at):
            return None
        following = self._following(at, span)
        if following is None and self._filler.received_bytes(at.shard) is None:
            held = await self._disk.open(at.shard)
            if held is not None:
                return StretchReader(held, at, span, self._judged)
            following = self._following(at, span) or self._begun(at, packs, source)
        if following is None:
            self._metrics.packed_cold_reads.labels("range").inc()
            return None
        return StretchReader(following, at, span, self._judged)

    def _begun(
        self, at: PackedAt, packs: Packs, source: Callable[[Span], Source]
    ) -> FollowingReader | None:
        """A reader that follows the shard, which comes in from now on; None where it does not."""
        on_its_way = self._filler.received_bytes(at.shard) is not None
        if on_its_way or not self._disk.accepting or not packs.wants_whole(at):
            return None
        self._judged.forget(at.shard)
        self._metrics.packed_cold_reads.labels("shard").inc()
        return self._filler.start(at.shard, source(at.shard))

    def _following(self, at: PackedAt, span: Span) -> FollowingReader | None:
        """A reader that follows the shard as it comes in, where the span will have come soon."""
        received_bytes = self._filler.received_bytes(at.shard)
        if received_bytes is None or not comes_soon(at.offset + span.stop, received_bytes):
            return None
        return self._filler.find(at.shard)


class StretchReader:
    """Reads a packed object's span out of its shard, which may have been damaged before it came
    here: the first time all of it is held against its checksum before any of it is given."""

    def __init__(self, reader: SpanReader, at: PackedAt, span: Span, judged: Judged) -> None:
        self._reader = reader
        self._at = at
        self._judged = judged
        self._start = at.offset + span.start
        self._size_bytes = span.size_bytes
        self._wanted_from_file = False

    @property
    def tier(self) -> TierName:
        return self._reader.tier

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        block = await self._reader.read(self._start + offset, size_bytes)
        if len(block) == self._at.size_bytes:
            self._judge(xxhash.xxh3_64_intdigest(block))
        elif not self._may_give_parts():
            await self._check()
            # What was read before lies in memory that the check may have given up.
            block = await self._reader.read(self._start + offset, size_bytes)
        return block

    def read_now(self, offset: int, limit_bytes: int) -> bytes | bytearray | memoryview | None:
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        if size_bytes < self._at.size_bytes and not self._may_give_parts():
            return None
        reader = self._reader
        if (
            size_bytes == self._at.size_bytes
            and not self._wanted_from_file
            and isinstance(reader, ChunkReader)
        ):
            # Its own checksum is enough; those of blocks would have all of the blocks read.
            lying = reader.as_it_lies(self._start, size_bytes)
            if lying is not None and xxhash.xxh3_64_intdigest(lying) == self._at.checksum:
                return lying
        block = reader.read_now(self._start + offset, size_bytes)
        if block is None:
            return None
        if len(block) == self._at.size_bytes:
            self._judge(xxhash.xxh3_64_intdigest(block))
        elif not self._may_give_parts():
            return None
        return block

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        # Only blocks that were verified can be sent from the file the next time.
        self._wanted_from_file = True
        if not self._may_give_parts():
            return None
        size_bytes = min(limit_bytes, self._size_bytes - offset)
        return self._reader.region(self._start + offset, size_bytes)

    async def close(self) -> None:
        await self._reader.close()

    def release(self) -> None:
        reader = self._reader
        assert hasattr(reader, "release")  # noqa: S101 - `open_now` gives readers that can
        reader.release()

    def _may_give_parts(self) -> bool:
        return self._judged.sound(self._at) or self._at.size_bytes > _LARGEST_CHECK_BYTES

    async def _check(self) -> None:
        """Reads the whole object. Corrupt."""
        digest = xxhash.xxh3_64()
        position, stop = self._at.offset, self._at.offset + self._at.size_bytes
        while position < stop:
            block = await self._reader.read(position, min(stop - position, _BLOCK_BYTES))
            digest.update(block)
            position += len(block)
        self._judge(digest.intdigest())

    def _judge(self, checksum: int) -> None:
        if checksum != self._at.checksum:
            self._judged.tell(self._at, sound=False)
            raise Corrupt("a shard does not hold what its index says")
        # Smaller ones are read whole and checked each time: parts of them are seldom asked for.
        if self._at.size_bytes >= _REMEMBERED_BYTES and not self._judged.sound(self._at):
            self._judged.tell(self._at, sound=True)
