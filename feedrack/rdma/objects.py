"""GetObject, PutObject and UploadPart between an object and memory: by RDMA, else over HTTP."""

import http.client
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Literal, NamedTuple

from feedrack.client import TROUBLE, Answer, refusal
from feedrack.errors import RequestRefused, WrongAddress, WrongMemory
from feedrack.rdma.memory import Memory
from feedrack.rdma.moving import UNSIGNED, Mover, TransferOff
from feedrack.rdma.opening import NoRdma
from feedrack.signing import Query
from gateway.rdma.wire import REPLY_HEADER, TRANSFERRED_HEADER, FallbackReason

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/", re.ASCII)


class Result(NamedTuple):
    """What became of one object. `etag` is unquoted. `reason`: why it did not move by RDMA."""

    size_bytes: int
    etag: str
    headers: dict[str, str]
    transport: Literal["rdma", "http"]
    reason: FallbackReason | None = None


def get_object(
    mover: Mover, key: str, memory: Memory, byte_range: str | None, etag: str | None
) -> Result:
    """Reads an object, or the part of it that a Range header's value names, to the beginning of the
    memory."""
    headers = {} if byte_range is None else {"range": byte_range}
    if etag:
        headers["if-match"] = f'"{etag}"'
    try:
        with mover.ask("GET", key, memory, headers=headers) as moved:
            streamed = moved.streamed
            if moved.size_bytes is None:
                head = Answer(streamed.status, streamed.headers, b"")
                try:
                    size_bytes = _receive(head, streamed.body, memory, key, byte_range)
                except (*TROUBLE, RequestRefused) as error:
                    raise NoRdma("gateway", f"declined, and not to be had: {error!r}") from error
                mover.fall_back(NoRdma("gateway", "the gateway declined"))
                return _result(head, size_bytes, "gateway")
            _check_part(streamed.status, streamed.headers, byte_range, moved.size_bytes)
            streamed.body.read()
        return _result(Answer(streamed.status, streamed.headers, b""), moved.size_bytes, None)
    except NoRdma as trouble:
        told = mover.fall_back(trouble)
        reason = trouble.reason
    return _get_over_http(mover, key, memory, byte_range, headers | told, reason)


def put_object(
    mover: Mover,
    key: str,
    memory: Memory,
    headers: Mapping[str, str],
    *,
    query: Query = (),
    crc32: int | None = None,
) -> Result:
    """Writes an object, or a part of an upload, of all of the memory."""
    crc32 = memory.crc32() if crc32 is None else crc32
    if not 0 <= crc32 < 1 << 32:
        raise WrongAddress(f"a CRC-32 is of 32 bits: {crc32}", key=key)
    told = {**headers, "x-amz-checksum-crc32": b64encode(crc32.to_bytes(4)).decode()}
    try:
        with mover.ask("PUT", key, memory, query=query, headers=told, sha256=UNSIGNED) as moved:
            streamed = moved.streamed
            _check_taken(moved.size_bytes, memory.size_bytes)
            streamed.body.read()
        return _result(Answer(streamed.status, streamed.headers, b""), memory.size_bytes, None)
    except NoRdma as trouble:
        told |= mover.fall_back(trouble)
        reason = trouble.reason
    body = memory.contents()

    def once() -> Answer:
        with mover.http.open("PUT", key, query, told, body) as streamed:
            return Answer(streamed.status, streamed.headers, streamed.body.read())

    answer = mover.http.patiently(once, f"PUT {key}")
    if answer.status >= 300:
        raise refusal(answer, mover.http.endpoint.bucket, key)
    return _result(answer, memory.size_bytes, reason)


def _get_over_http(
    mover: Mover,
    key: str,
    memory: Memory,
    byte_range: str | None,
    headers: dict[str, str],
    reason: FallbackReason,
) -> Result:
    came = 0

    def once() -> Answer:
        nonlocal came
        with mover.http.open("GET", key, headers=headers) as streamed:
            head = Answer(streamed.status, streamed.headers, b"")
            if streamed.status >= 300:
                return head._replace(body=streamed.body.read())
            came = _receive(head, streamed.body, memory, key, byte_range)
            return head

    answer = mover.http.patiently(once, f"GET {key}")
    if answer.status >= 300:
        raise refusal(answer, mover.http.endpoint.bucket, key)
    return _result(answer, came, reason)


def _receive(
    head: Answer,
    body: http.client.HTTPResponse,
    memory: Memory,
    key: str,
    byte_range: str | None,
) -> int:
    if byte_range is not None and head.status != 206:
        raise RequestRefused("the endpoint does not answer ranges", key=key)
    length = head.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise RequestRefused("the endpoint does not say how long the object is", key=key)
    size_bytes = int(length)
    try:
        came = memory.receive(body, size_bytes)
    except WrongMemory as error:
        raise WrongMemory(str(error), key=key) from error
    if came != size_bytes:
        raise http.client.IncompleteRead(b"", size_bytes - came)
    # The end of the body too, so that the connection can be used again.
    body.read()
    return size_bytes


def _check_part(
    status: int, headers: Mapping[str, str], byte_range: str | None, size_bytes: int
) -> None:
    """Nothing where the answer is the one that was asked for. TransferOff."""
    if headers[REPLY_HEADER] != str(status) or headers.get("content-length") != "0":
        raise TransferOff("an answer by RDMA that is none")
    if byte_range is not None and status != 206:
        raise TransferOff("the whole object in place of a part")
    if status == 206:
        found = _CONTENT_RANGE.match(headers.get("content-range", ""))
        if found is None or int(found[2]) - int(found[1]) + 1 != size_bytes:
            raise TransferOff(f"{size_bytes} bytes are not {headers.get('content-range')}")


def _check_taken(taken_bytes: int | None, size_bytes: int) -> None:
    """Nothing where all of it was read. TransferOff, NoRdma."""
    if taken_bytes is None:
        # Somebody who knows nothing of RDMA stored the empty body.
        raise NoRdma("gateway", "the gateway said nothing of RDMA")
    if taken_bytes != size_bytes:
        raise TransferOff(f"{taken_bytes} of {size_bytes} bytes were read")


def _result(answer: Answer, size_bytes: int, reason: FallbackReason | None) -> Result:
    headers = {name: value for name, value in answer.headers.items() if name != TRANSFERRED_HEADER}
    etag = headers.get("etag", "").strip('"')
    return Result(size_bytes, etag, headers, "rdma" if reason is None else "http", reason)
