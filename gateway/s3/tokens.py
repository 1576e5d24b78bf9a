"""Continuation tokens: where a listing goes on, opaque to clients. Pure."""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from gateway.errors import InvalidArgument


def encode_token(after: str) -> str:
    """The token of the page that follows `after`."""
    raw = after.encode()
    return urlsafe_b64encode(zlib.crc32(raw).to_bytes(4, "big") + raw).decode("ascii")


def decode_token(token: str) -> str:
    """What `encode_token` was given. InvalidArgument for anything it never made."""
    try:
        raw = urlsafe_b64decode(token.encode("ascii"))
        after = raw[4:].decode("utf-8")
    except (Base64Error, UnicodeError, ValueError) as error:
        raise _incorrect() from error
    if encode_token(after) != token:
        raise _incorrect()
    return after


def _incorrect() -> InvalidArgument:
    return InvalidArgument(
        "The continuation token provided is incorrect",
        fields={"ArgumentName": "continuation-token"},
    )
