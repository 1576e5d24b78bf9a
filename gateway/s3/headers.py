"""Request headers that describe an object, and answer headers that tell of one. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html
https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingMetadata.html
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache

from msgspec.structs import replace

from gateway.auth.request import RequestHead
from gateway.errors import (
    InvalidArgument,
    InvalidRequest,
    InvalidStorageClass,
    MetadataTooLarge,
)
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.model.checksums import ALGORITHMS, HEADER_BY_ALGORITHM
from gateway.model.conditions import (
    UNCONDITIONAL,
    Conditions,
    WriteConditions,
    parse_conditions,
    unquote_etag,
)
from gateway.model.objects import ChecksumType, ObjectInfo, PutResult
from gateway.s3.tags import parse_tagging_header

_META = "x-amz-meta-"
_METADATA_LIMIT_BYTES = 2048
_LOCK = "x-amz-object-lock-"
_ENCRYPTION = "x-amz-server-side-encryption"
_CUSTOMER_KEYS = frozenset(
    f"{prefix}-customer-{part}"
    for prefix in (_ENCRYPTION, f"x-amz-copy-source{_ENCRYPTION.removeprefix('x-amz')}")
    for part in ("algorithm", "key", "key-md5")
)
_STORED = frozenset(
    (
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-storage-class",
        "x-amz-tagging",
        "x-amz-website-redirect-location",
    )
)
_STORAGE_CLASSES = frozenset(
    (
        "STANDARD",
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER",
        "GLACIER_IR",
        "DEEP_ARCHIVE",
        "EXPRESS_ONEZONE",
    )
)
_PRIVATE_ACLS = frozenset(("private", "bucket-owner-full-control", "bucket-owner-read"))
_NO_ACLS = "ACLs other than private are not implemented; tenants' policies say who may do what."
CONDITIONS = frozenset(("if-match", "if-none-match", "if-modified-since", "if-unmodified-since"))
# Conditions and the like that S3 heeds in directory buckets only; to ignore one could cost data.
_EXPRESS_ONLY = (
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-write-offset-bytes",
)
_SIGNATURE = frozenset(
    (
        "x-amz-algorithm",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    )
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OVERRIDES = {
    f"response-{name}": name
    for name in (
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    )
}


def with_hoisted(head: RequestHead) -> RequestHead:
    """The head with the x-amz-* headers that a presigned URL carries in its query.

    Some SDKs put them there, and S3 heeds them; they are covered by the signature.
    """
    if "X-Amz-Signature=" not in head.query:
        return head
    sent = {name for name, _ in head.headers}
    hoisted = tuple(
        (name.lower(), value)
        for name, value in head.query_pairs
        if name.lower().startswith("x-amz-")
        and name.lower() not in _SIGNATURE
        and name.lower() not in sent
    )
    return replace(head, headers=head.headers + hoisted) if hoisted else head


def object_headers(head: RequestHead) -> dict[str, str]:
    """The headers to keep with a new object.

    MetadataTooLarge, InvalidStorageClass, InvalidTag and NotImplemented (for an ACL) where one
    of them is not to be had.
    """
    check_acl(head)
    kept: dict[str, str] = {}
    for name, value in head.headers:
        if name.startswith(_META):
            # As S3 does: one name sent twice is one value, and what is not ASCII travels encoded.
            text = _metadata(value)
            kept[name] = f"{kept[name]},{text}" if name in kept else text
        elif name in _STORED or name.startswith((_LOCK, _ENCRYPTION)):
            kept.setdefault(name, _text(value))
    _check_metadata_size(kept)
    encoding = without_aws_chunked(kept.pop("content-encoding", ""))
    if encoding:
        kept["content-encoding"] = encoding
    storage_class = kept.get("x-amz-storage-class")
    if storage_class is not None and storage_class not in _STORAGE_CLASSES:
        raise InvalidStorageClass(fields={"StorageClassRequested": storage_class})
    parse_tagging_header(kept.get("x-amz-tagging", ""))
    return kept


def check_directory(headers: Mapping[str, str]) -> None:
    """Refuses what only an S3 origin can keep: encryption and locks. NotImplemented,
    InvalidRequest."""
    for name in headers:
        if name.startswith(_ENCRYPTION):
            raise NotImplementedS3(fields={"Header": name})
        if name.startswith(_LOCK):
            raise InvalidRequest("Bucket is missing Object Lock Configuration")


def check_acl(head: RequestHead) -> None:
    """NotImplemented for anything but a private ACL: policies say who may do what."""
    if any(name.startswith("x-amz-grant-") for name, _ in head.headers):
        raise NotImplementedS3(_NO_ACLS)
    acl = head.header("x-amz-acl")
    if acl is not None and acl not in _PRIVATE_ACLS:
        raise NotImplementedS3(_NO_ACLS)


def has_customer_key(head: RequestHead) -> bool:
    """Whether the request carries SSE-C headers: such objects are relayed and never kept."""
    return not _CUSTOMER_KEYS.isdisjoint(head.fields)


def read_conditions(head: RequestHead, prefix: str = "") -> Conditions:
    """The conditional headers; `prefix` is "" or "x-amz-copy-source-"."""
    if not prefix and CONDITIONS.isdisjoint(head.fields):
        return UNCONDITIONAL
    return parse_conditions(head.fields, prefix)


def write_conditions(head: RequestHead) -> WriteConditions:
    """If-Match and If-None-Match of a write. NotImplemented for what S3 does not take there."""
    for name in _EXPRESS_ONLY:
        if head.header(name) is not None:
            raise NotImplementedS3(fields={"Header": name})
    none_match = head.header("if-none-match")
    if_match = head.header("if-match")
    if none_match is not None and (none_match.strip() != "*" or if_match is not None):
        raise NotImplementedS3(fields={"Header": "If-None-Match"})
    return WriteConditions(
        if_match=None if if_match is None else unquote_etag(if_match),
        if_none_match_any=none_match is not None,
    )


def checksum_algorithm(head: RequestHead) -> str | None:
    """x-amz-checksum-algorithm of a copy or a multipart upload. InvalidRequest."""
    value = head.header("x-amz-checksum-algorithm")
    if value is None:
        return None
    if value.upper() not in ALGORITHMS:
        raise InvalidRequest(
            "Checksum algorithm provided is unsupported. Please try again with any of the valid "
            f"types: [{', '.join(ALGORITHMS)}]"
        )
    return value.upper()


def checksum_type(head: RequestHead) -> ChecksumType | None:
    """x-amz-checksum-type. InvalidRequest."""
    match head.header("x-amz-checksum-type"):
        case None:
            return None
        case "FULL_OBJECT":
            return "FULL_OBJECT"
        case "COMPOSITE":
            return "COMPOSITE"
        case _:
            raise InvalidRequest("Value for x-amz-checksum-type header is invalid.")


def announced_checksums(head: RequestHead) -> dict[str, str]:
    """Checksums in the request's own headers: algorithm → base64 value, unchecked."""
    found = {name: head.header(header) for name, header in HEADER_BY_ALGORITHM.items()}
    return {name: value for name, value in found.items() if value is not None}


