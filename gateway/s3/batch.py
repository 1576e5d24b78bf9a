"""GetObjects: many objects of a bucket in one answer, in the order asked. See docs/batch.md."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

from gateway.errors import NoSuchBucket, S3Error
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.s3.answer import Answer, Block, Piece
from gateway.s3.batch_framing import Frames, Framing
from gateway.s3.batch_request import DOCUMENT_BYTES, BatchRequest, parse_batch
from gateway.s3.batch_tar import Tar
from gateway.s3.call import Call
from gateway.s3.headers import has_customer_key
from gateway.s3.refusals import s3_error, tell_failure
from gateway.store.batch import BatchReads
from gateway.store.reading import ReadAnswer
from gateway.tiers.protocol import FileRegion

# Small objects are gathered until there is this much to write, or this many parts, two or three an
# object: then it is the turn of other requests.
_BLOCK_BYTES = 256 * 1024
_BLOCK_PARTS = 256


async def get_objects(call: Call) -> Answer:
    """The objects that the body asks for, as tar or frames."""
    async with AsyncExitStack() as stack:
        batch, reads = await open_batch(call, stack)
        stream = BatchStream(reads, batch, call.bucket.name)
        stack.push_async_callback(stream.end)
        await stream.begin()
        stream.at_end = stack.pop_all()
    return Answer(
        headers={"content-type": stream.content_type},
        stream=stream,
        tier=stream.tier,
        served=stream.served,
    )


async def open_batch(call: Call, stack: AsyncExitStack) -> tuple[BatchRequest, BatchReads]:
    """What the body asks for, and the objects to be taken; both are good until `stack` is
    closed."""
    if has_customer_key(call.head):
        raise NotImplementedS3("Objects under a customer's key are to be had one by one.")
    bucket, service = call.bucket, call.service

    def admit(key: str) -> None:
        call.authorise("GetObject", bucket.name, key)

    def reserve(size_bytes: int) -> None:
        stack.callback(service.begin_batch(size_bytes))

    document, _ = await call.document(limit_bytes=DOCUMENT_BYTES, reserve=reserve)
    batch = parse_batch(document)
    reads = service.batch(bucket, batch.objects, admit=admit)
    stack.push_async_callback(reads.close)
    return batch, reads


class Failures:
    """What stands in the places of a batch's objects that cannot be had."""

    def __init__(self, batch: BatchRequest, bucket: str) -> None:
        self._strict = batch.strict
        self._bucket = bucket
        self._told = False

    def of(self, key: str, error: Exception) -> S3Error:
        """The error of one object; raised where it is the answer to all of them."""
        failure = s3_error(error)
        if failure.status >= 500 and not self._told:
            # Once: what ails one object here most likely ails all of them.
            self._told = True
            tell_failure(error, bucket=self._bucket, key=key)
        if self._strict or isinstance(failure, NoSuchBucket):
            failure.fields = {**failure.fields, "Key": key}
            raise failure
        return failure


class BatchStream:
    """A batch's objects as they go out. `tier` is where the first byte of an object came from, as
    far as the first block has one; `served` counts their bytes by tier; `at_end` is closed with
    the stream."""

    def __init__(self, reads: BatchReads, batch: BatchRequest, bucket: str) -> None:
        self._reads = reads
        self._batch = batch
        self._framing: Framing = Frames() if batch.format == "frames" else Tar()
        self.content_type = self._framing.content_type
        self.tier: str | None = None
        self.served: dict[str, int] = {}
        self.at_end = AsyncExitStack()
        self._failed = 0
        self._failures = Failures(batch, bucket)
        self._blocks = self._run()
        self._first: Piece | None = None

    async def begin(self) -> None:
        """Waits for the first block. What goes wrong until then is an answer of its own: with
        `strict`, whatever an object answers; NoSuchBucket in any case."""
        self._first = await anext(self._blocks)

    async def pieces(self, *, files: bool) -> AsyncIterator[Piece]:  # noqa: ARG002 - framed
        """As `Stream.pieces`."""
        first, self._first = self._first, None
        if first is not None:
            yield first
        async for block in self._blocks:
            yield block

    async def end(self) -> None:
        """Lets go of the object that is being sent."""
        await self._blocks.aclose()

    async def close(self) -> None:
        """As `Stream.close`."""
        await self.at_end.aclose()

    async def _run(self) -> AsyncGenerator[Piece, None]:
        reads, framing = self._reads, self._framing
        gathered: list[Block] = []
        size_bytes = 0
        for position, wanted in enumerate(self._batch.objects):
            taken = reads.take_now()
            if taken is None:
                if gathered and self.tier is not None:
                    # What is there goes out before anything is waited for, but for failures alone:
                    # the head of the answer is to tell where its first byte came from.
                    yield gathered
                    gathered, size_bytes = [], 0
                taken = await reads.take()
            if isinstance(taken, Exception):
                gathered.append(self._failure(position, wanted.key, taken))
            else:
                asked, partial = taken.range, taken.partial
                length_bytes = asked.size_bytes
                if self.tier is None and length_bytes:
                    self.tier = taken.tier
                gathered.append(
                    framing.opening(position, wanted.key, taken.info, asked, partial=partial)
                )
                whole = taken.whole
                if whole is not None:
                    assert not isinstance(whole, FileRegion)  # noqa: S101 - none was allowed
                    gathered.append(whole)
                    size_bytes += length_bytes
                    self._count(taken)
                else:
                    try:
                        yield gathered
                        gathered, size_bytes = [], 0
                        # What ends it early ends the whole answer: its length has been told.
                        async for block in taken.blocks():
                            yield block
                            await asyncio.sleep(0)
                    finally:
                        self._count(taken)
                        await taken.close()
                closing = framing.closing(length_bytes)
                if closing:
                    gathered.append(closing)
            if size_bytes >= _BLOCK_BYTES or len(gathered) >= _BLOCK_PARTS:
                yield gathered
                gathered, size_bytes = [], 0
                # A client that takes all at once would leave nobody else a turn.
                await asyncio.sleep(0)
        gathered.append(framing.end(objects=len(self._batch.objects), failed=self._failed))
        yield gathered

    def _count(self, answer: ReadAnswer) -> None:
        for tier, size_bytes in answer.served.items():
            self.served[tier] = self.served.get(tier, 0) + size_bytes

    def _failure(self, position: int, key: str, error: Exception) -> bytes:
        """What stands in the place of an object that cannot be had."""
        failure = self._failures.of(key, error)
        self._failed += 1
        return self._framing.failure(position, key, failure)
