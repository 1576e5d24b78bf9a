"""Keeping what an upload brings, so that the object is warm once it is written.

The bytes are staged on the cache disk while they pass by on their way to the origin, and get their
name only when the origin has given the version its ETag. Keeping never fails an upload: when the
disk will not take the bytes, what was staged is dropped and the object is simply not warm.
"""

from collections.abc import AsyncIterator, Sequence

from gateway.errors import TierFull, TierUnavailable
from gateway.model.body import Body, PassedBody
from gateway.model.objects import ObjectVersion
from gateway.model.ranges import span
from gateway.tiers.disk import DiskTier, SpanWriter

_COPY_BYTES = 1024 * 1024


class Staged:
    """Bytes on their way into the cache: in memory if small, else in unnamed chunk files."""

    def __init__(
        self, disk: DiskTier, *, size_bytes: int, chunk_size_bytes: int, small_bytes: int
    ) -> None:
        self._disk = disk
        self._chunk_bytes = chunk_size_bytes
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self.etag = ""
        self.lost = not disk.accepting
        self._memory: bytearray | None = bytearray() if size_bytes <= small_bytes else None
        self._writers: list[SpanWriter] = []

    async def take(self, block: bytes | memoryview) -> None:
        """Stages the next bytes; on a full or failing disk everything staged is let go."""
        if self.lost:
            return
        try:
            if self._memory is not None:
                self._memory += block
            else:
                await self._append(memoryview(block))
        except (TierFull, TierUnavailable):
            await self.discard()
            return
        self.taken_bytes += len(block)

    async def publish(self, version: ObjectVersion) -> bool:
        """Gives the staged bytes their name; says whether they are kept now."""
        if self.lost or self.taken_bytes != version.size_bytes or not version.size_bytes:
            await self.discard()
            return False
        try:
            if self._memory is not None:
                data, self._memory = bytes(self._memory), None
                await self._disk.keep(span(version, 0, self._chunk_bytes), data)
            for number, writer in enumerate(self._writers):
                await writer.commit(span(version, number, self._chunk_bytes))
        except (TierFull, TierUnavailable):
            await self.discard()
            return False
        self._writers = []
        return True

    async def blocks(self) -> AsyncIterator[bytes]:
        """The staged bytes again, in order."""
        if self._memory is not None:
            yield bytes(self._memory)
        for writer in self._writers:
            offset = 0
            while offset < writer.size_bytes:
                block = await writer.read(offset, _COPY_BYTES)
                yield block
                offset += len(block)

    @property
    def is_small(self) -> bool:
        """Whether the whole is kept in memory and then among the small objects."""
        return self._memory is not None

    @property
    def aligned(self) -> bool:
        """Whether it fills whole chunks, so that another part's chunks can follow."""
        return self._memory is None and self.size_bytes % self._chunk_bytes == 0

    def hand_over(self) -> list[SpanWriter]:
        """The chunk files, which are the caller's from here on."""
        writers, self._writers = self._writers, []
        return writers

    def adopt(self, writers: Sequence[SpanWriter], size_bytes: int) -> None:
        """Takes chunk files that continue where these end."""
        self._writers.extend(writers)
        self.taken_bytes += size_bytes

    async def discard(self) -> None:
        """Lets go of everything. Safe to call twice."""
        self.lost = True
        self._memory = None
        for writer in self.hand_over():
            await writer.discard()

    async def _append(self, block: memoryview) -> None:
        while block:
            if not self._writers or self._writers[-1].size_bytes == self._chunk_bytes:
                left = self.size_bytes - self.taken_bytes
                self._writers.append(await self._disk.begin(min(self._chunk_bytes, left)))
            writer = self._writers[-1]
            piece = block[: self._chunk_bytes - writer.size_bytes]
            await writer.append(piece)
            block = block[len(piece) :]


class KeptBody(PassedBody):
    """An upload's body that is staged as it is read."""

    def __init__(self, body: Body, staged: Staged) -> None:
        super().__init__(body)
        self._staged = staged

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await self._body.read(limit_bytes)
        if block:
            await self._staged.take(block)
        return block
