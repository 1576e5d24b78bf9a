"""What a worker cannot read itself of an answer it has begun: the keeper has it, or fetches it.

A chunk may be evicted, or found damaged, while a long answer is under way. One connection to the
keeper's socket brings the rest of one span: a frame that says which bytes, then GO and the bytes,
no more of them than are taken. If it ends early there is nobody else to ask.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from msgspec import Struct

from gateway.errors import FeedrackError, TierUnavailable
from gateway.index.records import raw_text
from gateway.model.objects import ObjectRef, ObjectVersion, Span
from gateway.model.ranges import ByteRange
from gateway.s3.frames import HEADER_BYTES, Kind, frame
from gateway.s3.line import connect
from gateway.store.reading import SpanSource
from gateway.tiers.protocol import FileRegion, TierName

log = structlog.get_logger()

# How much of it waits in this process for its reader.
_READ_BYTES = 512 * 1024
# How long a keeper may take to take it up: as long as one takes to drain and the next to start.
_PATIENCE_SECONDS = 60.0

Source = Callable[[str, ObjectVersion, ByteRange], SpanSource]


class Wanted(Struct, frozen=True, array_like=True):
    """Bytes `start` to `stop` of a version, by the name its bucket has for clients. Texts as bytes:
    not all that clients and origins send is valid UTF-8."""

    client_bucket: bytes
    origin: bytes
    bucket: bytes
    key: bytes
    version_id: bytes | None
    etag: bytes
    object_bytes: int
    start: int
    stop: int

    @property
    def version(self) -> ObjectVersion:
        version_id = None if self.version_id is None else _text(self.version_id)
        ref = ObjectRef(_text(self.origin), _text(self.bucket), _text(self.key), version_id)
        return ObjectVersion(ref, _text(self.etag), self.object_bytes)


_decode = msgspec.msgpack.Decoder(Wanted).decode


class Remainder:
    """The worker's end: a `SpanReader` of one span, which asks when it is first read from."""

    def __init__(self, path: str, client_bucket: str, span: Span) -> None:
        self._path = path
        self._client_bucket = client_bucket
        self._span = span
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._offset = 0

    @property
    def tier(self) -> TierName:
        return "origin"

    async def read(self, offset: int, limit_bytes: int) -> bytes:
        """As `SpanReader.read`."""
        try:
            if self._reader is None or offset != self._offset:
                await self.close()
                self._reader = await self._ask(offset)
            data = await self._reader.read(limit_bytes)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise TierUnavailable(f"the keeper cannot be asked: {error}") from error
        if not data:
            raise TierUnavailable("the keeper has broken off")
        self._offset += len(data)
        return data

    def read_now(self, offset: int, limit_bytes: int) -> None:
        """It has to be waited for."""

    def region(self, offset: int, limit_bytes: int) -> FileRegion | None:  # noqa: ARG002 - none
        return None

    async def close(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()

    async def _ask(self, offset: int) -> asyncio.StreamReader:
        span, ref = self._span, self._span.version.ref
        wanted = Wanted(
            raw_text(self._client_bucket),
            raw_text(ref.origin),
            raw_text(ref.bucket),
            raw_text(ref.key),
            None if ref.version_id is None else raw_text(ref.version_id),
            raw_text(span.version.etag),
            span.version.size_bytes,
            span.start + offset,
            span.stop,
        )
        reader, writer = await asyncio.open_unix_connection(
            sock=connect(self._path), limit=_READ_BYTES
        )
        self._writer = writer
        self._offset = offset
        writer.write(frame(Kind.READ, msgspec.msgpack.encode(wanted)))
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await reader.readexactly(HEADER_BYTES)
        return reader


async def send(
    raw: bytes,
    source: Source,
    write: Callable[[bytes | bytearray | memoryview], None],
    drain: Callable[[], Awaitable[None]],
) -> bool:
    """The keeper's end: writes what `raw` asks for, as fast as it is taken; whether that was all
    of it. What is not all of it is told by its end."""
    try:
        wanted = _decode(raw)
        found = source(
            _text(wanted.client_bucket), wanted.version, ByteRange(wanted.start, wanted.stop)
        )
        try:
            write(frame(Kind.GO))
            async for piece in found.pieces(files=False):
                assert not isinstance(piece, FileRegion)  # noqa: S101 - none was allowed
                write(piece)
                await drain()
        finally:
            await found.close()
    except (FeedrackError, msgspec.MsgspecError, UnicodeDecodeError, ConnectionError) as error:
        log.info("remainder broken off", reason=str(error))
        return False
    return True


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
