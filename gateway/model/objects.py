"""Objects, their versions and the pages of a listing, as plain frozen values."""

import struct
from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

ChecksumType = Literal["FULL_OBJECT", "COMPOSITE"]

_LENGTHS = struct.Struct(">6I")


class ObjectRef(Struct, frozen=True):
    """Where an object lives at its origin. `version_id` None means the current version.

    `origin` is the name of an `[origins.*]` section and `bucket` the *origin's* bucket, so that
    two client buckets over one origin bucket share one cache entry and one coherence.
    """

    origin: str
    bucket: str
    key: str
    version_id: str | None = None

    @property
    def current(self) -> "ObjectRef":
        """The same key without a version id: what coherence is about."""
        return self if self.version_id is None else ObjectRef(self.origin, self.bucket, self.key)


class ObjectInfo(Struct, frozen=True, kw_only=True):
    """What HeadObject tells of one object version.

    `etag` is unquoted. `headers` holds the answer headers that describe the object, with
    lower-case names: content-type, cache-control, content-encoding, content-disposition,
    content-language, expires, x-amz-meta-*, x-amz-storage-class, x-amz-object-lock-* and the
    like; never content-length, etag, last-modified, version id or checksums, which have fields.
    `checksums` maps an algorithm ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256") to its base64
    value (composite ones end in "-N"); `checksums_known` is False where the origin was not asked.
    `cacheable` is False for what must not be kept (SSE-C, a file changed a moment ago).
    """

    etag: str
    size_bytes: int
    last_modified_ms: int
    version_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    checksum_type: ChecksumType | None = None
    checksums_known: bool = True
    cacheable: bool = True


class ObjectVersion(Struct, frozen=True, dict=True):
    """Bucket + key + ETag (+ version id): immutable, the unit of truth of the cache."""

    ref: ObjectRef
    etag: str
    size_bytes: int

    # Every tier that a read asks wants it, for the same version: worked out once.
    @cached_property
    def digest(self) -> bytes:
        """16 bytes that name this version on disk and in the index."""
        ref = self.ref
        origin = ref.origin.encode("utf-8", "surrogatepass")
        bucket = ref.bucket.encode("utf-8", "surrogatepass")
        key = ref.key.encode("utf-8", "surrogatepass")
        version_id = (ref.version_id or "").encode("utf-8", "surrogatepass")
        etag = self.etag.encode("utf-8", "surrogatepass")
        size = b"%d" % self.size_bytes
        # The lengths in front tell apart what joining alone would not.
        lengths = _LENGTHS.pack(
            len(origin), len(bucket), len(key), len(version_id), len(etag), len(size)
        )
        named = lengths + origin + bucket + key + version_id + etag + size
        return blake2b(named, digest_size=16).digest()


def checksummed(info: ObjectInfo, asked: ObjectInfo) -> ObjectInfo:
    """`info` with the checksums of `asked`, if both speak of one version."""
    if asked.etag != info.etag or asked.size_bytes != info.size_bytes:
        return info
    return replace(
        info,
        checksums=asked.checksums,
        checksum_type=asked.checksum_type,
        checksums_known=asked.checksums_known,
    )


class KnownObject(Struct, frozen=True):
    """What is known of one object version, under the name its bytes have in every tier."""

    version: ObjectVersion
    info: ObjectInfo


def known_object(ref: ObjectRef, info: ObjectInfo) -> KnownObject:
    """`info` with the name of the version it tells of."""
    return KnownObject(ObjectVersion(ref, info.etag, info.size_bytes), info)


class Span(Struct, frozen=True):
    """One chunk of one object version: bytes `start` to `stop` (exclusive) of the object.

    A small object (at most `small_object_limit`) is always one span, number 0.
    """

    version: ObjectVersion
    number: int
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


class PartSpan(Struct, frozen=True):
    """Where part `number` of a multipart object lies: `start` to `stop` (exclusive), of `count`."""

    number: int
    start: int
    stop: int
    count: int


class PutResult(Struct, frozen=True, kw_only=True):
    """What an origin answered to a write.

    `info` is complete where the origin knows everything HeadObject would say (a directory);
    None where it does not (S3 gives no Last-Modified), then the next read asks. `headers` are
    further answer headers to hand to the client (x-amz-server-side-encryption, x-amz-expiration).
    """

    etag: str
    version_id: str | None = None
    last_modified_ms: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    checksum_type: ChecksumType | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    info: ObjectInfo | None = None


class DeleteResult(Struct, frozen=True, kw_only=True):
    """What an origin answered to one delete (of many: `error_code` set where it failed)."""

    key: str
    version_id: str | None = None
    delete_marker: bool = False
    delete_marker_version_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class BucketEntry(Struct, frozen=True):
    name: str
    created_ms: int


class ObjectEntry(Struct, frozen=True, kw_only=True):
    """One object of a listing. `checksum_algorithms` as ListObjectsV2 gives them."""

    key: str
    etag: str
    size_bytes: int
    last_modified_ms: int
    storage_class: str = "STANDARD"
    checksum_algorithms: tuple[str, ...] = ()
    checksum_type: ChecksumType | None = None


class ListPage(Struct, frozen=True, kw_only=True):
    """One page in UTF-8 byte order of key or common prefix.

    `next_after` is what to pass as `after` for the following page, None on the last one.
    """

    objects: tuple[ObjectEntry, ...] = ()
    common_prefixes: tuple[str, ...] = ()
    next_after: str | None = None


class VersionEntry(Struct, frozen=True, kw_only=True):
    """One row of ListObjectVersions: an object version or a delete marker."""

    key: str
    version_id: str
    is_latest: bool
    last_modified_ms: int
    delete_marker: bool = False
    etag: str = ""
    size_bytes: int = 0
    storage_class: str = "STANDARD"


class VersionPage(Struct, frozen=True, kw_only=True):
    versions: tuple[VersionEntry, ...] = ()
    common_prefixes: tuple[str, ...] = ()
    next_key_marker: str | None = None
    next_version_id_marker: str | None = None


class PartEntry(Struct, frozen=True, kw_only=True):
    """One uploaded part. `checksums` as in `ObjectInfo`."""

    number: int
    etag: str
    size_bytes: int
    last_modified_ms: int
    checksums: Mapping[str, str] = field(default_factory=dict)


class PartPage(Struct, frozen=True, kw_only=True):
    parts: tuple[PartEntry, ...] = ()
    next_number: int | None = None
    checksum_algorithm: str | None = None
    checksum_type: ChecksumType | None = None
    storage_class: str = "STANDARD"


class UploadEntry(Struct, frozen=True, kw_only=True):
    key: str
    upload_id: str
    initiated_ms: int
    storage_class: str = "STANDARD"


class UploadPage(Struct, frozen=True, kw_only=True):
    uploads: tuple[UploadEntry, ...] = ()
    common_prefixes: tuple[str, ...] = ()
    next_key_marker: str | None = None
    next_upload_id_marker: str | None = None


class CompletedPart(Struct, frozen=True, kw_only=True):
    """A part as CompleteMultipartUpload names it."""

    number: int
    etag: str
    checksums: Mapping[str, str] = field(default_factory=dict)
