"""What this node gives to other nodes: bytes of spans, and what it knows of keys.

It behaves as it is asked, whatever it takes itself for: as its rack's home, as the first home, or
only as one that may hold something (`tiers/peers/asking.py`). What comes in for others is kept.
"""

from contextlib import suppress

import msgspec
from msgspec import Struct

from gateway.errors import Corrupt, FeedrackError, VersionChanged
from gateway.model.objects import ObjectInfo, ObjectRef, Span, known_object
from gateway.model.ranges import ByteRange, span
from gateway.store.buckets import Bucket
from gateway.store.learned import Learned
from gateway.store.reads import Reads
from gateway.tiers.peers.asking import HeadQuestion, SpanQuestion, WrongQuestionError
from gateway.tiers.peers.near import Role
from gateway.tiers.peers.source import NearSource
from gateway.tiers.protocol import SpanReader, TierName

_RESTARTS = 3
_BLOCK_BYTES = 262_144
_FILES_FROM_BYTES = 65_536


class NotHeld(FeedrackError):  # noqa: N818 - an answer, as its kind in gateway.errors
    """It is not here, or would come from whoever asks."""


class Given(Struct):
    """Bytes `offset` to `until` of a span, the first block read already. Close the reader."""

    reader: SpanReader
    offset: int
    until: int
    block: bytes | bytearray | memoryview
    tier: TierName


class GivenHead(Struct):
    """What a key holds, how long ago the origin said so, and the object if that was asked for."""

    info: ObjectInfo
    age_seconds: float
    tier: TierName
    bytes: Given | None


