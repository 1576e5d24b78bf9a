"""What a tier and an origin promise. The store knows nothing else of either."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct, field

from gateway.model.body import Body
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import (
    BucketEntry,
    ChecksumType,
    CompletedPart,
    DeleteResult,
    ListPage,
    ObjectInfo,
    ObjectRef,
    ObjectVersion,
    PartPage,
    PartSpan,
    PutResult,
    Span,
    UploadPage,
    VersionPage,
)
from gateway.model.ranges import ByteRange

TierName = Literal["disk", "rack", "remote", "origin"]


class FileRegion(Struct, frozen=True):
    """Bytes of an object that lie in an open file, verified, in the page cache: send them from
    there. Good until the reader that gave it is closed; after a longer wait ask again for what is
    left, since pages leave the cache."""

    descriptor: int
    offset: int
    size_bytes: int


class SpanReader(Protocol):
    """Verified bytes of one span, from whatever tier opened it."""

    @property
    def tier(self) -> TierName: ...

    async def read(self, offset: int, limit_bytes: int) -> bytes | memoryview:
        """1 to `limit_bytes` bytes from `offset` within the span; waits where they are coming.

        Raises Corrupt, TierUnavailable, TierFull or VersionChanged; the caller goes on with the
        next tier from where it stands. Never returns b"" before the span's end.
        """
        ...

    def read_now(self, offset: int, limit_bytes: int) -> bytes | bytearray | memoryview | None:
        """As `read`, errors included, where that needs no waiting; None where it would. What it
        returns is the caller's to keep."""
        ...

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:
        """Up to `limit_bytes` bytes from `offset` as they lie in a file; None where they must be
        read."""
        ...

    async def close(self) -> None:
        """Lets go of what was pinned. Safe to call twice."""
        ...


class InstantReader(SpanReader, Protocol):
    """A reader that was opened without waiting, and can be let go of in the same way."""

    def release(self) -> None:
        """As `close`."""
        ...


class Incoming(Protocol):
    """Bytes of a span on their way here, in order."""

    @property
    def tier(self) -> TierName:
        """Where they come from, as an answer to a client names it; never "disk"."""
        ...

    async def read_into(self, memory: memoryview) -> int:
        """Puts the next bytes at the beginning of `memory`: how many, 0 only at the end. Raises
        TierUnavailable where they break off, VersionChanged."""
        ...

    async def close(self) -> None:
        """Ends it; safe at any point and twice."""
        ...


class Source(Protocol):
    """Where the bytes of one span are had from, by one fill or one reader: near before far."""

    @property
    def at_origin(self) -> bool:
        """Whether all that is still to come comes from the origin: nobody else is waited for."""
        ...

    async def open(self, offset: int, stop: int) -> Incoming:
        """Begins to give the bytes from `offset` to `stop` of the span. Raises TierUnavailable
        where no place has them, VersionChanged."""
        ...

    def goes_on(self) -> bool:
        """Whether, after bytes broke off, `open` has another place to ask, so that there is no
        reason to wait."""
        ...


class Holders(Protocol):
    """Who knows which racks hold what: the directory."""

    async def racks_holding(self, span: Span) -> Sequence[str]:
        """Best effort; nothing where that is not known."""
        ...


class NoHolders:
    """Knows of nobody."""

    async def racks_holding(self, span: Span) -> Sequence[str]:  # noqa: ARG002 - nobody has any
        return ()


class PackedAt(Struct, frozen=True):
    """Where the bytes of a packed object lie: `size_bytes` from `offset` on of a shard, which is
    one span as large as its file. `checksum` is the XXH3-64 of all of them."""

    shard: Span
    offset: int
    size_bytes: int
    checksum: int


