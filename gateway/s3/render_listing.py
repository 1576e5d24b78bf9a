"""Listings as XML: objects (v1, v2), versions, uploads, parts. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from collections.abc import Callable, Iterable
from urllib.parse import quote_plus

from msgspec import Struct

from gateway.model.objects import (
    ListPage,
    ObjectEntry,
    PartPage,
    UploadPage,
    VersionEntry,
    VersionPage,
)
from gateway.s3.render import checksum_elements, document, element, iso_date, optional, owner


class ListingRequest(Struct, frozen=True, kw_only=True):
    """What was asked for, to be echoed. `url_encoded` is `encoding-type=url`."""

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    limit: int = 1000
    url_encoded: bool = False

    @property
    def coder(self) -> Callable[[str], str]:
        """How keys and everything made of keys are written."""
        return _url_encode if self.url_encoded else str


def _url_encode(text: str) -> str:
    # A space is a plus and a slash stays, as AWS does it and as clients undo it.
    return quote_plus(text, safe="/")


def objects_v1(asked: ListingRequest, page: ListPage, *, marker: str) -> bytes:
    code = asked.coder
    next_marker = page.next_after if asked.delimiter else None
    return document(
        "ListBucketResult",
        (
            element("Name", asked.bucket),
            element("Prefix", code(asked.prefix)),
            element("Marker", code(marker)),
            optional("NextMarker", None if next_marker is None else code(next_marker)),
            element("MaxKeys", str(asked.limit)),
            optional("Delimiter", code(asked.delimiter) or None),
            *_tail(asked, truncated=page.next_after is not None),
            *(_object(entry, code, owned=True) for entry in page.objects),
            *_prefixes(page.common_prefixes, code),
        ),
    )


def objects_v2(
    asked: ListingRequest,
    page: ListPage,
    *,
    token: str | None,
    next_token: str | None,
    start_after: str | None,
    fetch_owner: bool,
) -> bytes:
    code = asked.coder
    return document(
        "ListBucketResult",
        (
            element("Name", asked.bucket),
            element("Prefix", code(asked.prefix)),
            optional("ContinuationToken", token),
            optional("NextContinuationToken", next_token),
            optional("StartAfter", None if start_after is None else code(start_after)),
            element("KeyCount", str(len(page.objects) + len(page.common_prefixes))),
            element("MaxKeys", str(asked.limit)),
            optional("Delimiter", code(asked.delimiter) or None),
            *_tail(asked, truncated=next_token is not None),
            *(_object(entry, code, owned=fetch_owner) for entry in page.objects),
            *_prefixes(page.common_prefixes, code),
        ),
    )


def versions(
    asked: ListingRequest, page: VersionPage, *, key_marker: str, version_id_marker: str
) -> bytes:
    code = asked.coder
    next_key = page.next_key_marker
    return document(
        "ListVersionsResult",
        (
            element("Name", asked.bucket),
            element("Prefix", code(asked.prefix)),
            element("KeyMarker", code(key_marker)),
            element("VersionIdMarker", version_id_marker),
            optional("NextKeyMarker", None if next_key is None else code(next_key)),
            optional("NextVersionIdMarker", page.next_version_id_marker),
            element("MaxKeys", str(asked.limit)),
            optional("Delimiter", code(asked.delimiter) or None),
            *_tail(asked, truncated=next_key is not None),
            *(_version(entry, code) for entry in page.versions),
            *_prefixes(page.common_prefixes, code),
        ),
    )


def uploads(
    asked: ListingRequest, page: UploadPage, *, key_marker: str, upload_id_marker: str
) -> bytes:
    code = asked.coder
    next_key = page.next_key_marker
    rows = (
        f"<Upload>{element('Key', code(entry.key))}{element('UploadId', entry.upload_id)}"
        f"{owner('Initiator')}{owner()}{element('StorageClass', entry.storage_class)}"
        f"{element('Initiated', iso_date(entry.initiated_ms))}</Upload>"
        for entry in page.uploads
    )
    return document(
        "ListMultipartUploadsResult",
        (
            element("Bucket", asked.bucket),
            element("KeyMarker", code(key_marker)),
            element("UploadIdMarker", upload_id_marker),
            optional("NextKeyMarker", None if next_key is None else code(next_key)),
            optional("NextUploadIdMarker", page.next_upload_id_marker),
            element("Prefix", code(asked.prefix)),
            optional("Delimiter", code(asked.delimiter) or None),
            element("MaxUploads", str(asked.limit)),
            *_tail(asked, truncated=next_key is not None),
            *rows,
            *_prefixes(page.common_prefixes, code),
        ),
    )


def parts(
    asked: ListingRequest, page: PartPage, *, key: str, upload_id: str, after_number: int
) -> bytes:
    rows = (
        f"<Part><PartNumber>{entry.number}</PartNumber>"
        f"{element('LastModified', iso_date(entry.last_modified_ms))}"
        f"{element('ETag', _quoted(entry.etag))}<Size>{entry.size_bytes}</Size>"
        f"{checksum_elements(entry.checksums)}</Part>"
        for entry in page.parts
    )
    next_number = page.next_number
    return document(
        "ListPartsResult",
        (
            element("Bucket", asked.bucket),
            element("Key", asked.coder(key)),
            element("UploadId", upload_id),
            owner("Initiator"),
            owner(),
            element("StorageClass", page.storage_class),
            element("PartNumberMarker", str(after_number)),
            optional("NextPartNumberMarker", None if next_number is None else str(next_number)),
            element("MaxParts", str(asked.limit)),
            *_tail(asked, truncated=next_number is not None),
            optional("ChecksumAlgorithm", page.checksum_algorithm),
            optional("ChecksumType", page.checksum_type),
            *rows,
        ),
    )


def _tail(asked: ListingRequest, *, truncated: bool) -> tuple[str, str]:
    encoding = "<EncodingType>url</EncodingType>" if asked.url_encoded else ""
    return encoding, element("IsTruncated", "true" if truncated else "false")


def _object(entry: ObjectEntry, code: Callable[[str], str], *, owned: bool) -> str:
    algorithms = "".join(element("ChecksumAlgorithm", name) for name in entry.checksum_algorithms)
    return (
        f"<Contents>{element('Key', code(entry.key))}"
        f"<LastModified>{iso_date(entry.last_modified_ms)}</LastModified>"
        f"{element('ETag', _quoted(entry.etag))}{algorithms}"
        f"{optional('ChecksumType', entry.checksum_type)}<Size>{entry.size_bytes}</Size>"
        f"{owner() if owned else ''}{element('StorageClass', entry.storage_class)}</Contents>"
    )


def _version(entry: VersionEntry, code: Callable[[str], str]) -> str:
    named = (
        f"{element('Key', code(entry.key))}{element('VersionId', entry.version_id)}"
        f"<IsLatest>{'true' if entry.is_latest else 'false'}</IsLatest>"
        f"<LastModified>{iso_date(entry.last_modified_ms)}</LastModified>"
    )
    if entry.delete_marker:
        return f"<DeleteMarker>{named}{owner()}</DeleteMarker>"
    return (
        f"<Version>{named}{element('ETag', _quoted(entry.etag))}<Size>{entry.size_bytes}</Size>"
        f"{element('StorageClass', entry.storage_class)}{owner()}</Version>"
    )


def _prefixes(prefixes: Iterable[str], code: Callable[[str], str]) -> Iterable[str]:
    return (
        f"<CommonPrefixes>{element('Prefix', code(prefix))}</CommonPrefixes>" for prefix in prefixes
    )


def _quoted(etag: str) -> str:
    return f'"{etag}"'
