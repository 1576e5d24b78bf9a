"""The head of an HTTP/1.1 answer, and the small chunked body an error may have. Pure.

Strict where framing hangs on it: what two readers could read in two ways is refused, and the
connection with it. https://www.rfc-editor.org/rfc/rfc9112
"""

import re
from collections.abc import Mapping

from msgspec import Struct

HEAD_END = b"\r\n\r\n"

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")


class MalformedAnswerError(ValueError):
    """What came is not an HTTP answer, or one that can be read in two ways."""


class Head(Struct, frozen=True):
    """An answer's head. Header names are lower-case; of repeated ones the last counts.

    `length_bytes` is what Content-Length says, None where it says nothing; `chunked`: the body is
    framed by itself. `persists`: the connection can be used again once the body is read.
    """

    status: int
    headers: Mapping[str, str]
    length_bytes: int | None
    chunked: bool
    persists: bool


def parse_head(raw: bytes) -> Head:
    """The head in `raw`, which ends before the empty line. MalformedAnswerError."""
    start, *lines = raw.split(b"\r\n")
    status = _STATUS.fullmatch(start)
    if status is None:
        raise MalformedAnswerError("no status line of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise MalformedAnswerError("a line of the head is no header field")
        name = field[1].decode("ascii").lower()
        value = _text(field[2].rstrip(b" \t"))
        if name in ("content-length", "transfer-encoding") and headers.get(name, value) != value:
            raise MalformedAnswerError(f"two headers {name} that differ")
        headers[name] = value
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 20):
        raise MalformedAnswerError("a Content-Length that is no number")
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        raise MalformedAnswerError("a body framed in more than one way")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return Head(
        status=int(status[2]),
        headers=headers,
        length_bytes=None if length is None else int(length),
        chunked=coding is not None,
        persists="close" not in options and (status[1] == b"1" or "keep-alive" in options),
    )


def unchunked(raw: bytes) -> tuple[bytes, int] | None:
    """The body in a chunked one that begins `raw`, and how long that was with its frame; None where
    more of it has to come. MalformedAnswerError."""
    pieces = []
    position = 0
    while True:
        frame = _CHUNK.match(raw, position)
        if frame is None:
            if len(raw) - position > 64 or b"\r\n" in raw[position:]:
                raise MalformedAnswerError("no chunk where one should be")
            return None
        size_bytes = int(frame[1], 16)
        if not size_bytes:
            break
        stop = frame.end() + size_bytes
        if len(raw) < stop + 2:
            return None
        if raw[stop : stop + 2] != b"\r\n":
            raise MalformedAnswerError("a chunk does not end where it should")
        pieces.append(raw[frame.end() : stop])
        position = stop + 2
    # Trailer fields, which nobody here asks for, up to the empty line.
    end = raw.find(b"\r\n\r\n", frame.end() - 2)
    return (b"".join(pieces), end + 4) if end >= 0 else None


def _text(value: bytes) -> str:
    """UTF-8, as botocore has it; some services hand metadata back in the bytes it came in."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