class Packs(Protocol):
    """What the store asks of packs; most of it is answered at once."""

    async def discover(self, bucket: str) -> bool:
        """Looks once for the packs of a bucket; whether it was looked just now."""
        ...

    def known(self, ref: ObjectRef, freshness_seconds: float | None) -> ObjectInfo | None:
        """What a packed key holds, where that is known well enough not to ask; None where it is
        not, or where no pack speaks for the key. `freshness_seconds` None believes for ever."""
        ...

    def known_tags(
        self, ref: ObjectRef, freshness_seconds: float | None
    ) -> tuple[tuple[str, str], ...] | None:
        """A packed key's tags, where its object is `known`."""
        ...

    def has(self, ref: ObjectRef) -> bool:
        """Whether a pack speaks for the key, as far as is known: its bytes are then not the
        origin's to give."""
        ...

    def where(self, version: ObjectVersion) -> PackedAt | None:
        """Where the version's bytes lie, if a pack has them."""
        ...

    def wants_whole(self, at: PackedAt) -> bool:
        """Whether a cold read there should bring in the whole shard; counts the read."""
        ...

    async def held_bytes(self, bucket: str, prefix: str, holds: Callable[[Span], bool]) -> int:
        """Bytes of the objects under a prefix that lie in shards of which `holds` says that they
        are here."""
        ...

    async def shards_under(self, bucket: str, prefix: str) -> list[Span]:
        """The shards that hold keys of a prefix, as far as is known."""
        ...

    def roots(self, bucket: str, prefix: str) -> tuple[str, ...] | None:
        """The folders of the packs that lie under a prefix altogether, as far as is known; None
        where the prefix is but a part of a pack."""
        ...

    async def prefixes(self, bucket: str, roots: Collection[str]) -> Mapping[str, str]:
        """Which prefixes the packs are of that have their files in these folders, those that are
        known or come to be known soon; no index is brought in for it."""
        ...

    async def confirm(self, bucket: str, prefix: str, freshness_seconds: float | None) -> None:
        """Sees to it that what is known of the packs under a prefix is not older than that."""
        ...


class Tier(Protocol):
    """A place bytes may be."""

    @property
    def name(self) -> TierName: ...

    async def open(self, span: Span) -> SpanReader | None:
        """A reader of the span, or None where this tier does not have it."""
        ...


class OpenedObject(Protocol):
    """The beginning of an origin's answer to a read: what it is, and its bytes to come."""

    @property
    def info(self) -> ObjectInfo: ...

    @property
    def range(self) -> ByteRange:
        """The bytes of the object that `blocks` will yield."""
        ...

    def blocks(self) -> AsyncIterator[bytes]:
        """The bytes in order, in pieces of at most 1 MiB. Raises TierUnavailable on a truncated
        or reset answer and VersionChanged where the object changed under the read."""
        ...

    async def read_into(self, memory: memoryview) -> int:
        """Puts the next bytes at the beginning of `memory`: how many, 0 only at the range's end.
        For those who have a place for them; instead of `blocks`. Raises as `blocks`."""
        ...

    async def close(self) -> None:
        """Ends the read; safe at any point and twice."""
        ...


