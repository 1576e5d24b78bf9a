"""Which version a worker may answer with, unasked. Why it may: docs/workers.md."""

from gateway.model.objects import KnownObject, ObjectRef, known_object
from gateway.store.buckets import Bucket
from gateway.store.shared_heads import SharedHeadsView, index_mark
from gateway.tiers.held_disk import HeldDisk


class SharedBelief:
    """What the keeper lets its workers believe. `generation` is of the configuration they run."""

    def __init__(self, heads: SharedHeadsView, disk: HeldDisk, *, generation: int) -> None:
        self._heads = heads
        self._disk = disk
        self._generation = generation
        self._file: tuple[int, int] | None = None
        self._mark = 0

    def believed(self, bucket: Bucket, ref: ObjectRef) -> KnownObject | None:
        """The version of `ref` to believe now; None where only the keeper can tell."""
        freshness = None if bucket.immutable else bucket.freshness_seconds
        known = self._heads.believed(ref, freshness)
        if known is not None or not bucket.immutable:
            return known
        info = self._disk.recall(ref)
        # Only now: an entry read while the mark stood was good when it was read.
        if info is None or not self._heads.believes_index(self._index_mark()):
            return None
        return known_object(ref, info)

    def _index_mark(self) -> int:
        file = self._disk.index_file
        if file != self._file:
            self._file, self._mark = file, index_mark(file, self._generation)
        return self._mark
