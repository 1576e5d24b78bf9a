"""The answer to a read: one version's bytes, from the nearest tier that has them.

Law 1 lives here: every span of an answer is opened under the same ETag. A tier that fails midway
is left for the next one at the very byte where it stopped; when no tier can go on, the answer
breaks off, and is never completed from another version.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from gateway.errors import Corrupt, TierFull, TierUnavailable, VersionChanged
from gateway.model.objects import ObjectInfo, ObjectVersion, PartSpan, Span
from gateway.model.ranges import ByteRange, spans
from gateway.tiers.protocol import SpanReader, TierName

_BLOCK_BYTES = 262_144
# Failures in a row, without one byte gained, after which a read gives up.
_PATIENCE = 3

OpenSpan = Callable[[Span, bool], Awaitable[SpanReader]]
"""Opens a span; the flag asks for the origin itself, past a disk that takes nothing in."""


class ReadAnswer:
    """What the object is, which of its bytes follow, and the bytes.

    `tier` is where the first byte comes from. `close` must be called, whether or not `blocks` was
    read to its end.
    """

    def __init__(
        self,
        info: ObjectInfo,
        wanted: ByteRange,
        *,
        partial: bool,
        part: PartSpan | None = None,
        tier: TierName = "disk",
        source: "SpanSource | None" = None,
    ) -> None:
        self.info = info
        self.range = wanted
        self.partial = partial
        self.part = part
        self.tier = tier
        self._source = source

    @property
    def served(self) -> Mapping[str, int]:
        """Bytes handed out so far, by the tier each came from."""
        return self._source.served if self._source is not None else {}

    async def blocks(self) -> AsyncIterator[bytes | memoryview]:
        """The bytes of `range` in order, in blocks of at most 256 KiB.

        Raises what ended the read early: TierUnavailable, VersionChanged or an S3Error of the
        origin. The bytes yielded until then are right.
        """
        if self._source is not None:
            async for block in self._source.blocks():
                yield block

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()


class SpanSource:
    """Reads one range of one version, span by span. `on_changed` hears that the origin holds
    another version by now, before VersionChanged ends the read. `brought`: the first chunk was just
    asked of the origin for this read, so it counts as from there wherever it is by now."""

    def __init__(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        *,
        chunk_size_bytes: int,
        open_span: OpenSpan,
        on_changed: Callable[[], None],
        brought: bool = False,
    ) -> None:
        self.served: Counter[str] = Counter()
        self._on_changed = on_changed
        self._brought = brought
        self._spans = spans(version, wanted, chunk_size_bytes)
        self._stop = wanted.stop
        self._position = wanted.start
        self._open_span = open_span
        self._span: Span | None = None
        self._reader: SpanReader | None = None
        self._first: bytes | memoryview | None = None

    async def begin(self) -> TierName:
        """Reads the first block, so that what goes wrong until then is still an answer."""
        self._first = await self._next()
        assert self._reader is not None  # noqa: S101 - a range has at least one byte
        return "origin" if self.served["origin"] else self._reader.tier

    async def blocks(self) -> AsyncIterator[bytes | memoryview]:
        block, self._first = self._first, None
        while block is not None:
            yield block
            block = await self._next()

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _next(self) -> bytes | memoryview | None:
        """The block at `_position`, None at the end."""
        if self._span is None or self._position >= self._span.stop:
            await self.close()
            self._span = next(self._spans, None)
        span = self._span
        if span is None or self._position >= self._stop:
            return None
        limit = min(_BLOCK_BYTES, min(span.stop, self._stop) - self._position)
        failures = 0
        direct = False
        while True:
            try:
                if self._reader is None:
                    self._reader = await self._open_span(span, direct)
                block = await self._reader.read(self._position - span.start, limit)
            except (Corrupt, TierFull, TierUnavailable) as error:
                await self.close()
                failures += 1
                if failures == _PATIENCE:
                    raise
                direct = direct or isinstance(error, TierFull)
            except VersionChanged:
                self._on_changed()
                raise
            else:
                self._position += len(block)
                brought = self._brought and not span.number
                self.served["origin" if brought else self._reader.tier] += len(block)
                return block
