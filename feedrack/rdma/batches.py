"""Many objects into one piece of memory, and the table of where each is."""

import io
from collections.abc import Sequence

import msgspec

from feedrack import frames
from feedrack.client import TROUBLE, Answer, Streamed, refusal
from feedrack.client import Client as HttpClient
from feedrack.errors import Unavailable
from feedrack.rdma.memory import Memory
from feedrack.rdma.moving import Mover, TransferOff
from feedrack.rdma.opening import NoRdma
from gateway.rdma.wire import MEMORY_FULL_CODE, MEMORY_FULL_STATUS, Row, Table

BATCH: tuple[tuple[str, str], ...] = (("feedrack-batch", ""),)
JSON = {"content-type": "application/json"}
_BUFFER_BYTES = 256 * 1024
_TABLE = msgspec.json.Decoder(Table)


def fill(
    mover: Mover, keys: Sequence[str], ranges: Sequence[str | None] | None, memory: Memory
) -> list[Row]:
    """A row for each object, which lies where its row says. Up to `frames.LIMIT` of them.

    Raises what is wrong with all of them."""
    document = frames.encode_request(keys, ranges)
    try:
        with mover.ask("POST", None, memory, query=BATCH, headers=JSON, body=document) as moved:
            if moved.size_bytes is None:
                try:
                    rows = _receive(moved.streamed, len(keys), memory)
                except (*TROUBLE, frames.FramesBroken, Unavailable) as error:
                    raise NoRdma("gateway", f"declined, and not to be had: {error!r}") from error
                mover.fall_back(NoRdma("gateway", "the gateway declined"))
                return rows
            return read_table(moved.streamed, len(keys), moved.size_bytes)
    except NoRdma as trouble:
        told = mover.fall_back(trouble)
    return _over_http(mover.http, document, len(keys), memory, told)


def read_table(streamed: Streamed, count: int, moved_bytes: int) -> list[Row]:
    """The rows of an answer by RDMA. TransferOff where they cannot be."""
    try:
        table = _TABLE.decode(streamed.body.read())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TransferOff(f"the table is none: {error}") from error
    if len(table.objects) != count or table.bytes != moved_bytes:
        raise TransferOff("the table is of another batch")
    for row in table.objects:
        if row.offset < 0 or row.length < 0 or row.offset + row.length > moved_bytes:
            raise TransferOff("a row of the table lies beyond what was moved")
    return table.objects


def full(used_bytes: int) -> Row:
    """The row of an object that does not fit behind so much."""
    return Row(MEMORY_FULL_STATUS, used_bytes, 0, code=MEMORY_FULL_CODE, message="No room is left.")


def _over_http(
    client: HttpClient, document: bytes, count: int, memory: Memory, told: dict[str, str]
) -> list[Row]:
    rows: list[Row] = []

    def once() -> Answer:
        nonlocal rows
        with client.open("POST", None, BATCH, JSON | told, document) as streamed:
            if streamed.status >= 300:
                return Answer(streamed.status, streamed.headers, streamed.body.read())
            try:
                rows = _receive(streamed, count, memory)
            except frames.FramesBroken as error:
                raise ConnectionError(str(error)) from error
            return Answer(streamed.status, streamed.headers, b"")

    answer = client.patiently(once, f"a batch of {count} objects")
    if answer.status >= 300:
        raise refusal(answer, client.endpoint.bucket, None)
    return rows


def _receive(streamed: Streamed, count: int, memory: Memory) -> list[Row]:
    """Rows of what comes in frames, put into memory as far as there is room. FramesBroken."""
    if streamed.headers.get("content-type") != frames.CONTENT_TYPE:
        raise Unavailable("the endpoint answers no batches")
    body = io.BufferedReader(streamed.body, _BUFFER_BYTES)
    rows: list[Row] = []
    used, is_full = 0, False
    for frame in frames.read_frames(body.read, count):
        if frame.position != len(rows):
            raise frames.FramesBroken("objects in another order than they were asked for")
        said = frames.said_of(frame)
        size = len(frame.body)
        is_full = is_full or size > memory.size_bytes - used
        if is_full:
            rows.append(full(used))
            continue
        memory.put(used, frame.body)
        rows.append(
            Row(
                frame.status,
                used,
                size,
                said.etag,
                said.modified_ms,
                said.range,
                said.code,
                said.message,
            )
        )
        used += size
    if body.read(1):
        raise frames.FramesBroken("more after the last frame")
    if len(rows) != count:
        raise frames.FramesBroken(f"{len(rows)} of {count} objects came")
    return rows
