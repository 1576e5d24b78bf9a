"""The arithmetic of Signature Version 4: canonical forms, strings to sign, derived keys. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hmac
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from operator import itemgetter
from urllib.parse import quote, unquote_to_bytes

from gateway.config import Secret

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "s3"
TERMINATOR = "aws4_request"

# What is canonical already: unreserved characters, and upper-case escapes of all others. "/" is
# left alone in a path, where it is plain; an escaped slash stays escaped, as the client signed it.
_ESCAPES = r"%(?:[0189A-F][0-9A-F]|2[0-9ABCF]|3[A-F]|40|5[BCDE]|60|7[BCDF])"
_CANONICAL_PATH = re.compile(rf"(?:[A-Za-z0-9\-._~/]++|{_ESCAPES})*+")
_TOKEN = rf"(?:[A-Za-z0-9\-._~]++|{_ESCAPES})*+"
_CANONICAL_QUERY = re.compile(rf"{_TOKEN}(?:={_TOKEN})?+(?:&{_TOKEN}(?:={_TOKEN})?+)*+")
_BLANKS = re.compile(r"[ \t]+")


class SigningKey:
    """The key of one (secret, day, region), ready to sign: both of HMAC's pads are hashed already.

    RFC 2104; copying the two states takes a third of the time of a new HMAC.
    """

    __slots__ = ("inner", "outer")

    def __init__(self, secret: Secret, day: str, region: str) -> None:
        key = f"AWS4{secret.reveal()}".encode()
        for part in (day, region, SERVICE, TERMINATOR):
            key = hmac.digest(key, part.encode("utf-8", "surrogateescape"), "sha256")
        padded = key.ljust(64, b"\0")
        self.inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self.outer = sha256(bytes(byte ^ 0x5C for byte in padded))

    def sign(self, message: str) -> str:
        """The signature of a string to sign, in lower-case hex."""
        inner = self.inner.copy()
        inner.update(message.encode("utf-8", "surrogateescape"))
        outer = self.outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()


class Moment:
    """A key at one time of one scope: where all that is signed then begins alike, hashed already.

    `timestamp` is ISO 8601 basic, as it is signed; `seconds` the same since the epoch.
    """

    __slots__ = ("_inner", "_outer", "seconds", "timestamp")

    def __init__(self, key: SigningKey, timestamp: str, seconds: int, scope: str) -> None:
        self.timestamp = timestamp
        self.seconds = seconds
        self._inner = key.inner.copy()
        self._inner.update(_before_hash(timestamp, scope).encode("utf-8", "surrogateescape"))
        self._outer = key.outer

    def sign(self, canonical_request: str) -> str:
        """The signature of a request, in lower-case hex."""
        hashed = sha256(canonical_request.encode("utf-8", "surrogateescape"))
        inner = self._inner.copy()
        inner.update(hashed.hexdigest().encode())
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()


def canonical_path(path: str) -> str:
    """The path encoded once, S3's way: no "//", "." or ".." is touched."""
    if not path:
        return "/"
    if _CANONICAL_PATH.fullmatch(path):
        return path
    return "/".join([_encode(segment) for segment in path.split("/")])


def canonical_pairs(query: str) -> list[tuple[str, str]]:
    """The query's parameters, encoded, sorted by encoded name, then value."""
    pairs = [piece.partition("=")[::2] for piece in query.split("&") if piece]
    if not _CANONICAL_QUERY.fullmatch(query):
        pairs = [(_encode(name), _encode(value)) for name, value in pairs]
    pairs.sort()
    return pairs


class SignedHeaders:
    """The headers that a signature covers, named as in `text`: "host;x-amz-date"."""

    __slots__ = ("_lines", "_values", "covered", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = tuple(text.split(";"))
        self.covered = frozenset(self.names)
        # One format and one look-up for all of them: half of what a loop over them takes.
        self._values: Callable[[Mapping[str, str]], object] = itemgetter(*self.names)
        self._lines = "\n".join([f"{name.replace('%', '%%')}:%s" for name in self.names])

    def lines(self, fields: Mapping[str, str]) -> str:
        """Their lines, without the last line feed, runs of blanks within a value folded into one
        space. KeyError where one is missing."""
        lines: str = self._lines % self._values(fields)
        if "  " in lines or "\t" in lines:
            return "\n".join([f"{name}:{_BLANKS.sub(' ', fields[name])}" for name in self.names])
        return lines


def string_to_sign(timestamp: str, scope: str, canonical_request: str) -> str:
    """What the signature of a request signs."""
    hashed = sha256(canonical_request.encode("utf-8", "surrogateescape"))
    return f"{_before_hash(timestamp, scope)}{hashed.hexdigest()}"


def _before_hash(timestamp: str, scope: str) -> str:
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n"


def same(expected: str, given: str) -> bool:
    """Whether two signatures, the first of them in ASCII, are equal; in constant time."""
    return given.isascii() and hmac.compare_digest(expected, given)


def _encode(text: str) -> str:
    return quote(unquote_to_bytes(text.encode("utf-8", "surrogateescape")), safe="~")