def info_headers(info: ObjectInfo, *, checksums: bool) -> dict[str, str]:
    """What GetObject and HeadObject say of an object, but for its length and range."""
    answer = {"content-type": "binary/octet-stream", **info.headers}
    if answer.get("x-amz-storage-class") == "STANDARD":
        del answer["x-amz-storage-class"]
    answer["etag"] = f'"{info.etag}"'
    answer["last-modified"] = http_date(info.last_modified_ms)
    answer["accept-ranges"] = "bytes"
    if info.version_id is not None:
        answer["x-amz-version-id"] = info.version_id
    if checksums:
        answer.update(checksum_headers(info.checksums, info.checksum_type))
    return answer


def put_headers(result: PutResult) -> dict[str, str]:
    """What the answer to a write says of the new version."""
    answer = dict(result.headers)
    answer["etag"] = f'"{result.etag}"'
    if result.version_id is not None:
        answer["x-amz-version-id"] = result.version_id
    answer.update(checksum_headers(result.checksums, result.checksum_type))
    return answer


def checksum_headers(checksums: Mapping[str, str], kind: ChecksumType | None) -> dict[str, str]:
    """x-amz-checksum-* headers."""
    answer = {HEADER_BY_ALGORITHM[name]: value for name, value in checksums.items()}
    if answer and kind is not None:
        answer["x-amz-checksum-type"] = kind
    return answer


def response_overrides(query: Mapping[str, str]) -> dict[str, str]:
    """Answer headers that response-* parameters set. InvalidArgument for control characters."""
    found: dict[str, str] = {}
    if not query:
        return found
    for parameter, header in _OVERRIDES.items():
        value = query.get(parameter)
        if value is None:
            continue
        if _CONTROL.search(value):
            raise InvalidArgument(fields={"ArgumentName": parameter})
        found[header] = value
    return found


def http_date(milliseconds: int) -> str:
    """RFC 9110 date of a time in milliseconds since the epoch."""
    return _http_date(milliseconds // 1000)


@lru_cache(4096)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _check_metadata_size(headers: dict[str, str]) -> None:
    size_bytes = sum(
        len(name) - len(_META) + len(value.encode())
        for name, value in headers.items()
        if name.startswith(_META)
    )
    if size_bytes > _METADATA_LIMIT_BYTES:
        raise MetadataTooLarge(
            fields={"Size": str(size_bytes), "MaxSizeAllowed": str(_METADATA_LIMIT_BYTES)}
        )


def without_aws_chunked(encoding: str) -> str:
    """A Content-Encoding without the framing that S3 takes off."""
    kept = (part.strip() for part in encoding.split(","))
    return ",".join(part for part in kept if part and part.lower() != "aws-chunked")


def _text(value: str) -> str:
    """A header value as text; bytes that are not UTF-8 are taken for Latin-1. InvalidArgument."""
    if _CONTROL.search(value.replace("\t", " ")):
        raise InvalidArgument("A header's value has a control character in it.")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


def _metadata(value: str) -> str:
    text = _text(value)
    if text.isascii():
        return text
    return f"=?UTF-8?B?{b64encode(text.encode()).decode('ascii')}?="
