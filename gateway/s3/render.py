"""S3's XML answers but for listings. Pure.

Text that XML 1.0 cannot carry goes out as a numeric character reference, which is what AWS sends;
clients that may meet such keys ask for `encoding-type=url`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from gateway.errors import S3Error
from gateway.model.objects import BucketEntry, DeleteResult, ObjectInfo, PutResult

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
OWNER_ID = "feedrack"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

_SPECIAL = re.compile(r'[&<>"\x00-\x08\x0b-\x1f\x7f\ufffe\uffff]')
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
# What the text of an error may hold: it is often what a client sent, and must always parse.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """Text as element content."""
    return _SPECIAL.sub(lambda match: _NAMED.get(match[0]) or f"&#x{ord(match[0]):x};", text)


def element(name: str, text: str) -> str:
    """`<name>text</name>`, escaped."""
    return f"<{name}>{escape(text)}</{name}>"


def optional(name: str, text: str | None) -> str:
    """The element, or nothing where there is no text."""
    return "" if text is None else element(name, text)


def document(name: str, content: Iterable[str]) -> bytes:
    """A whole document with `content` (already elements) in S3's namespace."""
    return f"{_DECLARATION}<{name} {NAMESPACE}>{''.join(content)}</{name}>".encode()


def iso_date(milliseconds: int) -> str:
    """A time in milliseconds since the epoch as listings write it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


def owner(name: str = "Owner") -> str:
    """Who owns everything here."""
    return f"<{name}><ID>{OWNER_ID}</ID><DisplayName>{OWNER_ID}</DisplayName></{name}>"


def error(failure: S3Error, *, resource: str, request_id: str, host_id: str) -> bytes:
    """The body of an error answer."""
    parts = [
        ("Code", failure.code),
        ("Message", failure.message),
        *failure.fields.items(),
        ("Resource", resource),
        ("RequestId", request_id),
        ("HostId", host_id),
    ]
    content = "".join(element(name, _UNPRINTABLE.sub("\ufffd", text)) for name, text in parts)
    return f"{_DECLARATION}<Error>{content}</Error>".encode()


def list_buckets(buckets: Sequence[BucketEntry], *, prefix: str, token: str | None) -> bytes:
    rows = "".join(
        f"<Bucket>{element('Name', bucket.name)}"
        f"{element('CreationDate', iso_date(bucket.created_ms))}</Bucket>"
        for bucket in buckets
    )
    return document(
        "ListAllMyBucketsResult",
        (
            owner(),
            f"<Buckets>{rows}</Buckets>",
            optional("Prefix", prefix or None),
            optional("ContinuationToken", token),
        ),
    )


def location(region: str) -> bytes:
    """GetBucketLocation; us-east-1 is the empty constraint."""
    text = "" if region == "us-east-1" else escape(region)
    return f"{_DECLARATION}<LocationConstraint {NAMESPACE}>{text}</LocationConstraint>".encode()


def versioning() -> bytes:
    """A bucket that never was versioned."""
    return document("VersioningConfiguration", ())


def private_acl() -> bytes:
    """The canned private ACL: the owner may do everything."""
    grantee = (
        f'<Grantee xmlns:xsi="{_INSTANCE}" xsi:type="CanonicalUser">'
        f"<ID>{OWNER_ID}</ID><DisplayName>{OWNER_ID}</DisplayName></Grantee>"
    )
    grant = f"<Grant>{grantee}<Permission>FULL_CONTROL</Permission></Grant>"
    return document(
        "AccessControlPolicy", (owner(), f"<AccessControlList>{grant}</AccessControlList>")
    )


def tagging(tags: Sequence[tuple[str, str]]) -> bytes:
    rows = "".join(
        f"<Tag>{element('Key', key)}{element('Value', value)}</Tag>" for key, value in tags
    )
    return document("Tagging", (f"<TagSet>{rows}</TagSet>",))


def copied(name: str, result: PutResult, *, last_modified_ms: int) -> bytes:
    """CopyObjectResult and CopyPartResult."""
    return document(
        name,
        (
            element("LastModified", iso_date(last_modified_ms)),
            element("ETag", f'"{result.etag}"'),
            checksum_elements(result.checksums),
            optional("ChecksumType", result.checksum_type),
        ),
    )


def checksum_elements(checksums: Mapping[str, str]) -> str:
    return "".join(element(f"Checksum{name}", value) for name, value in checksums.items())


def upload_created(bucket: str, key: str, upload_id: str) -> bytes:
    return document(
        "InitiateMultipartUploadResult",
        (element("Bucket", bucket), element("Key", key), element("UploadId", upload_id)),
    )


def upload_completed(place: str, bucket: str, key: str, result: PutResult) -> bytes:
    return document(
        "CompleteMultipartUploadResult",
        (
            element("Location", place),
            element("Bucket", bucket),
            element("Key", key),
            element("ETag", f'"{result.etag}"'),
            checksum_elements(result.checksums),
            optional("ChecksumType", result.checksum_type),
        ),
    )


def deleted(results: Sequence[DeleteResult], *, quiet: bool) -> bytes:
    """DeleteResult: what was deleted (unless quiet), and what was not."""
    return document("DeleteResult", (_deleted(result, quiet=quiet) for result in results))


def _deleted(result: DeleteResult, *, quiet: bool) -> str:
    named = element("Key", result.key) + optional("VersionId", result.version_id)
    if result.error_code is not None:
        message = element("Message", result.error_message or "")
        return f"<Error>{named}{element('Code', result.error_code)}{message}</Error>"
    if quiet:
        return ""
    if result.delete_marker:
        named += "<DeleteMarker>true</DeleteMarker>"
        named += optional("DeleteMarkerVersionId", result.delete_marker_version_id)
    return f"<Deleted>{named}</Deleted>"


def attributes(info: ObjectInfo, wanted: frozenset[str], part_count: int | None) -> bytes:
    """GetObjectAttributes, of those `wanted`."""
    content = []
    if "ETag" in wanted:
        content.append(element("ETag", info.etag))
    if "Checksum" in wanted and info.checksums:
        kind = optional("ChecksumType", info.checksum_type)
        content.append(f"<Checksum>{checksum_elements(info.checksums)}{kind}</Checksum>")
    if "ObjectParts" in wanted and part_count is not None:
        content.append(f"<ObjectParts><PartsCount>{part_count}</PartsCount></ObjectParts>")
    if "StorageClass" in wanted:
        content.append(element("StorageClass", info.headers.get("x-amz-storage-class", "STANDARD")))
    if "ObjectSize" in wanted:
        content.append(element("ObjectSize", str(info.size_bytes)))
    return document("GetObjectAttributesResponse", content)
