"""The answer to a batch request, frame by frame (docs/batch.md). Pure.

A frame is `>IHHQ`: position in the request, status, bytes of metadata, bytes of body; then both.
The last one has position 0xFFFFFFFF and says how many came before it: without it an answer is cut.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

CONTENT_TYPE = "application/x-feedrack-frames"
LIMIT = 10_000

_FRAME = struct.Struct(">IHHQ")
_LAST = 0xFFFFFFFF
# A length is only believed as far as bytes come.
_PIECE_BYTES = 16 * 1024**2


class FramesBroken(Exception):  # noqa: N818 - said of an answer, not of a call
    """The answer is cut short, or is none."""


class Frame(NamedTuple):
    """One object: its position in the request, its status, what is said of it (JSON), its bytes."""

    position: int
    status: int
    about: bytes
    body: bytes


class Said(msgspec.Struct, frozen=True):
    """What is said of an object. `code` and `message`: why it could not be had."""

    etag: str = ""
    modified_ms: int = 0
    content_type: str = ""
    range: str = ""
    code: str = ""
    message: str = ""


class _Total(msgspec.Struct, frozen=True):
    objects: int
    failed: int


_said = msgspec.json.Decoder(Said)
_total = msgspec.json.Decoder(_Total)


def encode_request(keys: Sequence[str], ranges: Sequence[str | None] | None = None) -> bytes:
    """The body of a batch request for up to LIMIT objects; `ranges` as in a Range header."""
    objects: list[dict[str, str]] = [{"key": key} for key in keys]
    for asked, wanted in zip(objects, ranges or (), strict=False):
        if wanted is not None:
            asked["range"] = wanted
    return msgspec.json.encode({"objects": objects, "format": "frames"})


def read_frames(read: Callable[[int], bytes], count: int) -> Iterator[Frame]:
    """The frames of an answer to a request for `count` objects.

    `read(n)` gives n bytes, or fewer at the end. Raises FramesBroken."""
    objects = failed = 0
    while True:
        head = read(16)
        if len(head) != 16:
            raise FramesBroken("the answer ends within a frame")
        position, status, about_bytes, body_bytes = _FRAME.unpack(head)
        about = read(about_bytes) if about_bytes else b""
        if len(about) != about_bytes:
            raise FramesBroken("the answer ends within a frame")
        if position == _LAST:
            break
        if position >= count:
            raise FramesBroken(f"position {position} in an answer to {count} objects")
        body = read(body_bytes) if body_bytes <= _PIECE_BYTES else _long(read, body_bytes)
        if len(body) != body_bytes:
            raise FramesBroken("the answer ends within an object")
        objects += 1
        failed += status >= 300
        yield Frame(position, status, about, body)
    try:
        total = _total.decode(about)
    except msgspec.MsgspecError as error:
        raise FramesBroken("the last frame says nothing") from error
    if status or body_bytes or (total.objects, total.failed) != (objects, failed):
        raise FramesBroken(f"{objects} objects came where {total.objects} were sent")


def said_of(frame: Frame) -> Said:
    """What a frame says of its object. FramesBroken where that is not JSON of the kind."""
    try:
        return _said.decode(frame.about or b"{}")
    except msgspec.MsgspecError as error:
        raise FramesBroken("a frame that says nonsense of its object") from error


def _long(read: Callable[[int], bytes], size_bytes: int) -> bytes:
    pieces = []
    while size_bytes and (piece := read(min(size_bytes, _PIECE_BYTES))):
        pieces.append(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)
