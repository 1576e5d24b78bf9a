"""What is known of an object beyond its bytes: ETag, headers, tags, checksums, parts.

Where it is kept. In the extended attribute `user.feedrack` of the file itself wherever the file
system has those: it becomes visible with the file in one rename, moves with it, and costs no
second file. Where it has none (NFS before 4.2, FAT, some FUSE), or the record does not fit (ext4
gives about 4 KB), in a file of its own under the bucket's hidden folder, written before the rename
that makes the object visible. No database: SQLite's and LMDB's locks and maps cannot be trusted on
the network file systems that a NAS is mounted by, and one damaged file would cost every object's
metadata.

What keeps it true. A record names the exact file it describes (inode, size, modification time to
the nanosecond), in either place. A file that others put, replaced or edited does not match and is
served as theirs: type guessed by suffix, an ETag made of those same three numbers, no checksums. A
record of its own file that cannot be read is as good as none.
"""

import errno
import mimetypes
import os
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, field

from gateway.errors import InvalidArgument, InvalidRequest, InvalidTag, MetadataTooLarge
from gateway.errors import NotImplemented as S3NotImplemented
from gateway.model.objects import ChecksumType, ObjectInfo, PartSpan
from gateway.tiers.origin_directory.folders import ABSENT, Folder
from gateway.tiers.origin_directory.paths import STATE_NAME
from gateway.tiers.origin_directory.scratch import write_whole

ATTRIBUTE = "user.feedrack"
DEFAULT_TYPE = "binary/octet-stream"
METADATA_LIMIT_BYTES = 2048
TAG_LIMIT = 10

# Younger than this, a file of others may be edited again without a new timestamp (some file
# systems count whole seconds); a NAS's clock may also be ahead of ours.
_RACY_NS = 2_000_000_000
_CLOCK_AHEAD_NS = 3600 * 1_000_000_000

# What a date can say, and a record keep: file systems with times of 64 bits hold any nonsense.
_LATEST_MS = 253_402_300_799_999
_LATEST_NS = 2**63 - 1

_NO_ATTRIBUTES = {errno.ENOTSUP, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}
_NO_ATTRIBUTES |= {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS}
_KEPT_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-storage-class",
        "x-amz-website-redirect-location",
    }
)


