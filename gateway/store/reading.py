"""The answer to a read: one version's bytes, from the nearest tier that has them.

Law 1 lives here: every span of an answer is opened under the same ETag. A tier that fails midway
is left for the next one at the very byte where it stopped; when no tier can go on, the answer
breaks off, and is never completed from another version.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from gateway.errors import Corrupt, TierFull, TierUnavailable, VersionChanged
from gateway.model.objects import ObjectInfo, ObjectVersion, PartSpan, Span
from gateway.model.ranges import ByteRange, span
from gateway.tiers.protocol import FileRegion, InstantReader, SpanReader, TierName

_BLOCK_BYTES = 262_144
# Of a file at a time, so that a slow client's next bytes are looked after again before they go.
_REGION_BYTES = 2 * 1024**2
# From which size on sending from a file costs less than reading and writing; it is a tenth less
# here, and more above (docs/benchmarks.md).
_FILES_FROM_BYTES = 65_536
# Failures in a row, without one byte gained, after which a read gives up.
_PATIENCE = 3

Block = bytes | bytearray | memoryview


class SpanOpener(Protocol):
    """Where a read's spans come from."""

    def open_now(self, span: Span) -> InstantReader | None:
        """A reader of a span that can be had without waiting."""
        ...

    def open(self, span: Span, direct: bool) -> Awaitable[SpanReader]:
        """A reader of the span, from the nearest tier; `direct` asks for the origin itself, past
        a disk that takes nothing in."""
        ...

    def close(self) -> None:
        """The read is over; nothing more is opened."""
        ...


