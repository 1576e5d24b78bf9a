"""What a copy reads from: the x-amz-copy-source headers. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html
"""

import re
from urllib.parse import quote

from msgspec import Struct

from gateway.errors import InvalidArgument, InvalidURI
from gateway.model.ranges import ByteRange
from gateway.s3.operation import check_key, decode

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})", re.ASCII)


class CopySource(Struct, frozen=True):
    bucket: str
    key: str
    version_id: str | None = None

    def header(self, bucket: str) -> str:
        """The header that names this object in `bucket`."""
        path = quote(f"/{bucket}/{self.key}", safe="/")
        return path if self.version_id is None else f"{path}?versionId={quote(self.version_id)}"


def parse_copy_source(header: str) -> CopySource:
    """`[/]bucket/key[?versionId=id]`, percent-encoded. InvalidArgument where it is not that."""
    path, separator, version_id = header.partition("?versionId=")
    try:
        bucket, slash, key = decode(path).removeprefix("/").partition("/")
        version_id = decode(version_id)
    except InvalidURI as error:
        raise _invalid(header) from error
    if not bucket or not slash or not key or bucket.startswith("arn:"):
        raise _invalid(header)
    if separator and not version_id:
        raise InvalidArgument("Version id cannot be the empty string")
    return CopySource(bucket, check_key(key), version_id if separator else None)


def parse_source_range(header: str | None) -> ByteRange | None:
    """`bytes=first-last`, both ends given, as UploadPartCopy demands. InvalidArgument."""
    if header is None:
        return None
    match = _RANGE.fullmatch(header)
    if match is None or int(match[1]) > int(match[2]):
        raise InvalidArgument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first "
            "and last are the zero-based offsets of the first and last bytes to copy",
            fields={"ArgumentName": "x-amz-copy-source-range", "ArgumentValue": header},
        )
    return ByteRange(int(match[1]), int(match[2]) + 1)


def _invalid(header: str) -> InvalidArgument:
    return InvalidArgument(
        "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
        fields={"ArgumentName": "x-amz-copy-source", "ArgumentValue": header},
    )
