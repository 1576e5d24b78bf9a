"""An answer on its way to the client: the one place that writes HTTP, whichever lane it came by.

RFC 9112. Bytes that lie in a file are sent from there where the wire can do so; everything else is
written in blocks, each only when the client has taken most of those before it.
"""

import time
from collections.abc import AsyncGenerator, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from gateway.errors import TierUnavailable
from gateway.s3.answer import Answer, Piece
from gateway.tiers.protocol import FileRegion

_NO_BODY = frozenset((204, 304))
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
# Up to here head and first block are joined and leave in one packet; a copy costs less than a
# second system call.
_JOINED_BYTES = 65_536


class Wire(Protocol):
    """What an answer is written to. Its methods raise ClientGoneError once the client has gone."""

    @property
    def sends_files(self) -> bool:
        """Whether `send_region` works here: not where bytes are encrypted on their way."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    async def drain(self) -> None:
        """Returns once the client has taken most of what was written."""
        ...

    def send_region_now(self, head: bytes, region: FileRegion) -> tuple[bytes, FileRegion] | None:
        """Sends as much of both as goes without waiting; what is left, None where nothing is."""
        ...

    async def send_region(self, head: bytes, region: FileRegion) -> None:
        """Sends `head`, then the region, all of it. TierUnavailable where the file ends early."""
        ...


class Sending:
    """One answer being sent. `begun` once its head has gone out; `sent_bytes` counts its body."""

    __slots__ = ("begun", "sent_bytes")

    def __init__(self) -> None:
        self.begun = False
        self.sent_bytes = 0

    def send_whole(
        self,
        wire: Wire,
        answer: Answer,
        body: bytes | bytearray | memoryview,
        *,
        head_only: bool,
        connection: str,
    ) -> None:
        """Sends an answer whose body is at hand. `connection`: what the header of that name says,
        "" for none."""
        length = answer.length_bytes
        if answer.status in _NO_BODY:
            length = None
        elif length is None and not head_only:
            # The head of an error says nothing of a body.
            length = len(body)
        head = render_head(answer.status, answer.headers, length, connection)
        self.begun = True
        if head_only or not body or answer.status in _NO_BODY:
            wire.write(head)
            return
        self.sent_bytes = len(body)
        _write(wire, head, body)

    def send_file_now(
        self, wire: Wire, answer: Answer, region: FileRegion, *, connection: str
    ) -> tuple[bytes, FileRegion] | None:
        """Sends an answer whose body is a region of a file, as far as the client has room for it;
        what is left for `Wire.send_region`, None where nothing is."""
        head = render_head(answer.status, answer.headers, region.size_bytes, connection)
        self.begun = True
        rest = wire.send_region_now(head, region)
        self.sent_bytes = region.size_bytes - (rest[1].size_bytes if rest is not None else 0)
        return rest

    async def send_rest(self, wire: Wire, head: bytes, region: FileRegion) -> None:
        """Sends what `send_file_now` has left."""
        await wire.send_region(head, region)
        self.sent_bytes += region.size_bytes

    async def send_stream(
        self, wire: Wire, answer: Answer, *, connection: str, chunks: bool
    ) -> None:
        """Sends an answer whose bytes come from its stream. `chunks`: the client knows chunked
        answers, which those of unknown length are.

        Raises what the stream raises: before `begun`, nothing has been said to the client.
        """
        assert answer.stream is not None  # noqa: S101 - the caller has looked
        chunked = answer.length_bytes is None and chunks
        pieces = answer.stream.pieces(files=wire.sends_files)
        try:
            # Before the head is sent, a failure is still an answer of its own.
            piece = await anext(pieces, None)
            head = render_head(
                answer.status, answer.headers, answer.length_bytes, connection, chunked=chunked
            )
            self.begun = True
            while piece is not None:
                self.sent_bytes += await _send(wire, head, piece, chunked=chunked)
                head = b""
                piece = await anext(pieces, None)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if answer.length_bytes is not None and self.sent_bytes != answer.length_bytes:
            raise TierUnavailable(f"{self.sent_bytes} of {answer.length_bytes} bytes came")
        tail = b"0\r\n\r\n" if chunked else b""
        if head or tail:
            wire.write(head + tail)
        await wire.drain()


async def _send(wire: Wire, head: bytes, piece: Piece, *, chunked: bool) -> int:
    """Sends one piece of a body, with the head before the first; how long it was."""
    if isinstance(piece, FileRegion):
        await wire.send_region(head, piece)
        return piece.size_bytes
    blocks = piece if isinstance(piece, list) else (piece,)
    size_bytes = sum(map(len, blocks))
    # As a chunk, nothing would be the end.
    framed = chunked and size_bytes > 0
    if framed:
        head += b"%x\r\n" % size_bytes
    if isinstance(piece, list):
        wire.write(b"".join((head, *piece, b"\r\n" if framed else b"")))
    else:
        _write(wire, head, piece)
        if framed:
            wire.write(b"\r\n")
    await wire.drain()
    return size_bytes


def _write(wire: Wire, head: bytes, body: bytes | bytearray | memoryview) -> None:
    if not head:
        wire.write(body)
    elif len(body) <= _JOINED_BYTES:
        wire.write(b"".join((head, body)))
    else:
        wire.write(head)
        wire.write(body)


def render_head(
    status: int,
    headers: Mapping[str, str],
    length_bytes: int | None,
    connection: str = "",
    *,
    chunked: bool = False,
) -> bytes:
    """Status line and headers, with the blank line that ends them.

    ValueError where a header has a line break in it: what came as a value must not go out as a
    header, or as an answer.
    """
    lines = [_STATUS_LINES[status]]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if length_bytes is not None:
        lines.append(f"content-length: {length_bytes}")
    if chunked:
        lines.append("transfer-encoding: chunked")
    if connection:
        lines.append(f"connection: {connection}")
    lines.append(f"date: {_date(int(time.time()))}\r\n\r\n")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) + 1 or text.count("\r") != len(lines) + 1:
        raise ValueError("a header's value has a line break in it")
    return text.encode("utf-8", "surrogateescape")


@lru_cache(2)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)
