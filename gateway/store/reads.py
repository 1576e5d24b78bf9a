"""GetObject and HeadObject: find the version to answer with, then the nearest bytes of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from gateway.errors import NoSuchKey, VersionChanged
from gateway.model.conditions import UNCONDITIONAL, Conditions, check_read
from gateway.model.objects import (
    KnownObject,
    ObjectInfo,
    ObjectRef,
    ObjectVersion,
    checksummed,
    known_object,
)
from gateway.model.ranges import ByteRange, RangeSpec, span
from gateway.store.buckets import Bucket
from gateway.store.core import Core
from gateway.store.fill import FollowingReader
from gateway.store.held import HeldReads, choose
from gateway.store.learned import Learned, Look
from gateway.store.opening import Opener, Sources, budget_elsewhere
from gateway.store.reading import ReadAnswer, SpanSource
from gateway.store.shards import Shards
from gateway.store.versions import Ticket
from gateway.tiers.peers.near import Near, Place, Role, ToldHead
from gateway.tiers.peers.source import OriginBytes
from gateway.tiers.protocol import TierName

T = TypeVar("T")

# How often a read starts over because the object changed before its first byte was found.
_RESTARTS = 3


class Reads(Core):
    """The reading half of the object service. `near`: the other nodes; None on a single one."""

    def __init__(self, *, near: Near | None = None, **collaborators: Any) -> None:
        super().__init__(**collaborators)
        self._near = near
        self._sources = Sources(near)
        self._ahead_elsewhere = budget_elsewhere()
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
        files: bool = False,
    ) -> ReadAnswer:
        """One version's bytes. `checksums`: the answer should carry those of the whole object.
        `files`: the first of its pieces may be a region of a file.

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
                first = await source.begin(files=files)
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
    ) -> Look:
        if part_number is not None:
            info, part = await bucket.origin.part_span(ref, part_number)
            return Look(known_object(ref, info), "origin", part)
        known = self._believed(bucket, ref)
        packs = bucket.packs if known is None else None
        # Before the origin is asked for bytes that a pack may have.
        if packs is not None and await packs.discover(bucket.origin_bucket):
            known = self._believed(bucket, ref)
        if known is not None and (known.info.checksums_known or not checksums):
            return Look(known, "disk")
        if by_bytes and known is None and self._nothing_kept(bucket, ref):
            learned = await self._open_unknown(bucket, ref, checksums=checksums)
            brought = learned.tier if learned.tier == "origin" or learned.coming else None
            return Look(
                known_object(ref, learned.info),
                learned.tier,
                brought=brought,
                coming=learned.coming,
            )
        learned = await self._ask(bucket, ref, checksums=checksums)
        return Look(known_object(ref, learned.info), learned.tier)

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
        """Whether the bytes must come from elsewhere in any case, along with the head."""
        near = self._near
        if not self._versions.trusts:
            # Everybody asks for the head by himself then; the bytes may still be shared.
            return False
        asks_origin = self._versions.generation(ref) > 0 or bucket.past_packs
        if near is not None and asks_origin:
            # Where the origin alone may be asked for the head, each reader asks for itself; the
            # bytes are nearer, and still shared.
            return False
        return (
            bucket.freshness_seconds > 0
            and self._disk.accepting
            and not self._versions.is_kept(ref)
            and self._disk.recall(ref) is None
            and not (bucket.packs is not None and bucket.packs.has(ref))
        )

    async def _ask(
        self, bucket: Bucket, ref: ObjectRef, *, checksums: bool, role: Role = "reader"
    ) -> Learned:
        """Asks what the key holds now, of the nearest who may tell; askers of one moment share the
        answer."""
        role = self._role(ref, role)

        async def ask(ticket: Ticket) -> Learned:
            told = await self._told(bucket, ref, ticket, role, checksums=checksums)
            if told is not None:
                return self._learn_told(ref, ticket, told)
            info = await bucket.origin.head(ref, checksums=checksums)
            return self._learn(ref, ticket, info)

        if not bucket.immutable and bucket.freshness_seconds == 0:
            # "Ask always" means since this request came in: no sharing with an earlier question.
            ticket = self._versions.begin_read(ref)
            try:
                return await ask(ticket)
            finally:
                self._versions.end_read(ticket)
        what = f"head with checksums as {role}" if checksums else f"head as {role}"
        if checksums:
            # Whoever opens it at this moment is told them too.
            opening = self._questions.get((_whole(role), ref, self._versions.present(ref)))
            if opening is not None:
                return await asyncio.shield(opening)
        return await self._share(ref, what, ask)

    async def _open_unknown(
        self, bucket: Bucket, ref: ObjectRef, *, checksums: bool, role: Role = "reader"
    ) -> Learned:
        """Learns what the key holds from the answer that already brings its first chunk, or a
        small object whole."""
        role = self._role(ref, role)

        async def open_first(ticket: Ticket) -> Learned:
            first_bytes = int(self._cache.small_object_limit)
            told = await self._told(
                bucket, ref, ticket, role, first_bytes=first_bytes, checksums=with_checksums
            )
            if told is not None:
                return await self._take_first(bucket, ref, ticket, told, role)
            opened = await bucket.origin.open(ref, wanted=ByteRange(0, self._cache.chunk_size))
            info = opened.info
            first = span(ObjectVersion(ref, info.etag, info.size_bytes), 0, self._cache.chunk_size)
            coming = None
            if info.cacheable and info.size_bytes and self._filler.find(first) is None:
                source = self._sources.source(bucket, first, role, keeps=True)
                coming = self._filler.start(first, source, OriginBytes(opened))
            else:
                await opened.close()
            return self._learn(ref, ticket, info, coming)

        # The first home asks the origin in the same way for both.
        with_checksums = checksums and role != "cluster"
        what = f"open with checksums as {role}" if with_checksums else f"open as {role}"
        if not checksums or not bucket.origin.relays:
            return await self._share(ref, what, open_first)

        async def open_whole(ticket: Ticket) -> Learned:
            # S3 leaves checksums out of ranged answers: ask for them meanwhile, not afterwards;
            # unless there is somebody who tells both. What is asked here is not remembered before
            # the bytes are on their way: others would ask for them, too.
            asking: asyncio.Task[ObjectInfo] | None = None
            try:
                if not self._may_be_told(bucket, ref, ticket) or role == "cluster":
                    asking = asyncio.create_task(bucket.origin.head(ref, checksums=True))
                learned = await self._share(ref, what, open_first)
                if not learned.info.checksums_known:
                    asked = asking or asyncio.create_task(bucket.origin.head(ref, checksums=True))
                    asking = asked
                    info = checksummed(learned.info, await asked)
                    learned = msgspec.structs.replace(learned, info=info)
                    if self._versions.learn(ticket, info):
                        self._remember_on_disk(ref, info)
                return learned
            finally:
                if asking is not None:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)

        return await self._share(ref, _whole(role), open_whole)

    def _role(self, ref: ObjectRef, role: Role) -> Role:
        """As what this node asks for a key's head."""
        return "cluster" if self._near is None else self._near.role(Place(ref.current, 0), role)

    def _may_be_told(self, bucket: Bucket, ref: ObjectRef, ticket: Ticket) -> bool:
        """Whether anybody but the origin may be asked what the key holds."""
        asks_always = not bucket.immutable and bucket.freshness_seconds == 0
        if self._near is None or asks_always or bucket.past_packs:
            return False
        # While it is being changed the origin alone knows, and packs each node looks at itself.
        if ticket.generation or not self._versions.trusts:
            return False
        return bucket.packs is None or not bucket.packs.has(ref)

    async def _told(
        self,
        bucket: Bucket,
        ref: ObjectRef,
        ticket: Ticket,
        role: Role,
        *,
        first_bytes: int = 0,
        checksums: bool = False,
    ) -> ToldHead | None:
        """What another node tells of the key; None where the origin is to be asked."""
        near = self._near
        if near is None or not self._may_be_told(bucket, ref, ticket):
            return None
        return await near.head(
            ref,
            role,
            freshness_seconds=None if bucket.immutable else bucket.freshness_seconds,
            first_bytes=first_bytes,
            checksums=checksums,
        )

    async def _take_first(
        self, bucket: Bucket, ref: ObjectRef, ticket: Ticket, told: ToldHead, role: Role
    ) -> Learned:
        """A head as told, and a small object that comes behind it: kept where it is at home."""
        info = told.info
        first = span(ObjectVersion(ref, info.etag, info.size_bytes), 0, self._cache.chunk_size)
        coming = None
        if told.bytes is not None:
            if info.cacheable and info.size_bytes and self._filler.find(first) is None:
                kept = role != "reader" or (self._near is not None and self._near.is_hot(first))
                source = self._sources.source(bucket, first, role, keeps=kept)
                coming = self._filler.start(first, source, told.bytes, kept=kept)
            else:
                await told.bytes.close()
        return self._learn_told(ref, ticket, told, coming)

    def _learn(
        self,
        ref: ObjectRef,
        ticket: Ticket,
        info: ObjectInfo,
        coming: FollowingReader | None = None,
    ) -> Learned:
        if self._versions.learn(ticket, info):
            self._remember_on_disk(ref, info)
        return Learned(info, ticket.drawn_at, "origin", coming)

    def _learn_told(
        self,
        ref: ObjectRef,
        ticket: Ticket,
        told: ToldHead,
        coming: FollowingReader | None = None,
    ) -> Learned:
        if self._versions.learn(ticket, told.info, age_seconds=told.age_seconds):
            self._remember_on_disk(ref, told.info)
        return Learned(told.info, ticket.drawn_at - told.age_seconds, told.tier, coming)

    async def _share(
        self, ref: ObjectRef, what: str, ask: Callable[[Ticket], Coroutine[Any, Any, T]]
    ) -> T:
        """One task answers all who ask the same now; an asker that leaves cancels nothing."""
        question = (what, ref, self._versions.present(ref))
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
        self,
        bucket: Bucket,
        known: KnownObject,
        wanted: ByteRange,
        *,
        brought: TierName | None = None,
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
        self,
        bucket: Bucket,
        version: ObjectVersion,
        wanted: ByteRange,
        *,
        cacheable: bool,
        role: Role = "reader",
    ) -> Opener:
        return Opener(
            bucket,
            version,
            wanted,
            self._disk,
            self._filler,
            self._shards,
            self._sources,
            self._cache.chunk_size,
            cacheable=cacheable,
            ahead_elsewhere=self._ahead_elsewhere,
            role=role,
        )


def _whole(role: Role) -> str:
    """Names the question that opens an object and learns its checksums."""
    return f"whole as {role}"