def modified_ms(status: os.stat_result) -> int:
    """When a file was modified, in milliseconds, from 1970 to the end of 9999."""
    return max(0, min(status.st_mtime_ns // 1_000_000, _LATEST_MS))


class Identity(Struct, frozen=True, array_like=True):
    """Which file with which content: what a record is bound to."""

    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        mtime_ns = max(-_LATEST_NS, min(status.st_mtime_ns, _LATEST_NS))
        return cls(status.st_ino, status.st_size, mtime_ns)

    @property
    def name(self) -> str:
        """A file name for the record where it is a file."""
        return f"{self.inode:x}.{self.size_bytes:x}.{self.mtime_ns:x}"

    @property
    def etag(self) -> str:
        """The ETag of a file of others: not of a form that clients take for an MD5 or parts."""
        return f"f{self.mtime_ns:x}.{self.inode:x}.{self.size_bytes:x}"


class Description(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the writer of an object said of it."""

    headers: dict[str, str] = field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()


class Record(Description, frozen=True, kw_only=True, omit_defaults=True):
    """All that is kept of one object. `etag` None: a file of others that was given tags.

    `parts` are runs of (how many, bytes each) in order; empty for what was never multipart.
    """

    identity: Identity
    etag: str | None = None
    checksums: dict[str, str] = field(default_factory=dict)
    checksum_type: ChecksumType | None = None
    parts: tuple[tuple[int, int], ...] = ()


def describe(headers: Mapping[str, str]) -> Description:
    """What the headers of a write say of the new object, as far as a directory can keep it.

    MetadataTooLarge, InvalidTag, InvalidArgument; NotImplemented for encryption, InvalidRequest
    for object lock: promises that a folder does not keep must not be taken.
    """
    kept: dict[str, str] = {}
    metadata_bytes = 0
    for name, value in headers.items():
        if name.startswith("x-amz-meta-"):
            metadata_bytes += len(name) - len("x-amz-meta-") + len(_utf8(value))
            kept[name] = value
        elif name in _KEPT_HEADERS:
            _utf8(value)
            kept[name] = value
        elif name.startswith("x-amz-server-side-encryption"):
            raise S3NotImplemented("A directory origin does not encrypt what it stores.")
        elif name.startswith("x-amz-object-lock-"):
            raise InvalidRequest("Bucket is missing Object Lock Configuration")
    if metadata_bytes > METADATA_LIMIT_BYTES:
        raise MetadataTooLarge(
            fields={"Size": str(metadata_bytes), "MaxSizeAllowed": str(METADATA_LIMIT_BYTES)}
        )
    if kept.get("x-amz-storage-class") == "STANDARD":
        del kept["x-amz-storage-class"]
    kept.setdefault("content-type", DEFAULT_TYPE)
    return Description(headers=kept, tags=parse_tagging(headers.get("x-amz-tagging", "")))


def parse_tagging(query: str) -> tuple[tuple[str, str], ...]:
    """The tags in an `x-amz-tagging` header. InvalidArgument, InvalidTag."""
    if not query:
        return ()
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError as error:
        raise InvalidArgument(
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query "
            "parameters without tag name duplicates.",
            fields={"ArgumentName": "x-amz-tagging", "ArgumentValue": query},
        ) from error
    return check_tags(pairs)


def check_tags(
    pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...], limit: int = TAG_LIMIT
) -> tuple[tuple[str, str], ...]:
    """The tags as they will be kept. InvalidTag beyond S3's limits."""
    if len(pairs) > limit:
        raise InvalidTag(f"There can be at most {limit} tags.")
    if len({name for name, _ in pairs}) != len(pairs):
        raise InvalidTag("Cannot provide multiple Tags with the same key")
    for name, value in pairs:
        if not 1 <= len(name) <= 128:
            raise InvalidTag("The TagKey you have provided is invalid")
        if len(value) > 256:
            raise InvalidTag("The TagValue you have provided is invalid")
        _utf8(name + value)
    return tuple(pairs)


def info_of(key: str, status: os.stat_result, record: Record | None, now_ns: int) -> ObjectInfo:
    """What HeadObject tells of a file, with the record that matches it if there is one."""
    identity = Identity.of(status)
    ours = record is not None and record.etag is not None
    if record is not None and ours:
        headers = dict(record.headers)
    else:
        kind, encoding = mimetypes.guess_type(key.rpartition("/")[2], strict=False)
        # A compressed file is served as what it is: nobody asked for it to be unpacked in transit.
        headers = {"content-type": kind if kind and not encoding else DEFAULT_TYPE}
    if record is not None and record.tags:
        headers["x-amz-tagging-count"] = str(len(record.tags))
    age_ns = now_ns - status.st_mtime_ns
    return ObjectInfo(
        etag=etag_of(identity, record),
        size_bytes=status.st_size,
        last_modified_ms=modified_ms(status),
        headers=headers,
        checksums=record.checksums if record is not None else {},
        checksum_type=record.checksum_type if record is not None else None,
        cacheable=ours or not -_CLOCK_AHEAD_NS < age_ns < _RACY_NS,
    )


def etag_of(identity: Identity, record: Record | None) -> str:
    """The ETag of a file: its record's, else its identity's."""
    return record.etag if record is not None and record.etag is not None else identity.etag


def part_of(record: Record | None, size_bytes: int, number: int) -> PartSpan | None:
    """Where part `number` lies, or None where there is no such part."""
    runs = record.parts if record is not None and record.parts else ((1, size_bytes),)
    count = sum(times for times, _ in runs)
    if not 1 <= number <= count:
        return None
    start = 0
    before = number - 1
    for times, each_bytes in runs:
        if before < times:
            start += before * each_bytes
            return PartSpan(number, start, start + each_bytes, count)
        before -= times
        start += times * each_bytes
    return None


def runs_of(sizes_bytes: list[int]) -> tuple[tuple[int, int], ...]:
    """Part sizes as runs of equal ones: mostly two, so that ten thousand parts still fit."""
    runs: list[tuple[int, int]] = []
    for size_bytes in sizes_bytes:
        if runs and runs[-1][1] == size_bytes:
            runs[-1] = (runs[-1][0] + 1, size_bytes)
        else:
            runs.append((1, size_bytes))
    return tuple(runs)


class Records:
    """The records of one bucket's files. `attributes` False: never in extended attributes."""

    def __init__(self, bucket: Folder, *, attributes: bool = True) -> None:
        self._bucket = bucket
        self._attributes = attributes

    def attach(self, fd: int, record: Record) -> None:
        """Keeps a record for the open file, replacing the one it has, in one step."""
        raw = msgspec.msgpack.encode(record)
        if self._attributes:
            try:
                os.setxattr(fd, ATTRIBUTE, raw)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTES:
                    raise
            else:
                return
        # First the file: should we stop in between, the older attribute is still the answer.
        self._write(record.identity, raw)
        if self._attributes:
            try:
                os.removexattr(fd, ATTRIBUTE)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTES | {errno.ENODATA}:
                    raise

    def load(self, fd: int) -> tuple[os.stat_result, Record | None]:
        """An open file's status, and the record that matches it. FileNotFoundError where the
        file has no name any more and its record may have gone before it."""
        status = os.fstat(fd)
        record = self._find(fd, status)
        if record is None:
            # Edited in the meantime, it is a file of others in any case.
            status = os.fstat(fd)
            if status.st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "replaced while being looked at")
        return status, record

    def peek(self, folder: Folder, name: str) -> tuple[os.stat_result, Record | None] | None:
        """As `load`, by name and without opening the file: for listings. None if it is gone."""
        status = folder.stat(name)
        # Between two looks at a name it may be given to another file; then look again.
        while status is not None:
            record = self._find(f"/proc/self/fd/{folder.fd}/{name}", status)
            if record is not None:
                return status, record
            after = folder.stat(name)
            if after is not None and Identity.of(after) == Identity.of(status):
                return status, None
            status = after
        return None

    def drop(self, status: os.stat_result) -> None:
        """Forgets the record of a file whose last name is gone."""
        if status.st_nlink <= 1:
            identity = Identity.of(status)
            try:
                with self._bucket.enter(*_shelf(identity)) as shelf:
                    shelf.unlink(identity.name)
            except ABSENT:
                return

    def _find(self, file: int | str, status: os.stat_result) -> Record | None:
        raw = self._attribute(file) if self._attributes else None
        record = _parse(raw, status)
        if record is None:
            record = _parse(self._read(Identity.of(status)), status)
        return record

    def _attribute(self, file: int | str) -> bytes | None:
        try:
            if isinstance(file, int):
                return os.getxattr(file, ATTRIBUTE)
            return os.getxattr(file, ATTRIBUTE, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_ATTRIBUTES | {errno.ENODATA, errno.ENOENT, errno.ENOTDIR}:
                return None
            raise

    def _read(self, identity: Identity) -> bytes | None:
        try:
            with self._bucket.enter(*_shelf(identity)) as shelf:
                return shelf.read(identity.name)
        except ABSENT:
            return None

    def _write(self, identity: Identity, raw: bytes) -> None:
        write_whole(self._bucket, (*_shelf(identity), identity.name), raw)


def _shelf(identity: Identity) -> tuple[str, str, str]:
    return STATE_NAME, "records", f"{identity.inode & 0xFF:02x}"


def _parse(raw: bytes | None, status: os.stat_result) -> Record | None:
    if raw is None:
        return None
    try:
        record = msgspec.msgpack.decode(raw, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Anyone may write an attribute of this name.
        return None
    return record if record.identity == Identity.of(status) else None


def _utf8(value: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument("Headers and tags must be valid UTF-8.") from error