class Giving(Reads):
    """The peers' side of the object service."""

    async def give(self, question: SpanQuestion, asker: str) -> Given:
        """Bytes of a span. WrongQuestionError, NotHeld, VersionChanged, TierUnavailable, TierFull,
        Corrupt, S3Errors of the origin."""
        wanted = question.span
        if not self._is_span(wanted):
            raise WrongQuestionError("no chunk, shard or small object as this node has them")
        offset, until = question.offset, question.until
        held = await self._disk.open(wanted)
        if held is not None:
            # Before anything that may need the origin; what is corrupt was dropped, and comes anew.
            with suppress(Corrupt):
                return await _begun(held, offset, until)
        bucket = await self._bucket_of(wanted.version.ref)
        if question.level == "held":
            return await _begun(await self._held_here(bucket, wanted), offset, until)
        if question.level == "partial":
            return await self._partial(wanted, offset, until)
        self._check_leaning(question, asker)
        reader = await self._open(bucket, wanted, offset, until, question.level)
        fill = self._filler.under_way_of(wanted)
        if question.have and fill is not None and isinstance(fill.source, NearSource):
            fill.source.offer(asker, question.have)
        try:
            return await _begun(reader, offset, until)
        except VersionChanged:
            self._versions.forget(wanted.version.ref)
            raise

    async def give_head(self, question: HeadQuestion) -> GivenHead:
        """What a key holds. NotHeld, S3Errors of the origin, TierUnavailable."""
        ref = question.ref
        if question.level == "held":
            return await self._head_held_here(question)
        role: Role = "rack" if question.level == "rack" else "cluster"
        bucket = _as_fresh(self._buckets.behind(ref.origin, ref.bucket), question.freshness_seconds)
        for attempt in range(_RESTARTS):
            learned = await self._known_or_asked(bucket, question, role)
            info = learned.info
            given = None
            if 0 < info.size_bytes <= question.first and info.cacheable:
                first = span(known_object(ref, info).version, 0, self._cache.chunk_size)
                reader = await self._open(bucket, first, 0, first.size_bytes, role)
                try:
                    given = await _begun(reader, 0, first.size_bytes)
                except VersionChanged:
                    self._versions.forget(ref)
                    if attempt < _RESTARTS - 1:
                        continue
                    raise
            tier = learned.tier
            if tier == "disk" and given is not None:
                tier = given.tier
            age_seconds = max(0.0, self._versions.now() - learned.since)
            return GivenHead(info, age_seconds, tier, given)
        raise AssertionError("unreachable")

    async def _head_held_here(self, question: HeadQuestion) -> GivenHead:
        """As `give_head`, from memory and disk alone."""
        ref = question.ref
        known = self._aged(ref, question.freshness_seconds, checksums=question.checksums)
        if known is None:
            raise NotHeld
        info, age_seconds = known
        given = None
        if 0 < info.size_bytes <= question.first and info.cacheable:
            first = span(known_object(ref, info).version, 0, self._cache.chunk_size)
            reader = await self._held_here(await self._bucket_of(ref), first)
            given = await _begun(reader, 0, first.size_bytes)
        return GivenHead(info, age_seconds, given.tier if given is not None else "disk", given)

    def _aged(
        self, ref: ObjectRef, freshness_seconds: float | None, *, checksums: bool
    ) -> tuple[ObjectInfo, float] | None:
        """What may be believed of a key, and how old that is."""
        known = self._versions.aged(ref, freshness_seconds)
        if known is None or (checksums and not known[0].checksums_known):
            return None
        return known

    async def _known_or_asked(self, bucket: Bucket, question: HeadQuestion, role: Role) -> Learned:
        ref, checksums = question.ref, question.checksums
        freshness = None if bucket.immutable else bucket.freshness_seconds
        known = self._aged(ref, freshness, checksums=checksums)
        if known is not None:
            info, age_seconds = known
            return Learned(info, self._versions.now() - age_seconds, "disk")
        await self._bucket_of(ref)
        if question.first and self._nothing_kept(bucket, ref):
            return await self._open_unknown(bucket, ref, checksums=checksums, role=role)
        return await self._ask(bucket, ref, checksums=checksums, role=role)

    async def _bucket_of(self, ref: ObjectRef) -> Bucket:
        bucket = self._buckets.behind(ref.origin, ref.bucket)
        if bucket.packs is not None:
            await bucket.packs.discover(bucket.origin_bucket)
        return bucket

    async def _open(
        self, bucket: Bucket, wanted: Span, offset: int, until: int, role: Role
    ) -> SpanReader:
        stretch = ByteRange(wanted.start + offset, wanted.start + until)
        opener = self._opener(bucket, wanted.version, stretch, cacheable=True, role=role)
        return opener.open_now(wanted) or await opener.open(wanted, direct=False)

    async def _held_here(self, bucket: Bucket, wanted: Span) -> SpanReader:
        held = await self._disk.open(wanted)
        if held is not None:
            return held
        at = bucket.packs.where(wanted.version) if bucket.packs is not None else None
        stretch = self._shards.open_now(at, wanted) if at is not None else None
        if stretch is not None:
            return stretch
        fill = self._filler.under_way_of(wanted)
        # One that waits for another node may, in the end, wait for whoever asks.
        if fill is not None and fill.source is not None and fill.source.at_origin:
            following = self._filler.find(wanted)
            if following is not None:
                return following
        raise NotHeld

    async def _partial(self, wanted: Span, offset: int, until: int) -> Given:
        received_bytes = self._filler.received_bytes(wanted)
        reader: SpanReader | None
        if received_bytes is None:
            reader = await self._disk.open(wanted)
        else:
            reader = self._filler.find(wanted)
            until = min(until, received_bytes)
        if reader is None:
            raise NotHeld
        if until <= offset:
            await reader.close()
            raise NotHeld
        return await _begun(reader, offset, until)

    def _check_leaning(self, question: SpanQuestion, asker: str) -> None:
        """Two nodes whose views of the members differ might wait for each other's fills: whoever
        would close the circle is told to go on. Where both close it at one moment both go on, and
        the origin is asked twice."""
        fill = self._filler.under_way_of(question.span)
        if fill is None or not isinstance(fill.source, NearSource):
            return
        if fill.source.leans_on == asker:
            raise NotHeld

    def _is_span(self, wanted: Span) -> bool:
        """Whether it is cut as spans are here; a shard of a pack is one, however large."""
        whole = not wanted.number and not wanted.start and wanted.stop == wanted.version.size_bytes
        return whole or wanted == span(wanted.version, wanted.number, self._cache.chunk_size)


async def _begun(reader: SpanReader, offset: int, until: int) -> Given:
    """Reads the first block, so that what goes wrong until then is still an answer."""
    limit_bytes = min(until - offset, _BLOCK_BYTES)
    try:
        if limit_bytes >= _FILES_FROM_BYTES and reader.region(offset, limit_bytes) is not None:
            # Verified, and at hand: read by the kernel when it is sent.
            return Given(reader, offset, until, b"", reader.tier)
        block: bytes | bytearray | memoryview | None
        block = reader.read_now(offset, limit_bytes)
        if block is None:
            block = await reader.read(offset, limit_bytes)
    except BaseException:
        await reader.close()
        raise
    return Given(reader, offset, until, block, reader.tier)


def _as_fresh(bucket: Bucket, freshness_seconds: float | None) -> Bucket:
    """The bucket with what the asker takes for fresh; nothing is believed for ever that this node
    does not let go of when it is written."""
    immutable = freshness_seconds is None and bucket.immutable_to_some
    return msgspec.structs.replace(
        bucket,
        immutable=immutable,
        freshness_seconds=float("inf") if freshness_seconds is None else freshness_seconds,
    )
