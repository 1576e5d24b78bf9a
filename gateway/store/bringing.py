"""What brings bytes in before anybody asks: what a prefetch finds under a prefix, and its spans."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import structlog

from gateway.cluster.members import Member
from gateway.errors import FeedrackError, TierFull, TierUnavailable
from gateway.model.objects import ObjectVersion, Span
from gateway.model.ranges import span
from gateway.model.reserved import is_reserved
from gateway.store.buckets import Bucket
from gateway.store.fill import FollowingReader
from gateway.store.lanes import Lane
from gateway.store.listings import Listings
from gateway.tiers.peers.taking import HandedSource
from gateway.tiers.protocol import Source

PAGE_KEYS = 1000
_WAIT_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_ATTEMPTS = 3
_LOOKS = 4

log = structlog.get_logger()


class Bringing(Listings):
    """The part of the object service that nobody waits for."""

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

    async def pack_prefixes(self, bucket: str, roots: Collection[str]) -> Mapping[str, str]:
        """Which prefixes the packs are of that have their files in these folders; those that are
        not known soon are missing. NoSuchBucket."""
        where = self.bucket(bucket)
        if where.packs is None or not roots:
            return {}
        return await where.packs.prefixes(where.origin_bucket, roots)

    async def page_of(
        self, bucket: str, prefix: str, after: str
    ) -> tuple[list[ObjectVersion], str | None]:
        """The next objects under a prefix that are to be brought in by themselves, and where to go
        on; None at the end. What lies in packs comes in by its shards. Errors as `list_objects`."""
        where = self.bucket(bucket)
        page = await self.list_objects(
            bucket, prefix=prefix, delimiter="", after=after, limit=PAGE_KEYS
        )
        found: list[ObjectVersion] = []
        for entry in page.objects:
            version = ObjectVersion(where.ref(entry.key), entry.etag, entry.size_bytes)
            packed = where.packs is not None and where.packs.where(version) is not None
            if entry.size_bytes and not packed:
                found.append(version)
        return found, page.next_after

    async def shards_of(self, bucket: str, prefix: str) -> list[ObjectVersion]:
        """The shards that hold objects under a prefix. TierUnavailable."""
        where = self.bucket(bucket)
        if where.packs is None:
            return []
        freshness = None if where.immutable else where.freshness_seconds
        await where.packs.confirm(where.origin_bucket, prefix, freshness)
        spans = await where.packs.shards_under(where.origin_bucket, prefix)
        return [each.version for each in spans]

    async def version_of(self, bucket: str, key: str) -> ObjectVersion:
        """What a key holds now. Errors as `head`."""
        where = self.bucket(bucket)
        look = await self._look(where, where.ref(key), None, checksums=False)
        return look.known.version

    async def _kept_version(self, bucket: str, key: str) -> ObjectVersion | None:
        """What a key holds that may be kept; None where that is not allowed, nor soon."""
        where = self.bucket(bucket)
        for _ in range(_LOOKS):
            look = await self._look(where, where.ref(key), None, checksums=False)
            if look.info.cacheable:
                return look.known.version
            # A file that was changed a moment ago is kept a moment later.
            await asyncio.sleep(_RETRY_SECONDS)
        return None

    async def spans_to_bring(
        self, bucket: str, key: str, etag: str, size_bytes: int, chunks: Sequence[int]
    ) -> list[Span]:
        """What these chunks of a key are now: spans of its version, or the shard it lies in. `etag`
        and `size_bytes` are believed of a shard, which its name says all of. Errors as `head`."""
        where = self.bucket(bucket)
        if is_reserved(key):
            version = ObjectVersion(where.ref(key), etag, size_bytes)
            return [Span(version, 0, 0, size_bytes)]
        found = await self._kept_version(bucket, key)
        if found is None or not found.size_bytes:
            return []
        at = where.packs.where(found) if where.packs is not None else None
        if at is not None:
            return [at.shard]
        if found.size_bytes <= self._cache.small_object_limit:
            return [span(found, 0, self._cache.chunk_size)]
        count = -(-found.size_bytes // self._cache.chunk_size)
        return [span(found, each, self._cache.chunk_size) for each in chunks if each < count]

    async def bring_in(self, bucket: Bucket, wanted: Span) -> bool:
        """Has a span brought in, behind everything that somebody waits for; whether it is here.
        VersionChanged, S3Errors of the origin."""

        def source() -> Source:
            return self._sources.source(bucket, wanted, "reader", keeps=True)

        return await self._bring(wanted, source, "prefetch")

    async def take(self, member: Member, spans: Sequence[Span]) -> int:
        """Has spans brought in that a node hands over; how many of them are here."""
        near = self._near
        if near is None:
            return 0
        taken = 0
        for each in spans:
            source = partial(HandedSource, near, member, each)
            try:
                here = await self._bring(each, source, "background")
            except FeedrackError as error:
                log.info("not taken over", key=each.version.ref.key, reason=str(error))
                continue
            taken += here
            if here and not each.number:
                # So that whoever asks for it first asks the origin for its head alone.
                self._versions.note_kept(each.version.ref)
        return taken

    async def _bring(self, wanted: Span, source: Callable[[], Source], lane: Lane) -> bool:
        for _ in range(_ATTEMPTS):
            while not self._disk.holds(wanted):
                reader = self._begin(wanted, source, lane)
                if reader is None:
                    await asyncio.sleep(_WAIT_SECONDS if self._disk.accepting else _RETRY_SECONDS)
                    if not self._disk.accepting:
                        break
                    continue
                try:
                    await reader.over()
                except (TierFull, TierUnavailable):
                    await asyncio.sleep(_RETRY_SECONDS)
                    break
                finally:
                    reader.release()
            else:
                return True
        return self._disk.holds(wanted)

    def _begin(
        self, wanted: Span, source: Callable[[], Source], lane: Lane
    ) -> FollowingReader | None:
        filler = self._filler
        if filler.received_bytes(wanted) is None and not (
            filler.fits(wanted, lane) and filler.courtesy.may_begin()
        ):
            return None
        return filler.ahead(wanted, source(), lane=lane)