class ReadAnswer:
    """What the object is, which of its bytes follow, and the bytes.

    `tier` is where the first byte comes from. `close` must be called, whether or not `pieces` was
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
        # All the bytes of `range`, where they are at hand already or in a file; None where they are
        # to come.
        self.whole: Block | FileRegion | None = b"" if source is None else source.whole

    @property
    def served(self) -> Mapping[str, int]:
        """Bytes handed out so far, by the tier each came from."""
        return self._source.served if self._source is not None else {}

    async def begin(self, *, files: bool) -> None:
        """Waits for the first bytes of an answer that `HeldReads.get` gave without them. Errors as
        `pieces`, while it is still time to answer otherwise."""
        if self._source is not None:
            self.tier = await self._source.begin(files=files)

    def release(self) -> None:
        """As `close`, for an answer of `HeldReads.get` of which nothing more was read."""
        if self._source is not None:
            self._source.release()

    async def pieces(self, *, files: bool) -> AsyncIterator[Block | FileRegion]:
        """The bytes of `range` in order, in blocks of at most 256 KiB or, where `files` allows, in
        regions of a file; each is good until the next is asked for.

        Raises what ended the read early: TierUnavailable, VersionChanged or an S3Error of the
        origin. The bytes yielded until then are right.
        """
        if self._source is not None:
            async for piece in self._source.pieces(files=files):
                yield piece

    async def blocks(self) -> AsyncIterator[Block]:
        """As `pieces`, in blocks alone."""
        if self._source is not None:
            async for piece in self._source.pieces(files=False):
                assert not isinstance(piece, FileRegion)  # noqa: S101 - none was allowed
                yield piece

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()


class SpanSource:
    """Reads one range of one version, span by span. `on_changed` hears that the origin holds
    another version by now, before VersionChanged ends the read. `brought`: the first chunk was just
    asked of that tier for this read, so it counts as from there wherever it is by now."""

    def __init__(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        opener: SpanOpener,
        *,
        chunk_size_bytes: int,
        on_changed: Callable[[], None],
        brought: TierName | None = None,
    ) -> None:
        self.served: dict[str, int] = {}
        self._first_tier: TierName | None = None
        self._on_changed = on_changed
        self._brought = brought
        self._version = version
        self._chunk_size_bytes = chunk_size_bytes
        self._stop = wanted.stop
        self._position = wanted.start
        self._opener = opener
        self._span: Span | None = None
        self._reader: SpanReader | None = None
        # The reader that `begin_now` opened, which can be let go of as it came.
        self._held: InstantReader | None = None
        self._first: Block | FileRegion | None = None
        # The whole range, where the first step has brought it.
        self.whole: Block | FileRegion | None = None

    def begin_now(self, *, files: bool) -> TierName | None:
        """As `begin`, where this needs no waiting; None where it does."""
        here = self._here()
        held = self._reader = self._held = self._opener.open_now(here)
        if held is None:
            return None
        try:
            first = self._first = self._piece_now(held, here, files=files)
        except Corrupt:
            # The disk has dropped it; the next step opens another tier.
            held.release()
            self._reader = self._held = None
            return None
        if first is None:
            return None
        if self._position == self._stop:
            self.whole = first
        return held.tier

    @property
    def opened(self) -> bool:
        """Whether `begin_now` has found where the first bytes lie, be they at hand or not."""
        return self._held is not None

    def release(self) -> None:
        """Lets go of what `begin_now` opened, if nothing else was read since."""
        if self._held is not None:
            self._held.release()

    async def begin(self, *, files: bool = False) -> TierName:
        """Reads the first block, so that what goes wrong until then is still an answer."""
        if self._first is None:
            self._first = await self._next(files=files)
        assert self._reader is not None  # noqa: S101 - a range has at least one byte
        return self._first_tier or self._reader.tier

    async def pieces(self, *, files: bool) -> AsyncIterator[Block | FileRegion]:
        piece, self._first = self._first, None
        if piece is None:
            piece = await self._next(files=files)
        while piece is not None:
            yield piece
            piece = await self._next(files=files)

    async def close(self) -> None:
        self._opener.close()
        await self._leave()

    async def _leave(self) -> None:
        """Lets go of the span that is open."""
        reader, self._reader, self._held = self._reader, None, None
        if reader is not None:
            await reader.close()

    def _here(self) -> Span:
        """The span that `_position` lies in."""
        here = self._span
        if here is None or self._position >= here.stop:
            number = self._position // self._chunk_size_bytes
            here = self._span = span(self._version, number, self._chunk_size_bytes)
        return here

    async def _next(self, *, files: bool) -> Block | FileRegion | None:
        """What comes at `_position`, None at the end."""
        if self._position >= self._stop:
            return None
        if self._span is not None and self._position >= self._span.stop:
            await self._leave()
        here = self._here()
        failures = 0
        direct = False
        while True:
            try:
                if self._reader is None and not direct:
                    self._reader = self._opener.open_now(here)
                if self._reader is None:
                    self._reader = await self._opener.open(here, direct)
                piece = self._piece_now(self._reader, here, files=files)
                if piece is None:
                    left = min(here.stop, self._stop) - self._position
                    piece = await self._reader.read(
                        self._position - here.start, min(left, _BLOCK_BYTES)
                    )
                    self._count(here, self._reader.tier, len(piece))
            except (Corrupt, TierFull, TierUnavailable) as error:
                await self._leave()
                failures += 1
                if failures == _PATIENCE:
                    raise
                direct = direct or isinstance(error, TierFull)
            except VersionChanged:
                self._on_changed()
                raise
            else:
                return piece

    def _piece_now(
        self, reader: SpanReader, here: Span, *, files: bool
    ) -> Block | FileRegion | None:
        """What comes at `_position`, where it can be had without waiting."""
        offset = self._position - here.start
        left = min(here.stop, self._stop) - self._position
        if files and left >= _FILES_FROM_BYTES:
            region = reader.region(offset, min(left, _REGION_BYTES))
            if region is not None:
                self._count(here, reader.tier, region.size_bytes)
                return region
        block = reader.read_now(offset, min(left, _BLOCK_BYTES))
        if block is not None:
            self._count(here, reader.tier, len(block))
        return block

    def _count(self, here: Span, tier: TierName, size_bytes: int) -> None:
        self._position += size_bytes
        if self._brought is not None and not here.number:
            tier = self._brought
        if self._first_tier is None:
            self._first_tier = tier
        self.served[tier] = self.served.get(tier, 0) + size_bytes