class RelayRequest(Struct, frozen=True, kw_only=True):
    """A request to hand to the origin as it is (versioning, object lock, SSE-C and the like).

    `query` are the raw decoded query pairs without any signature, `headers` lower-case
    without hop-by-hop and authorization headers.
    """

    method: str
    bucket: str
    key: str = ""
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class RelayAnswer(Protocol):
    """An origin's answer, as it is; `status` may be an error's."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def blocks(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class Origin(Protocol):
    """The store behind us. `bucket` is always the origin's own bucket name.

    Every method raises S3Error subclasses with the origin's own code (NoSuchKey, NoSuchBucket,
    PreconditionFailed, …) and TierUnavailable where the origin cannot be reached or answers 5xx
    after all retries: never NoSuchKey for that. `headers` of writes are the lower-case request
    headers that describe the new object (content-type, cache-control, x-amz-meta-*, x-amz-tagging,
    x-amz-storage-class, x-amz-object-lock-*, x-amz-server-side-encryption*), never checksums.
    """

    @property
    def name(self) -> str: ...

    @property
    def relays(self) -> bool:
        """Whether `relay` works (an S3 service) or raises NotImplemented (a directory)."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    # Reading
    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        """What the origin says now. `checksums`: also ask for those. NoSuchKey, NoSuchVersion,
        MethodNotAllowed (a delete marker by version id), NoSuchBucket."""
        ...

    async def part_span(self, ref: ObjectRef, number: int) -> tuple[ObjectInfo, PartSpan]:
        """Where part `number` lies; the whole object is part 1 of 1 if it was never multipart.
        InvalidPartNumber where there is none."""
        ...

    async def open(
        self,
        ref: ObjectRef,
        *,
        wanted: ByteRange | None = None,
        if_match: str | None = None,
    ) -> OpenedObject:
        """Begins to read. `wanted` may reach past the end (then it is cut), and an empty object
        answers an empty range whatever was wanted; a start past a non-empty object's end is
        InvalidRange. `if_match`: the ETag that the answer must have, else VersionChanged (also
        where the key is gone)."""
        ...

    # Writing
    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        """Stores the whole verified body or nothing, atomically."""
        ...

    async def copy(
        self,
        source: ObjectRef,
        target: ObjectRef,
        *,
        headers: Mapping[str, str] | None,
        tagging: str | None,
        source_conditions: Conditions,
        conditions: WriteConditions,
        checksum_algorithm: str | None,
    ) -> PutResult:
        """Copies within this origin. `headers`: the new object's (metadata directive REPLACE), or
        None to keep the source's; `tagging`: the new tags as a query string, or None to keep."""
        ...

    async def delete(self, ref: ObjectRef, conditions: WriteConditions) -> DeleteResult:
        """Deletes; a key that is not there is no error."""
        ...

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        """Deletes up to 1,000 (key, version id); one result each, in order, failures within."""
        ...

    # Buckets and listings
    async def list_buckets(self) -> list[BucketEntry]: ...

    async def head_bucket(self, bucket: str) -> None:
        """Nothing where it is there; NoSuchBucket or AccessDenied."""
        ...

    async def create_bucket(self, bucket: str) -> None:
        """Creates; one that is ours already is no error."""
        ...

    async def delete_bucket(self, bucket: str) -> None:
        """BucketNotEmpty, NoSuchBucket."""
        ...

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        """Up to `limit` (1 to 1,000) objects and common prefixes together, in UTF-8 byte order.

        Only keys greater than `after`; a common prefix equal to `after` is not repeated, nor are
        the keys below it."""
        ...

    async def list_versions(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        version_id_marker: str,
        limit: int,
    ) -> VersionPage: ...

    # Multipart
    async def create_upload(
        self,
        ref: ObjectRef,
        headers: Mapping[str, str],
        *,
        checksum_algorithm: str | None,
        checksum_type: ChecksumType | None,
    ) -> str:
        """A new upload's id."""
        ...

    async def put_part(
        self, ref: ObjectRef, upload_id: str, number: int, body: Body, headers: Mapping[str, str]
    ) -> PutResult: ...

    async def copy_part(
        self,
        source: ObjectRef,
        target: ObjectRef,
        upload_id: str,
        number: int,
        *,
        source_range: ByteRange | None,
        source_conditions: Conditions,
    ) -> PutResult: ...

    async def list_parts(
        self, ref: ObjectRef, upload_id: str, *, after_number: int, limit: int
    ) -> PartPage: ...

    async def list_uploads(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        upload_id_marker: str,
        limit: int,
    ) -> UploadPage: ...

    async def complete_upload(
        self,
        ref: ObjectRef,
        upload_id: str,
        parts: Sequence[CompletedPart],
        conditions: WriteConditions,
        *,
        checksums: Mapping[str, str],
        checksum_type: ChecksumType | None,
        headers: Mapping[str, str],
    ) -> PutResult:
        """NoSuchUpload, InvalidPart, InvalidPartOrder, EntityTooSmall, BadDigest."""
        ...

    async def abort_upload(self, ref: ObjectRef, upload_id: str) -> None: ...

    # Tags: pairs in the order stored
    async def get_tags(self, ref: ObjectRef) -> tuple[tuple[str, str], ...]: ...
    async def put_tags(self, ref: ObjectRef, tags: Sequence[tuple[str, str]]) -> None: ...
    async def delete_tags(self, ref: ObjectRef) -> None: ...
    async def get_bucket_tags(self, bucket: str) -> tuple[tuple[str, str], ...]:
        """NoSuchTagSet where there are none."""
        ...

    async def put_bucket_tags(self, bucket: str, tags: Sequence[tuple[str, str]]) -> None: ...
    async def delete_bucket_tags(self, bucket: str) -> None: ...

    # Everything else
    async def relay(self, request: RelayRequest, body: Body | None) -> RelayAnswer:
        """Hands a request to an S3 origin unchanged but for its signature."""
        ...
