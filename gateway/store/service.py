"""The object service: S3's verbs over buckets, tiers and origins. Everything S3 means happens here
or below; everything HTTP means happens above.

    reads.py     GetObject, HeadObject
    writes.py    PutObject, CopyObject, DeleteObject(s)
    uploads.py   multipart
    listings.py  buckets, listings, tags, relays
    batch.py     many objects in one answer
"""

from collections.abc import Callable, Sequence
from typing import Any

from feedrack.offer import Offer
from gateway.errors import SlowDown
from gateway.store.batch import BatchReads, WantedObject
from gateway.store.bringing import Bringing
from gateway.store.buckets import Bucket
from gateway.store.lanes import Budget
from gateway.tiers.packed.handing import Handing

# What all batches together may have on its way before its turn, and so in memory if their clients
# are slow. Fewer objects than an origin has connections, so that other readers find some.
_AHEAD_OBJECTS = 96
_AHEAD_BYTES = 128 * 1024**2
# What of held objects may lie in memory before its turn: of all batches, of one, and of one of very
# many.
_READY_BYTES = 256 * 1024**2
_MOST_READY_BYTES = 2 * 1024**2
_LEAST_READY_BYTES = 256 * 1024
# Batches at one time, and what their lists of keys come to.
_BATCHES = 1024
_BATCH_DOCUMENT_BYTES = 256 * 1024**2


class ObjectService(Bringing):
    """All of S3 that this node serves. Built in `gateway.app`; closed after the last request."""

    def __init__(self, *, handing: Handing | None = None, **collaborators: Any) -> None:
        super().__init__(**collaborators)
        self._handing = handing
        self._ahead = Budget(fills=_AHEAD_OBJECTS, size_bytes=_AHEAD_BYTES)
        self._batches = Budget(fills=_BATCHES, size_bytes=_BATCH_DOCUMENT_BYTES)

    def begin_batch(self, document_bytes: int) -> Callable[[], None]:
        """Makes room for one more batch, and for the document that lists its objects; call what it
        returns once it is over. SlowDown."""
        if not self._batches.fits(document_bytes):
            raise SlowDown("Too many batches are being answered.")
        self._batches.begun(document_bytes)
        return lambda: self._batches.ended(document_bytes)

    async def offer_packs(
        self, bucket: Bucket, prefix: str, may: Callable[[str], bool]
    ) -> Offer | None:
        """What a reader on this machine may be handed; None where nothing ever is. `may`: whether
        it may read everything under a prefix."""
        if self._handing is None or bucket.packs is None:
            return None
        freshness = None if bucket.immutable else bucket.freshness_seconds
        await bucket.packs.confirm(bucket.origin_bucket, prefix, freshness)
        return self._handing.offer(
            bucket.name, bucket.origin.name, bucket.origin_bucket, prefix, freshness, may
        )

    def batch(
        self, bucket: Bucket, wanted: Sequence[WantedObject], *, admit: Callable[[str], None]
    ) -> BatchReads:
        """The objects `wanted`, in that order. `admit` raises what speaks against a key."""
        share_bytes = _READY_BYTES // max(1, self._batches.fills)
        return BatchReads(
            self,
            bucket,
            wanted,
            admit=admit,
            budget=self._ahead,
            ready_bytes=max(_LEAST_READY_BYTES, min(share_bytes, _MOST_READY_BYTES)),
            chunk_size_bytes=self._cache.chunk_size,
        )
