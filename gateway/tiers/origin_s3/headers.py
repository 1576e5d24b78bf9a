"""S3's headers and XML fields to our own words and back. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html (response syntax)
https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html (request syntax)
"""

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from typing import Any

from gateway.errors import InvalidArgument
from gateway.model.checksums import ALGORITHMS, HEADER_BY_ALGORITHM
from gateway.model.checksums import among as checksums_among
from gateway.model.conditions import Conditions, WriteConditions, unquote_etag
from gateway.model.objects import ChecksumType, ObjectInfo, PutResult
from gateway.model.ranges import ByteRange

FIELD_BY_ALGORITHM = {name: f"Checksum{name}" for name in ALGORITHMS}

_DESCRIBING = frozenset({
    "cache-control", "content-disposition", "content-encoding", "content-language",
    "content-type", "expires",
})  # fmt: skip
# x-amz-* headers that describe the answer, the request or the version, not the object.
_ABOUT_THE_ANSWER = re.compile(
    r"x-amz-(request-id|id-2|cf-id|version-id|delete-marker|mp-parts-count|bucket-region"
    r"|checksum-.*|copy-source-version-id|replication-status-.*)"
)
_SSE_C = "x-amz-server-side-encryption-customer-algorithm"
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})", re.ASCII)


def object_info(
    headers: Mapping[str, str], size_bytes: int, *, checksums_known: bool
) -> ObjectInfo | None:
    """What the lower-case answer headers tell; None without an ETag, for then they name no
    version. `size_bytes` is the whole object's."""
    etag = unquote_etag(headers.get("etag", ""))
    if not etag:
        return None
    return ObjectInfo(
        etag=etag,
        size_bytes=size_bytes,
        last_modified_ms=_date_ms(headers.get("last-modified", "")),
        version_id=headers.get("x-amz-version-id"),
        headers=_describing(headers),
        checksums=checksums_among(headers) if checksums_known else {},
        checksum_type=_checksum_type(headers) if checksums_known else None,
        checksums_known=checksums_known,
        cacheable=_SSE_C not in headers,
    )


def put_result(headers: Mapping[str, str], said: Mapping[str, Any] | None = None) -> PutResult:
    """What the answer to a write tells; `said` is its XML body (copies, completed uploads)."""
    said = said or {}
    fields = {name: said[field] for name, field in FIELD_BY_ALGORITHM.items() if said.get(field)}
    etag = said.get("ETag") or headers.get("etag", "")
    return PutResult(
        etag=unquote_etag(etag),
        version_id=headers.get("x-amz-version-id"),
        last_modified_ms=datetime_ms(said["LastModified"]) if "LastModified" in said else None,
        checksums=checksums_among(headers) | fields,
        checksum_type=said.get("ChecksumType") or _checksum_type(headers),
        headers={
            name: value
            for name, value in headers.items()
            if name.startswith("x-amz-")
            and (name == "x-amz-copy-source-version-id" or not _ABOUT_THE_ANSWER.fullmatch(name))
        },
    )


def checksum_headers(values: Mapping[str, str]) -> dict[str, str]:
    return {HEADER_BY_ALGORITHM[algorithm]: value for algorithm, value in values.items()}


def content_range(value: str | None) -> tuple[ByteRange, int] | None:
    """A Content-Range as (bytes, size of the whole); None where it is none or unsatisfied."""
    match = _CONTENT_RANGE.fullmatch((value or "").strip())
    if match is None:
        return None
    first, last, total = (int(group) for group in match.groups())
    if not first <= last < total:
        return None
    return ByteRange(first, last + 1), total


def outgoing(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a new object as they go out. InvalidArgument where HTTP cannot carry one."""
    sent = {}
    for name, value in headers.items():
        if name == "content-encoding":
            value = _without_aws_chunked(value)
            if not value:
                continue
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"The value of {name} is not UTF-8.") from error
        sent[name] = value
    return sent


def write_conditions(conditions: WriteConditions) -> dict[str, str]:
    headers = {}
    if conditions.if_match is not None:
        headers["if-match"] = quoted(conditions.if_match)
    if conditions.if_none_match_any:
        headers["if-none-match"] = "*"
    return headers


def copy_source_conditions(conditions: Conditions) -> dict[str, str]:
    """The conditions on a copy's source."""
    headers = {}
    if conditions.if_match:
        headers["if-match"] = ", ".join(quoted(etag) for etag in conditions.if_match)
    if conditions.if_none_match:
        headers["if-none-match"] = ", ".join(quoted(etag) for etag in conditions.if_none_match)
    if conditions.if_modified_since is not None:
        headers["if-modified-since"] = formatdate(conditions.if_modified_since, usegmt=True)
    if conditions.if_unmodified_since is not None:
        headers["if-unmodified-since"] = formatdate(conditions.if_unmodified_since, usegmt=True)
    return {f"x-amz-copy-source-{name}": value for name, value in headers.items()}


def quoted(etag: str) -> str:
    return etag if etag == "*" else f'"{etag}"'


def datetime_ms(value: datetime) -> int:
    """A datetime of botocore's as milliseconds since the epoch."""
    return round(value.timestamp() * 1000)


def _describing(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {}
    for name, value in headers.items():
        if name == "content-encoding":
            value = _without_aws_chunked(value)
            if not value:
                continue
        if name in _DESCRIBING or (
            name.startswith("x-amz-") and not _ABOUT_THE_ANSWER.fullmatch(name)
        ):
            kept[name] = value
    return kept


def _without_aws_chunked(value: str) -> str:
    """aws-chunked is a transfer's framing: some origins keep it as if it were the object's."""
    parts = [part.strip() for part in value.split(",")]
    kept = [part for part in parts if part and part.lower() != "aws-chunked"]
    return value if len(kept) == len(parts) else ", ".join(kept)


def _checksum_type(headers: Mapping[str, str]) -> ChecksumType | None:
    """As the origin says; one that does not gives it away by a composite value's "-N"."""
    values = checksums_among(headers).values()
    match headers.get("x-amz-checksum-type"):
        case "FULL_OBJECT":
            return "FULL_OBJECT"
        case "COMPOSITE":
            return "COMPOSITE"
        case _ if not values:
            return None
        case _:
            return "COMPOSITE" if any("-" in value for value in values) else "FULL_OBJECT"


def _date_ms(value: str) -> int:
    try:
        return round(parsedate_to_datetime(value).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0
