"""Where a read's spans come from, near before far: the disk, what is coming in, other nodes, the
origin alone at last.

A node keeps what is at home on it, and of the rest what is hot; all else it passes on. On a single
node everything is at home.
"""

from gateway.model.objects import ObjectVersion, Span
from gateway.model.ranges import ByteRange
from gateway.store.ahead import Ahead, Coming
from gateway.store.buckets import Bucket
from gateway.store.direct import DirectReader
from gateway.store.fill import Filler
from gateway.store.lanes import Budget
from gateway.store.shards import Shards
from gateway.tiers.disk import DiskTier
from gateway.tiers.peers.near import Near, Place, Role
from gateway.tiers.peers.source import NearSource, OriginSource
from gateway.tiers.protocol import InstantReader, Source, SpanReader

# Begun at other nodes before a reader has come to them, by all readers of this node together.
_AHEAD_ELSEWHERE = 64


class Sources:
    """Makes the sources of spans: the origin's, or those of a cluster."""

    def __init__(self, near: Near | None) -> None:
        self.near = near

    def place(self, bucket: Bucket, span: Span) -> Place:
        """What decides where a span is at home: a packed object is where its shard is."""
        at = bucket.packs.where(span.version) if bucket.packs is not None else None
        if at is not None:
            return Place(at.shard.version.ref, at.shard.number)
        return Place(span.version.ref.current, span.number)

    def source(
        self, bucket: Bucket, span: Span, role: Role, *, keeps: bool, place: Place | None = None
    ) -> Source:
        """Where a span comes from, for one fill or reader."""
        if self.near is None or bucket.past_packs:
            return OriginSource(span, bucket.origin)
        place = place or self.place(bucket, span)
        return NearSource(self.near, span, place, bucket.origin, role=role, keeps=keeps)


class Opener:
    """Opens the spans of one read of `wanted`. A packed object may lie in its shard instead. `role`
    is what this node is asked as: a client's reader, or a home."""

    __slots__ = (
        "_ahead",
        "_ahead_elsewhere",
        "_at",
        "_bucket",
        "_cacheable",
        "_chunk_bytes",
        "_disk",
        "_filler",
        "_role",
        "_shards",
        "_sources",
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
        sources: Sources,
        chunk_bytes: int,
        *,
        cacheable: bool,
        ahead_elsewhere: Budget,
        role: Role = "reader",
    ) -> None:
        self._bucket = bucket
        self._cacheable = cacheable
        self._version = version
        self._wanted = wanted
        self._disk = disk
        self._filler = filler
        self._shards = shards
        self._sources = sources
        self._chunk_bytes = chunk_bytes
        self._role: Role = role
        self._ahead_elsewhere = ahead_elsewhere
        self._ahead: Ahead | None = None
        self._at = bucket.packs.where(version) if bucket.packs is not None else None

    def open_now(self, span: Span) -> InstantReader | None:
        if self._ahead is not None:
            coming = self._ahead.reader(span.number)
            if coming is not None:
                return coming
        held = self._disk.open_now(span)
        if held is None and self._at is not None:
            held = self._shards.open_now(self._at, span)
        return held

    async def open(self, span: Span, direct: bool) -> SpanReader:
        stop = min(span.stop, self._wanted.stop)
        if not self._cacheable:
            return DirectReader(span, OriginSource(span, self._bucket.origin), stop=stop)
        if direct:
            return DirectReader(span, self._source(span, keeps=False), stop=stop)
        following = self._filler.find(span)
        if following is not None:
            return self._walked(span, following)
        kept = await self._disk.open(span)
        if kept is not None:
            return kept
        following = self._filler.find(span)
        if following is not None:
            return self._walked(span, following)
        if not self._disk.accepting or not self._is_kept_here(span):
            passing = DirectReader(span, self._source(span, keeps=False), stop=stop)
            return passing if self._sources.near is None else self._walked(span, passing)
        if self._at is not None and self._bucket.packs is not None:
            stretch = await self._shards.open(
                self._at, span, self._bucket.packs, lambda shard: self._source(shard, keeps=True)
            )
            if stretch is not None:
                return stretch
            following = self._filler.find(span)
            if following is not None:
                return self._walked(span, following)
        return self._walked(span, self._filler.start(span, self._source(span, keeps=True)))

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _source(self, span: Span, *, keeps: bool) -> Source:
        return self._sources.source(self._bucket, span, self._role, keeps=keeps)

    def _is_kept_here(self, span: Span) -> bool:
        """Whether what comes in of the span is kept; counts a read of what is at home elsewhere."""
        near = self._sources.near
        return self._is_home(span) or (near is not None and near.is_hot(span))

    def _is_home(self, span: Span) -> bool:
        near = self._sources.near
        if near is None or self._role != "reader" or self._bucket.past_packs:
            return True
        return near.is_home(self._sources.place(self._bucket, span))

    def _walked(self, span: Span, coming: Coming) -> Coming:
        """What comes in is walked with an eye on what comes after it."""
        if self._ahead is None and span.stop < self._wanted.stop:
            self._ahead = Ahead(
                self._begin,
                self._disk.holds,
                self._version,
                self._wanted,
                chunk_size_bytes=self._chunk_bytes,
                elsewhere=self._sources.near is not None,
            )
        if self._ahead is not None:
            self._ahead.reached(span.number, coming)
        return coming

    def _begin(self, span: Span) -> Coming | None:
        """A chunk that nobody has come to yet."""
        following = self._filler.find(span)
        if following is not None:
            return following
        if self._disk.accepting and self._is_home(span):
            return self._filler.ahead(span, self._source(span, keeps=True))
        budget = self._ahead_elsewhere
        if self._sources.near is None or not budget.fits(span.size_bytes):
            return None
        reader = DirectReader(
            span, self._source(span, keeps=False), stop=min(span.stop, self._wanted.stop)
        )
        budget.begun(span.size_bytes)
        reader.on_close = lambda: budget.ended(span.size_bytes)
        reader.begin()
        return reader


def budget_elsewhere() -> Budget:
    """For `Opener`: what all reads of a node may have begun at others."""
    return Budget(fills=_AHEAD_ELSEWHERE, size_bytes=_AHEAD_ELSEWHERE * 1024**3)
