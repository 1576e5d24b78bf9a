"""What can be said for certain of the bytes a client sends: is this a plain read, and where does
this message end? Pure.

A plain read is a GET or HEAD without a body in exactly the form that all clients send: RFC 9112
taken at its strictest. Whatever is off by one byte, or says something of the connection, is not
plain, and is for the full HTTP parser to judge. So two parsers never answer one request, and what
this one takes, the other would have read in the same way (`tests/s3/test_plain.py` holds them
against each other). For the same reason the end of a message is known here only where nobody could
place it elsewhere; a client whose message ends may be anywhere is left to the full parser for good.
"""

import re

from msgspec import Struct

from gateway.auth.request import RequestHead

# A token, a colon, a blank, printable ASCII that ends in no blank: no folded lines, no bare line
# feeds, no blank before the colon.
_HEAD = re.compile(
    rb"(GET|HEAD) (/[!-\"$-~]*+) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++: [\t -~]*+(?<=[!-~])\r\n){1,100}+)\r\n"
)
_LINES = re.compile(r"([^:]++): [\t ]*+([^\r]++)\r\n")
# After a CONNECT or a PRI (HTTP/2's preface) a parser expects something else than requests.
_MESSAGE = re.compile(
    rb"(?:GET|HEAD|PUT|POST|DELETE|OPTIONS) [!-~]++ HTTP/1\.[01]\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[^\r\n\0]*+\r\n)*+)\r\n"
)
_FRAMING = re.compile(
    rb"^(content-length|transfer-encoding|upgrade|connection):([^\r]*+)\r$",
    re.IGNORECASE | re.MULTILINE,
)
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BEGINNINGS = (b"GET /", b"HEAD /", b"PUT /", b"POST /", b"DELETE /")
_METHODS = {b"GET": "GET", b"HEAD": "HEAD"}
# Headers that frame a body, or change what the connection is, and one that aiohttp refuses.
_NOT_PLAIN = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "proxy-connection",
        "sec-websocket-key1",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class PlainRead(Struct, frozen=True):
    """A plain read and where it ends in the bytes it was found in."""

    head: RequestHead
    stop: int


def parse(data: bytes, start: int, limit_bytes: int) -> PlainRead | None:
    """The plain read at `start` of `data`; None where there is none, or not all of its head.

    `limit_bytes` is how long a head may be; a longer one is not plain.
    """
    match = _HEAD.match(data, start)
    if match is None:
        return None
    stop = match.end()
    if stop - start > limit_bytes:
        return None
    method, target, lines = match.groups()
    found = _LINES.findall(lines.decode("ascii"))
    fields = {name.lower(): value for name, value in found}
    if not _NOT_PLAIN.isdisjoint(fields):
        keeps = fields.keys() & _NOT_PLAIN == {"connection"}
        if not keeps or fields["connection"].lower() != "keep-alive":
            return None
    if len(fields) != len(found) or "host" not in fields:
        return None
    path, _, query = target.decode("ascii").partition("?")
    head = RequestHead.plain(_METHODS[method], path, query, tuple(fields.items()), fields)
    return PlainRead(head, stop)


def message_bytes(data: bytes, start: int, limit_bytes: int) -> int | None:
    """How long the message at `start` of `data` is, head and body; None where that is not certain.

    `data` must have all of its head, of at most `limit_bytes`; the body may still be to come.
    """
    if data.find(_HEAD_END, start, start + limit_bytes) < 0:
        return None
    match = _MESSAGE.match(data, start)
    if match is None:
        return None
    length_bytes = 0
    lengths = 0
    for name, padded in _FRAMING.findall(match[1]):
        value = padded.strip(b"\t ")
        match name.lower():
            case b"content-length":
                if _LENGTH.fullmatch(value) is None:
                    return None
                length_bytes = int(value)
                lengths += 1
            case b"connection":
                if value.lower() not in (b"keep-alive", b"close"):
                    return None
            case _:
                return None
    if lengths > 1:
        return None
    return match.end() - start + length_bytes


def may_go_on(data: bytes, start: int) -> bool:
    """Whether `data` may be the beginning of a head that is still to come."""
    if data.find(_HEAD_END, start) >= 0:
        return False
    if data.count(b"\n", start) != data.count(b"\r\n", start):
        # Line feeds alone end no line here; the full parser says so at once.
        return False
    sent = data[start : start + 8]
    return any(sent.startswith(each) or each.startswith(sent) for each in _BEGINNINGS)
