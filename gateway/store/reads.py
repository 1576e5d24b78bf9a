"""GetObject and HeadObject: find the version to answer with, then the nearest bytes of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway.errors import NoSuchKey, VersionChanged
from gateway.model.conditions import UNCONDITIONAL, Conditions, check_read
from gateway.model.objects import (
    KnownObject,
    ObjectInfo,
    ObjectRef,
    ObjectVersion,
    PartSpan,
    Span,
    known_object,
)
from gateway.model.ranges import ByteRange, RangeSpec, span
from gateway.store.ahead import Ahead
from gateway.store.buckets import Bucket
from gateway.store.core import Core
from gateway.store.direct import DirectReader
from gateway.store.fill import Filler, FollowingReader
from gateway.store.held import HeldReads, choose
from gateway.store.reading import ReadAnswer, SpanSource
from gateway.store.shards import Shards
from gateway.store.versions import Ticket
from gateway.tiers.disk import DiskTier
from gateway.tiers.protocol import InstantReader, SpanReader, TierName

T = TypeVar("T")

# How often a read starts over because the object changed before its first byte was found.
_RESTARTS = 3


class _Look(Struct, frozen=True):
    """The version to answer with, the part asked for, and what it took to know.

    `brought`: the origin was asked for bytes, so the answer's first one comes from there even if
    the disk has it by the time it is read.
    """

    known: KnownObject
    tier: TierName
    part: PartSpan | None = None
    brought: bool = False

    @property
    def info(self) -> ObjectInfo:
        return self.known.info


class Reads(Core):
    """The reading half of the object service."""

    def __init__(self, **collaborators: Any) -> None:
        super().__init__(**collaborators)
        self._shards = Shards(self._disk, self._filler, self._filler.metrics)
        self._questions: dict[tuple[object, ...], asyncio.Task[Any]] = {}
        self.held = HeldReads(
            self._believed,
            self._disk.holds,
            self._source,
            chunk_size_bytes=self._cache.chunk_size,
        )

    async def close(self) -> None:
        questions = list(self._questions.values())
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)
        await super().close()

    async def head(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        wanted: RangeSpec | None = None,
        part_number: int | None = None,
        conditions: Conditions = UNCONDITIONAL,
        checksums: bool = False,
    ) -> ReadAnswer:
        """What `get` would answer, without the bytes. Errors as `get`."""
        where = self.bucket(bucket)
        ref = where.ref(key, version_id)
        look = await self._look(where, ref, part_number, checksums=checksums)
        check_read(conditions, look.info)
        chosen, partial = choose(look.info, wanted, look.part)
        return ReadAnswer(look.info, chosen, partial=partial, part=look.part, tier=look.tier)

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        wanted: RangeSpec | None = None,
        part_number: int | None = None,
        conditions: Conditions = UNCONDITIONAL,
        checksums: bool = False,
    ) -> ReadAnswer:
        """One version's bytes. `checksums`: the answer should carry those of the whole object.

        Raises NoSuchKey, NoSuchVersion, InvalidRange, InvalidPartNumber, NotModified,
        PreconditionFailed and TierUnavailable.
        """
        where = self.bucket(bucket)
        ref = where.ref(key, version_id)
        # A whole read of a key nobody has asked about begins with its bytes: one request to the
        # origin instead of two. Everything else needs to know the object first.
        by_bytes = not conditions and part_number is None and self._reaches_first_chunk(wanted)
        whole = wanted is None and part_number is None
        for attempt in range(_RESTARTS):
            look = await self._look(
                where, ref, part_number, checksums=checksums and whole, by_bytes=by_bytes
            )
            info, part = look.info, look.part
            check_read(conditions, info)
            chosen, partial = choose(info, wanted, part)
            if not chosen.size_bytes:
                return ReadAnswer(info, chosen, partial=partial, part=part, tier=look.tier)
            source = self._source(where, look.known, chosen, brought=look.brought)
            try:
                first = await source.begin()
            except BaseException as error:
                await source.close()
                # Written past us since we last looked, and nothing is sent yet: look again.
                if isinstance(error, VersionChanged) and attempt < _RESTARTS - 1:
                    continue
                raise
            return ReadAnswer(info, chosen, partial=partial, part=part, tier=first, source=source)
        raise AssertionError("unreachable")

    def _reaches_first_chunk(self, wanted: RangeSpec | None) -> bool:
        if wanted is None:
            return True
        return wanted.first is not None and wanted.first < self._cache.chunk_size

    async def _look(
        self,
        bucket: Bucket,
        ref: ObjectRef,
        part_number: int | None,
        *,
        checksums: bool,
        by_bytes: bool = False,
    ) -> _Look:
        if part_number is not None:
            info, part = await bucket.origin.part_span(ref, part_number)
            return _Look(known_object(ref, info), "origin", part)
        known = self._believed(bucket, ref)
        packs = bucket.packs if known is None else None
        # Before the origin is asked for bytes that a pack may have.
        if packs is not None and await packs.discover(bucket.origin_bucket):
            known = self._believed(bucket, ref)
        if known is not None and (known.info.checksums_known or not checksums):
            return _Look(known, "disk")
        if by_bytes and known is None and self._nothing_kept(bucket, ref):
            info = await self._open_unknown(bucket, ref, checksums=checksums)
            return _Look(known_object(ref, info), "origin", brought=True)
        info = await self._ask(bucket, ref, checksums=checksums)
        return _Look(known_object(ref, info), "origin")

    def _believed(self, bucket: Bucket, ref: ObjectRef) -> KnownObject | None:
        if not self._versions.trusts:
            return None
        freshness = None if bucket.immutable else bucket.freshness_seconds
        known = self._versions.believed(ref, freshness)
        if known is None and not self._versions.generation(ref):
            info = bucket.packs.known(ref, freshness) if bucket.packs is not None else None
            if info is None and bucket.immutable:
                info = self._disk.recall(ref)
            known = known_object(ref, info) if info is not None else None
        return known

    def _nothing_kept(self, bucket: Bucket, ref: ObjectRef) -> bool:
        """Whether the bytes must come from the origin in any case."""
        return (
            bucket.freshness_seconds > 0
            and self._disk.accepting
            and not self._versions.is_kept(ref)
            and self._disk.recall(ref) is None
            and not (bucket.packs is not None and bucket.packs.has(ref))
        )

    async def _ask(self, bucket: Bucket, ref: ObjectRef, *, checksums: bool) -> ObjectInfo:
        """Asks the origin what the key holds now; askers of one moment share the answer."""

        async def ask(ticket: Ticket) -> ObjectInfo:
            info = await bucket.origin.head(ref, checksums=checksums)
            if self._versions.learn(ticket, info):
                self._remember_on_disk(ref, info)
            return info

        if not bucket.immutable and bucket.freshness_seconds == 0:
            # "Ask always" means since this request came in: no sharing with an earlier question.
            ticket = self._versions.begin_read(ref)
            try:
                return await ask(ticket)
            finally:
                self._versions.end_read(ticket)
        return await self._share(ref, "head with checksums" if checksums else "head", ask)

    async def _open_unknown(self, bucket: Bucket, ref: ObjectRef, *, checksums: bool) -> ObjectInfo:
        """Learns what the key holds from the answer that already brings its first chunk."""

        async def open_first(ticket: Ticket) -> ObjectInfo:
            opened = await bucket.origin.open(ref, wanted=ByteRange(0, self._cache.chunk_size))
            info = opened.info
            version = ObjectVersion(ref, info.etag, info.size_bytes)
            first = span(version, 0, self._cache.chunk_size)
            if info.cacheable and info.size_bytes and self._filler.find(first) is None:
                self._filler.start(first, bucket.origin, opened)
            else:
                await opened.close()
            if self._versions.learn(ticket, info):
                self._remember_on_disk(ref, info)
            return info

        if not checksums or not bucket.origin.relays:
            return await self._share(ref, "open", open_first)
        # S3 leaves checksums out of ranged answers: ask for them meanwhile, not afterwards.
        ticket = self._versions.begin_read(ref)
        asking = asyncio.create_task(bucket.origin.head(ref, checksums=True))
        try:
            info = await self._share(ref, "open", open_first)
            if not info.checksums_known:
                info = _with_checksums(info, await asking)
                if self._versions.learn(ticket, info):
                    self._remember_on_disk(ref, info)
            return info
        finally:
            self._versions.end_read(ticket)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _share(
        self, ref: ObjectRef, what: str, ask: Callable[[Ticket], Coroutine[Any, Any, T]]
    ) -> T:
        """One task answers all who ask the same now; an asker that leaves cancels nothing."""
        question = (what, ref, self._versions.generation(ref))
        task: asyncio.Task[T] | None = self._questions.get(question)
        if task is None:
            # Drawn before the task first runs: a generation counts from there on only while
            # somebody holds a ticket, and this one must not come again as long as it is asked.
            ticket = self._versions.begin_read(ref)
            task = asyncio.create_task(ask(ticket))
            self._questions[question] = task

            def over(done: asyncio.Task[T]) -> None:
                del self._questions[question]
                self._versions.end_read(ticket)
                # Where every asker has left, nobody else would collect its exception.
                done.cancelled() or done.exception()

            task.add_done_callback(over)
        return await asyncio.shield(task)

    async def held_bytes(self, bucket: str, prefix: str) -> int:
        """Bytes that this node holds of the objects under a prefix, by themselves or in shards.
        NoSuchBucket."""
        where = self.bucket(bucket)
        held = await self._disk.held_bytes(where.origin.name, where.origin_bucket, prefix)
        if where.packs is not None:
            held += await where.packs.held_bytes(where.origin_bucket, prefix, self._disk.holds)
        return held

    async def pack_roots(self, bucket: str, prefix: str) -> tuple[str, ...] | None:
        """Where the packs that lie under a prefix have their files; None where some pack has keys
        beside those of the prefix. NoSuchBucket, TierUnavailable."""
        where = self.bucket(bucket)
        if where.packs is None:
            return ()
        await where.packs.discover(where.origin_bucket)
        return where.packs.roots(where.origin_bucket, prefix)

    def remainder(self, bucket: str, version: ObjectVersion, wanted: ByteRange) -> SpanSource:
        """Bytes of a version that another process of the node has begun to answer with, from
        wherever they are. NoSuchBucket, and NoSuchKey where the bucket is another one here."""
        where = self.bucket(bucket)
        ref = version.ref
        if where.ref(ref.key, ref.version_id) != ref:
            raise NoSuchKey
        return SpanSource(
            version,
            wanted,
            self._opener(where, version, wanted, cacheable=True),
            chunk_size_bytes=self._cache.chunk_size,
            on_changed=lambda: self._versions.forget(ref),
        )

    def _source(
        self, bucket: Bucket, known: KnownObject, wanted: ByteRange, *, brought: bool = False
    ) -> SpanSource:
        self._filler.courtesy.read()
        return SpanSource(
            known.version,
            wanted,
            self._opener(bucket, known.version, wanted, cacheable=known.info.cacheable),
            chunk_size_bytes=self._cache.chunk_size,
            on_changed=lambda: self._versions.forget(known.version.ref),
            brought=brought,
        )

    def _opener(
        self, bucket: Bucket, version: ObjectVersion, wanted: ByteRange, *, cacheable: bool
    ) -> "_Opener":
        return _Opener(
            bucket,
            version,
            wanted,
            self._disk,
            self._filler,
            self._shards,
            self._cache.chunk_size,
            cacheable=cacheable,
        )


class _Opener:
    """Near before far: the disk, a fill under way, a new fill; the origin alone at last. A packed
    object may lie in its shard instead."""

    __slots__ = (
        "_ahead",
        "_at",
        "_bucket",
        "_cacheable",
        "_chunk_bytes",
        "_disk",
        "_filler",
        "_shards",
        "_version",
        "_wanted",
    )

    def __init__(
        self,
        bucket: Bucket,
        version: ObjectVersion,
        wanted: ByteRange,
        disk: DiskTier,
        filler: Filler,
        shards: Shards,
        chunk_bytes: int,
        *,
        cacheable: bool,
    ) -> None:
        self._bucket = bucket
        self._cacheable = cacheable
        self._version = version
        self._wanted = wanted
        self._disk = disk
        self._filler = filler
        self._shards = shards
        self._chunk_bytes = chunk_bytes
        self._ahead: Ahead | None = None
        self._at = bucket.packs.where(version) if bucket.packs is not None else None

    def open_now(self, span: Span) -> InstantReader | None:
        if self._ahead is not None:
            following = self._ahead.reader(span.number)
            if following is not None:
                return following
        held = self._disk.open_now(span)
        if held is None and self._at is not None:
            held = self._shards.open_now(self._at, span)
        return held

    async def open(self, span: Span, direct: bool) -> SpanReader:
        origin = self._bucket.origin
        stop = min(span.stop, self._wanted.stop)
        if direct or not self._cacheable:
            return DirectReader(span, origin, stop=stop)
        following = self._filler.find(span)
        if following is not None:
            return self._followed(span, following)
        kept = await self._disk.open(span)
        if kept is not None:
            return kept
        following = self._filler.find(span)
        if following is not None:
            return self._followed(span, following)
        if self._at is not None and self._bucket.packs is not None:
            stretch = await self._shards.open(self._at, span, self._bucket.packs, origin)
            if stretch is not None:
                return stretch
            following = self._filler.find(span)
            if following is not None:
                return self._followed(span, following)
        if not self._disk.accepting:
            return DirectReader(span, origin, stop=stop)
        return self._followed(span, self._filler.start(span, origin))

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _followed(self, span: Span, following: FollowingReader) -> FollowingReader:
        """What comes in is walked with an eye on what comes after it."""
        if self._ahead is None and span.stop < self._wanted.stop:
            self._ahead = Ahead(
                self._filler,
                self._bucket.origin,
                self._version,
                self._wanted,
                chunk_size_bytes=self._chunk_bytes,
            )
        if self._ahead is not None:
            self._ahead.reached(span.number, following)
        return following


def _with_checksums(info: ObjectInfo, asked: ObjectInfo) -> ObjectInfo:
    """`info` with the checksums of `asked`, if both speak of one version."""
    if asked.etag != info.etag or asked.size_bytes != info.size_bytes:
        return info
    return msgspec.structs.replace(
        info,
        checksums=asked.checksums,
        checksum_type=asked.checksum_type,
        checksums_known=asked.checksums_known,
    )
