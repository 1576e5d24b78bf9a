"""GetObjects by RDMA: the objects back to back in the client's memory, and a table that says where
each is. See docs/rdma.md."""

import asyncio
from contextlib import AsyncExitStack

import msgspec

from gateway.errors import FeedrackError, S3Error
from gateway.rdma.transfers import Transfer
from gateway.rdma.wire import (
    MEMORY_FULL_CODE,
    MEMORY_FULL_STATUS,
    REPLY_HEADER,
    TRANSFERRED_HEADER,
    Row,
    Table,
)
from gateway.s3.answer import Answer
from gateway.s3.batch import Failures, open_batch
from gateway.s3.batch_request import BatchRequest
from gateway.s3.call import Call
from gateway.store.batch import BatchReads
from gateway.store.reading import ReadAnswer
from gateway.tiers.protocol import FileRegion

_TEXT_CHARACTERS = 500
_IN_A_ROW = 128


async def write_batch(call: Call, transfer: Transfer) -> Answer:
    """The objects that the body asks for, written to the transfer's memory; the answer is a table.

    TransferFailed; with `strict`, what the first object that cannot be had answers.
    """
    async with AsyncExitStack() as stack:
        batch, reads = await open_batch(call, stack)
        writing = _Writing(batch, reads, transfer, call.bucket.name)
        await writing.run()
        moved_bytes = await transfer.finish()
    table = Table(writing.rows, moved_bytes, writing.failed)
    return Answer(
        headers={
            "content-type": "application/json",
            REPLY_HEADER: "200",
            TRANSFERRED_HEADER: str(moved_bytes),
        },
        body=msgspec.json.encode(table),
        tier=writing.tier,
        served=writing.served,
    )


class _Writing:
    """One batch on its way into memory, and the rows that tell of it."""

    def __init__(
        self, batch: BatchRequest, reads: BatchReads, transfer: Transfer, bucket: str
    ) -> None:
        self._batch = batch
        self._reads = reads
        self._transfer = transfer
        self._failures = Failures(batch, bucket)
        self.rows: list[Row] = []
        self.failed = 0
        self.tier: str | None = None
        self.served: dict[str, int] = {}

    async def run(self) -> None:
        for number, wanted in enumerate(self._batch.objects, start=1):
            if number % _IN_A_ROW == 0:
                # What is held is answered at once: others have their turn, too.
                await asyncio.sleep(0)
            taken = await self._reads.take()
            if isinstance(taken, Exception):
                self._fail(wanted.key, taken, self._transfer.position)
            elif taken.range.size_bytes > self._transfer.room_bytes:
                await taken.close()
                if self._batch.strict:
                    self._transfer.check_room(taken.range.size_bytes)
                break
            else:
                await self._write(wanted.key, taken)
        position = self._transfer.position
        left = len(self._batch.objects) - len(self.rows)
        full = Row(
            MEMORY_FULL_STATUS, position, 0, code=MEMORY_FULL_CODE, message="No room is left."
        )
        self.rows += [full] * left
        self.failed += left

    async def _write(self, key: str, taken: ReadAnswer) -> None:
        transfer, info, wanted = self._transfer, taken.info, taken.range
        offset = transfer.position
        try:
            whole = taken.whole
            if whole is not None:
                assert not isinstance(whole, FileRegion)  # noqa: S101 - none was allowed
                await transfer.write(whole)
            else:
                async for block in taken.blocks():
                    await transfer.write(block)
        except FeedrackError as error:
            # Its bytes so far stay where they are, and nobody is told of them.
            self._fail(key, error, offset)
            return
        finally:
            for tier, size_bytes in taken.served.items():
                self.served[tier] = self.served.get(tier, 0) + size_bytes
            await taken.close()
        if self.tier is None and wanted.size_bytes:
            self.tier = taken.tier
        self.rows.append(
            Row(
                206 if taken.partial else 200,
                offset,
                wanted.size_bytes,
                etag=_text(info.etag),
                last_modified_ms=info.last_modified_ms,
                range=wanted.content_range(info.size_bytes) if taken.partial else "",
            )
        )

    def _fail(self, key: str, error: Exception, offset: int) -> None:
        failure = self._failures.of(key, error)
        self.failed += 1
        self.rows.append(_failed_row(failure, offset))


def _failed_row(failure: S3Error, offset: int) -> Row:
    return Row(failure.status, offset, 0, code=_text(failure.code), message=_text(failure.message))


def _text(text: str) -> str:
    """What an origin says, as far as JSON can tell it."""
    return text[:_TEXT_CHARACTERS].encode("utf-8", "replace").decode()
