"""What other nodes send, read strictly, and what they are answered. Pure.

Only what `tiers/peers/client.py` writes is read: one method, one target, headers of one line each,
a body of known length. Anything else is no peer.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from msgspec import Struct, field

from gateway.store.giving import Given

_HEAD = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[!-~]{0,12288}) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++: [\t -~]*+\r\n){0,64}+)"
)
_LINE = re.compile(r"([^:\r\n]++): ([^\r\n]*+)\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}\Z")
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_NOT_SPOKEN = frozenset(("transfer-encoding", "upgrade", "expect", "connection"))

HEAD_BYTES = 16_384
BODY_BYTES = 1024**2


class WrongRequestError(ValueError):
    """It is not a request as peers make them."""


class RequestHead(Struct, frozen=True):
    """Header names are lower-case; `target` is what is signed."""

    method: str
    target: str
    headers: Mapping[str, str]
    length_bytes: int


class PeerRequest(Struct, frozen=True):
    """A proven request of the node `asker`. `headers` are ours, which the proof covers, alone."""

    method: str
    path: str
    query: str
    asker: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class PeerAnswer(Struct, frozen=True):
    """What is answered: `headers` of ours, then `body`, then a span's bytes if there are any.
    `moved_bytes` are where the asker wants them already."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    given: Given | None = None
    moved_bytes: int = 0

    @property
    def length_bytes(self) -> int:
        given = self.given
        return len(self.body) + (given.until - given.offset if given is not None else 0)


class Route(Struct, frozen=True):
    """What answers one method of one path. `answer` may raise anything: that is a 500."""

    method: str
    path: str
    answer: Callable[[PeerRequest], Awaitable[PeerAnswer]]


def parse_request(raw: bytes) -> RequestHead:
    """The head in `raw`, which ends before the empty line. WrongRequestError."""
    match = _HEAD.fullmatch(raw + b"\r\n")
    if match is None:
        raise WrongRequestError("no head of a request")
    method, target, lines = (part.decode("ascii") for part in match.groups())
    found = _LINE.findall(lines)
    headers = {name.lower(): value for name, value in found}
    if len(headers) != len(found):
        raise WrongRequestError("a header is there twice")
    if not _NOT_SPOKEN.isdisjoint(headers):
        raise WrongRequestError("framed as peers do not frame")
    length = headers.get("content-length", "0")
    if _LENGTH.match(length) is None or int(length) > BODY_BYTES:
        raise WrongRequestError("a body of no length, or too much of one")
    return RequestHead(method, target, headers, int(length))


def render_answer(status: int, length_bytes: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer. ValueError where a header has a line break in it."""
    lines = [_STATUS_LINES[status], f"content-length: {length_bytes}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a header's value has a line break in it")
    return text.encode("ascii", "replace") + b"\r\n\r\n"
