"""Reads of what this node holds, begun without waiting for anything.

This is the read path's front half, in one step of the event loop: which version may be believed,
whether the client's conditions hold, which bytes are meant, and where they lie on this disk. What
it cannot answer is nobody's error: the long way (`store/reads.py`) asks whoever knows.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.model.conditions import UNCONDITIONAL, Conditions, check_read
from gateway.model.objects import KnownObject, ObjectInfo, ObjectRef, PartSpan, Span
from gateway.model.ranges import ByteRange, RangeSpec, span, spans
from gateway.store.buckets import Bucket
from gateway.store.reading import ReadAnswer, SpanSource


class SourceFactory(Protocol):
    """Makes the source of one range of a version."""

    def __call__(self, bucket: Bucket, known: KnownObject, wanted: ByteRange) -> SpanSource: ...


class HeldReads:
    """Answers `get` and `head` where the answer is here. `believed` gives the version that may be
    answered with unasked, `holds` says whether a span is on the disk, `source` reads a range.

    `whole_only`: nothing but the disk can go on with a read, so all its spans must be there.
    """

    def __init__(
        self,
        believed: Callable[[Bucket, ObjectRef], KnownObject | None],
        holds: Callable[[Span], bool],
        source: SourceFactory,
        *,
        chunk_size_bytes: int,
        whole_only: bool = False,
    ) -> None:
        self._believed = believed
        self._holds = holds
        self._source = source
        self._chunk_size_bytes = chunk_size_bytes
        self._whole_only = whole_only

    def get(
        self,
        bucket: Bucket,
        key: str,
        *,
        version_id: str | None = None,
        wanted: RangeSpec | None = None,
        part_number: int | None = None,
        conditions: Conditions = UNCONDITIONAL,
        checksums: bool = False,
        files: bool = False,
    ) -> ReadAnswer | None:
        """What `ObjectService.get` would answer, from this disk; None where it takes more.

        If not all bytes are at hand (`ReadAnswer.whole`), the disk has to be waited for, or there
        are more than fit one block. `files`: regions of files may take the place of blocks.
        Raises what the object itself answers: NotModified, PreconditionFailed, InvalidRange.
        """
        if part_number is not None:
            return None
        known = self._believed(bucket, bucket.ref(key, version_id))
        if known is None:
            return None
        info = known.info
        if checksums and wanted is None and not info.checksums_known:
            return None
        if conditions:
            check_read(conditions, info)
        chosen, partial = choose(info, wanted, None)
        if not chosen.size_bytes:
            return ReadAnswer(info, chosen, partial=partial)
        source = self._source(bucket, known, chosen)
        tier = source.begin_now(files=files)
        if not self._can_go_on(source, known, chosen, begun=tier is not None):
            source.release()
            return None
        return ReadAnswer(info, chosen, partial=partial, tier=tier or "disk", source=source)

    def holds(self, bucket: Bucket, key: str, *, wanted: RangeSpec | None = None) -> bool:
        """Whether `get` would answer, as far as that is known without opening anything.
        InvalidRange."""
        known = self._believed(bucket, bucket.ref(key))
        if known is None:
            return False
        chosen, _ = choose(known.info, wanted, None)
        if not chosen.size_bytes:
            return True
        number = chosen.start // self._chunk_size_bytes
        if self._holds(span(known.version, number, self._chunk_size_bytes)):
            return True
        at = bucket.packs.where(known.version) if bucket.packs is not None else None
        return at is not None and self._holds(at.shard)

    def head(
        self,
        bucket: Bucket,
        key: str,
        *,
        version_id: str | None = None,
        wanted: RangeSpec | None = None,
        part_number: int | None = None,
        conditions: Conditions = UNCONDITIONAL,
        checksums: bool = False,
    ) -> ReadAnswer | None:
        """What `ObjectService.head` would answer, from what is remembered; None and errors as
        `get`."""
        if part_number is not None:
            return None
        known = self._believed(bucket, bucket.ref(key, version_id))
        if known is None or (checksums and not known.info.checksums_known):
            return None
        if conditions:
            check_read(conditions, known.info)
        chosen, partial = choose(known.info, wanted, None)
        return ReadAnswer(known.info, chosen, partial=partial)

    def _can_go_on(
        self, source: SpanSource, known: KnownObject, wanted: ByteRange, *, begun: bool
    ) -> bool:
        """Whether what is still to be read is here, as far as it has to be."""
        if source.whole is not None:
            return True
        if self._whole_only:
            touched = spans(known.version, wanted, self._chunk_size_bytes)
            return all(self._holds(each) for each in touched)
        number = wanted.start // self._chunk_size_bytes
        if begun or source.opened:
            return True
        return self._holds(span(known.version, number, self._chunk_size_bytes))


def choose(
    info: ObjectInfo, wanted: RangeSpec | None, part: PartSpan | None
) -> tuple[ByteRange, bool]:
    """The bytes to answer with, and whether that is a 206."""
    if part is not None:
        return ByteRange(part.start, part.stop), True
    if wanted is not None:
        chosen = wanted.resolve(info.size_bytes)
        return chosen, chosen.size_bytes > 0
    return ByteRange(0, info.size_bytes), False
