"""One S3 request, understood: which operation, on what, with which parameters. Pure."""

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from msgspec import Struct, field

from gateway.errors import InvalidArgument, InvalidURI, KeyTooLongError

_KEY_LIMIT_BYTES = 1024
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"\d{1,10}", re.ASCII)


class Operation(Struct, frozen=True):
    """`name` is AWS's; `bucket` and `key` are "" where the operation has none; `query` holds the
    first value of each query parameter."""

    name: str
    bucket: str = ""
    key: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def version_id(self) -> str | None:
        """The version asked for. InvalidArgument where it is the empty string."""
        version_id = self.query.get("versionId")
        if version_id == "":
            raise InvalidArgument(
                "Version id cannot be the empty string",
                fields={"ArgumentName": "versionId", "ArgumentValue": ""},
            )
        return version_id

    @property
    def upload_id(self) -> str:
        return self.query.get("uploadId", "")

    @property
    def resource(self) -> str:
        """What errors name: `/bucket/key`."""
        return f"/{self.bucket}/{self.key}" if self.bucket else "/"

    def count(self, name: str, default: int = 1000) -> int:
        """A page size: 0 to 1,000, larger ones cut. InvalidArgument for anything else."""
        return min(self.integer(name, default, 0, 2_147_483_647), 1000)

    def integer(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A parameter that is a decimal within the bounds. InvalidArgument names it."""
        value = self.query.get(name)
        if value is None or value == "":
            return default
        if _INTEGER.fullmatch(value) is None or not lowest <= int(value) <= highest:
            raise InvalidArgument(
                f"Argument {name} must be an integer between {lowest} and {highest}",
                fields={"ArgumentName": name, "ArgumentValue": value},
            )
        return int(value)


def part_number(value: str) -> int:
    """A part number: 1 to 10,000. InvalidArgument."""
    if _INTEGER.fullmatch(value) is None or not 1 <= int(value) <= 10_000:
        raise InvalidArgument(
            "Part number must be an integer between 1 and 10000, inclusive",
            fields={"ArgumentName": "partNumber", "ArgumentValue": value},
        )
    return int(value)


def decode(text: str) -> str:
    """A percent-encoded part of a path, as it came, as text; a "+" stays a plus.

    InvalidURI where an escape is broken or the bytes are not UTF-8.
    """
    if "%" not in text and text.isascii():
        return text
    if _BROKEN_ESCAPE.search(text):
        raise InvalidURI
    try:
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidURI from error


def check_key(key: str) -> str:
    """The key. KeyTooLongError past 1,024 bytes of UTF-8."""
    if len(key) * 4 <= _KEY_LIMIT_BYTES:
        return key
    size_bytes = len(key.encode())
    if size_bytes > _KEY_LIMIT_BYTES:
        raise KeyTooLongError(
            fields={"Size": str(size_bytes), "MaxSizeAllowed": str(_KEY_LIMIT_BYTES)}
        )
    return key
