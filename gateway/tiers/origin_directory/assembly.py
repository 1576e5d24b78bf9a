"""What the parts of an upload make: order, sizes, ETag and checksum of the whole. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from gateway.errors import (
    BadDigest,
    EntityTooSmall,
    InvalidPart,
    InvalidPartOrder,
    InvalidRequest,
)
from gateway.model import checksums
from gateway.model.objects import ChecksumType, CompletedPart, PartEntry
from gateway.tiers.origin_directory.records import Description

PART_LIMIT = 10_000
PART_MINIMUM_BYTES = 5 * 1024**2


class Upload(Struct, frozen=True, kw_only=True):
    """What was said when an upload began."""

    key: str
    initiated_ms: int
    description: Description
    checksum_algorithm: str
    checksum_type: ChecksumType
    # Whether the client named an algorithm, or the default is computed unasked.
    checksum_named: bool


class Assembly(Struct, frozen=True, kw_only=True):
    """What a completed object will be, decided before its bytes are joined."""

    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    etag: str
    checksums: dict[str, str]
    checksum_type: ChecksumType


class Part(Struct, frozen=True):
    """A part as it lies there: its entry and its file's name."""

    entry: PartEntry
    name: str


def assemble(
    upload: Upload,
    found: Mapping[int, Part],
    wanted: Sequence[CompletedPart],
    *,
    expected: Mapping[str, str],
    expected_type: ChecksumType | None,
    expected_size_bytes: int | None = None,
) -> Assembly:
    """What the wanted parts make. Pure. InvalidPartOrder, InvalidPart, EntityTooSmall, BadDigest,
    InvalidRequest."""
    if not wanted:
        raise InvalidRequest("You must specify at least one part")
    if any(one.number >= two.number for one, two in pairwise(wanted)):
        raise InvalidPartOrder
    parts = [_match(found.get(asked.number), asked) for asked in wanted]
    for part in parts[:-1]:
        if part.entry.size_bytes < PART_MINIMUM_BYTES:
            raise EntityTooSmall(
                fields={
                    "ProposedSize": str(part.entry.size_bytes),
                    "MinSizeAllowed": str(PART_MINIMUM_BYTES),
                    "PartNumber": str(part.entry.number),
                    "ETag": part.entry.etag,
                }
            )
    size_bytes = sum(part.entry.size_bytes for part in parts)
    if expected_size_bytes not in (None, size_bytes):
        raise InvalidRequest(
            f"The x-amz-mp-object-size header says {expected_size_bytes} bytes, but the parts have "
            f"{size_bytes}."
        )
    algorithm = upload.checksum_algorithm
    if expected_type is not None and expected_type != upload.checksum_type:
        raise InvalidRequest(
            f"The upload was created using the {upload.checksum_type} checksum mode. The complete "
            "request must use the same checksum mode."
        )
    value = _whole(parts, algorithm, upload.checksum_type)
    for name, given in expected.items():
        kind = upload.checksum_type if name == algorithm else "FULL_OBJECT"
        whole = value if name == algorithm else _whole(parts, name, kind)
        # A composite value may come without its count.
        if given not in (whole, whole.partition("-")[0]):
            raise BadDigest(f"The {name.lower()} you specified did not match what we received.")
    return Assembly(
        names=tuple(part.name for part in parts),
        sizes_bytes=tuple(part.entry.size_bytes for part in parts),
        etag=checksums.multipart_etag([part.entry.etag for part in parts]),
        checksums={algorithm: value},
        checksum_type=upload.checksum_type,
    )


def _whole(parts: Sequence[Part], algorithm: str, kind: ChecksumType) -> str:
    sums = [part.entry.checksums.get(algorithm) for part in parts]
    known = [value for value in sums if value is not None]
    if len(known) < len(sums):
        raise InvalidRequest(f"Not every part was uploaded with a {algorithm} checksum.")
    if kind == "COMPOSITE":
        return checksums.composite(algorithm, known)
    sizes = [part.entry.size_bytes for part in parts]
    return checksums.full_object(algorithm, zip(known, sizes, strict=True))


def _match(part: Part | None, asked: CompletedPart) -> Part:
    fields = {"PartNumber": str(asked.number), "ETag": asked.etag}
    if part is None or part.entry.etag != asked.etag:
        raise InvalidPart(fields=fields)
    for algorithm, value in asked.checksums.items():
        if part.entry.checksums.get(algorithm, value) != value:
            raise InvalidPart(fields=fields)
    return part
