"""Tag sets: the rules S3 has for them, and the two ways they arrive. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
"""

import re
import unicodedata
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from gateway.errors import BadRequest, InvalidArgument, InvalidTag

OBJECT_LIMIT = 10
BUCKET_LIMIT = 50
_KEY_LIMIT_CHARS = 128
_VALUE_LIMIT_CHARS = 256
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

Tags = tuple[tuple[str, str], ...]


def check_tags(tags: Sequence[tuple[str, str]], limit: int) -> Tags:
    """The tags, if S3 would take them. BadRequest where there are too many, else InvalidTag."""
    if len(tags) > limit:
        kind = "Object" if limit == OBJECT_LIMIT else "Bucket"
        raise BadRequest(f"{kind} tags cannot be greater than {limit}")
    seen: set[str] = set()
    for key, value in tags:
        if not 1 <= len(key) <= _KEY_LIMIT_CHARS or not _allowed(key):
            raise InvalidTag("The TagKey you have provided is invalid", fields={"TagKey": key})
        if len(value) > _VALUE_LIMIT_CHARS or not _allowed(value):
            raise InvalidTag("The TagValue you have provided is invalid", fields={"TagKey": key})
        if key.startswith("aws:"):
            raise InvalidTag("System tags cannot be added/updated by requester")
        if key in seen:
            raise InvalidTag(
                "Cannot provide multiple Tags with the same key", fields={"TagKey": key}
            )
        seen.add(key)
    return tuple(tags)


def parse_tagging_header(header: str) -> Tags:
    """The tags of an x-amz-tagging header: a query string, "+" for a space. InvalidArgument."""
    if not header:
        return ()
    tags = []
    for pair in header.split("&"):
        key, _, value = pair.partition("=")
        tags.append((_decode(key), _decode(value)))
    return check_tags(tags, OBJECT_LIMIT)


def _decode(text: str) -> str:
    try:
        if _BROKEN_ESCAPE.search(text):
            raise _malformed()
        return unquote_to_bytes(text.replace("+", " ")).decode("utf-8")
    except UnicodeError as error:
        raise _malformed() from error


def _malformed() -> InvalidArgument:
    return InvalidArgument(
        "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query "
        "parameters without tag name duplicates.",
        fields={"ArgumentName": "x-amz-tagging"},
    )


def _allowed(text: str) -> bool:
    """Letters, numbers, spaces and _ . : / = + - @, of any script."""
    return all(char in "_.:/=+-@" or unicodedata.category(char)[0] in "LNZ" for char in text)
