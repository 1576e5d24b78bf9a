"""What keeper and workers say to each other over a tunnel: frames of a type byte, a length, a
payload. Pure.

Bulk frames carry a client's bytes and are handed on in parts, as they come; all others are short
and are handed on whole.
"""

import struct
from enum import IntEnum

from gateway.errors import FeedrackError

_HEADER = struct.Struct(">BI")
_COUNT = struct.Struct(">Q")
HEADER_BYTES = _HEADER.size
# The longest frame that is handed on whole: notes of what was read, in the main.
LIMIT_BYTES = 8 * 1024**2


class Kind(IntEnum):
    """The types of frames. Worker to keeper, keeper to worker; DATA and EOF go both ways."""

    DATA = 1
    EOF = 2

    BEGIN = 3
    ASK = 4
    RETIRE = 5
    LINE = 6
    NOTES = 7
    READ = 8

    GO = 9
    DONE = 10
    CLOSE = 11
    HERE = 12
    LEAVING = 13


_BULK = frozenset((Kind.DATA, Kind.ASK))


class FrameError(FeedrackError):
    """What came is not what a process of this node would send."""


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return _HEADER.pack(kind, len(payload)) + payload


def header(kind: Kind, size_bytes: int) -> bytes:
    """What comes before a payload of that size, less than 4 GiB."""
    return _HEADER.pack(kind, size_bytes)


def counted(kind: Kind, count: int) -> bytes:
    """A frame that carries a number."""
    return frame(kind, _COUNT.pack(count))


def count_in(payload: bytes) -> int:
    """The number a frame carries. FrameError where it carries none."""
    if len(payload) != _COUNT.size:
        raise FrameError(f"{len(payload)} bytes where a number was due")
    return int(_COUNT.unpack(payload)[0])


class FrameReader:
    """Takes a stream apart into frames, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._left_bytes = 0
        self._partial = b""

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames, and parts of bulk frames, that `data` completes. FrameError where it is no
        such stream, after which nothing that follows is."""
        found: list[tuple[Kind, bytes]] = []
        if self._partial:
            data, self._partial = self._partial + data, b""
        position = 0
        while position < len(data):
            if self._kind is None:
                if len(data) - position < HEADER_BYTES:
                    break
                kind, size_bytes = _HEADER.unpack_from(data, position)
                self._kind = _known(kind, size_bytes)
                self._left_bytes = size_bytes
                position += HEADER_BYTES
            if self._kind in _BULK:
                part = data[position : position + self._left_bytes]
                position += len(part)
                self._left_bytes -= len(part)
                if part:
                    found.append((self._kind, part))
            elif len(data) - position < self._left_bytes:
                break
            else:
                found.append((self._kind, data[position : position + self._left_bytes]))
                position += self._left_bytes
                self._left_bytes = 0
            if not self._left_bytes:
                self._kind = None
        self._partial = data[position:]
        return found


def _known(kind: int, size_bytes: int) -> Kind:
    try:
        known = Kind(kind)
    except ValueError:
        raise FrameError(f"there are no frames of type {kind}") from None
    if known not in _BULK and size_bytes > LIMIT_BYTES:
        raise FrameError(f"a frame of {size_bytes} bytes is too long for its type")
    return known
