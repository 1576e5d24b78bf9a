"""Payloads by RDMA at the S3 face: sessions, and the requests that name a client's memory.

A request with a token is the same request as without, handled by the same handler; only where its
payload goes, or comes from, is another place. See docs/rdma.md.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from gateway.errors import (
    AccessDenied,
    InvalidArgument,
    InvalidRDMAToken,
    InvalidRequest,
    RDMATransferFailed,
    S3Error,
    SlowDown,
    TierUnavailable,
)
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.rdma.device import RdmaUnavailable, VerbFailed
from gateway.rdma.server import RdmaServer
from gateway.rdma.sessions import TooManySessions
from gateway.rdma.token import TOKEN_HEADER, BadToken, parse_token
from gateway.rdma.transfers import (
    MemoryReader,
    MemoryTooSmall,
    NoBuffer,
    Transfer,
    TransferFailed,
)
from gateway.rdma.wire import (
    DECLINED,
    DOCUMENT_BYTES,
    FALLBACK_HEADER,
    FALLBACK_REASONS,
    REPLY_HEADER,
    TRANSFERRED_HEADER,
    BadDocument,
    Document,
    Prepare,
    Session,
    read_document,
)
from gateway.s3.answer import Answer, empty_answer
from gateway.s3.call import Call
from gateway.s3.headers import announced_checksums
from gateway.s3.rdma_batch import write_batch
from gateway.s3.record import Record
from gateway.telemetry.metrics import Metrics
from gateway.tiers.protocol import FileRegion

log = structlog.get_logger()

Handler = Callable[[Call], Awaitable[Answer]]

_WRITES = frozenset(("PutObject", "UploadPart"))
_MOVED = frozenset(("GetObject", "GetObjects")) | _WRITES


class RdmaFace:
    """What the endpoint asks where a request speaks of RDMA."""

    def __init__(self, server: RdmaServer, metrics: Metrics) -> None:
        self._server = server
        self._metrics = metrics
        self.handlers: Mapping[str, Handler] = {
            "PrepareRdma": self._prepare,
            "ReadyRdma": self._ready,
            "CancelRdma": self._cancel,
        }

    def concerns(self, call: Call) -> bool:
        """Whether the request's payload is to move by RDMA."""
        reason = call.head.fields.get(FALLBACK_HEADER)
        if reason is not None:
            known = reason if reason in FALLBACK_REASONS else "other"
            self._metrics.rdma_fallbacks.labels(known).inc()
        return TOKEN_HEADER in call.head.fields and call.operation.name in _MOVED

    async def answer(
        self, call: Call, handler: Handler, record: Record, *, relayed: bool
    ) -> Answer:
        """The answer to a request with a token. `relayed`: an origin answers it, over HTTP alone.
        Once this returns or raises nothing touches the client's memory any more; `record` says
        so, unless the transfer broke off.

        AccessDenied, InvalidRDMAToken, RDMATransferFailed, and what the handler raises.
        """
        name = call.operation.name
        transfer = self._claim(call)
        if transfer is None or relayed:
            if transfer is not None:
                await transfer.close()
            return await self._decline(call, handler)
        record.settled = True
        outcome = "failed"
        try:
            if name in _WRITES:
                answer = await _read_in(call, handler, transfer)
            elif name == "GetObjects":
                answer = await write_batch(call, transfer)
            else:
                answer = await _write_out(call, handler, transfer)
            outcome = "moved"
        except MemoryTooSmall as error:
            outcome = "refused"
            raise InvalidRDMAToken(
                f"The memory is too small: {error}.",
                fields={"BytesNeeded": str(error.needed_bytes)},
            ) from error
        except NoBuffer as error:
            outcome = "refused"
            raise SlowDown("No buffer for RDMA came free in time.") from error
        except TransferFailed as error:
            record.settled = False
            raise _broke_off(error) from error
        except RDMATransferFailed:
            record.settled = False
            raise
        except S3Error:
            outcome = "refused"
            raise
        finally:
            await transfer.close()
            self._metrics.rdma_transfers.labels(name, outcome).inc()
        record.rdma_bytes = moved_bytes = int(answer.headers[TRANSFERRED_HEADER])
        self._metrics.rdma_bytes.labels(name).inc(moved_bytes)
        self._metrics.rdma_copied_bytes.labels(name).inc(transfer.copied_bytes)
        return answer

    async def _decline(self, call: Call, handler: Handler) -> Answer:
        name = call.operation.name
        self._metrics.rdma_transfers.labels(name, "declined").inc()
        declined = {REPLY_HEADER: DECLINED}
        if name in _WRITES:
            raise NotImplementedS3("Not by RDMA; send the body over HTTP.", headers=declined)
        answer = await handler(call)
        answer.headers = {**answer.headers, **declined}
        return answer

    def _claim(self, call: Call) -> Transfer | None:
        tenant = call.identity.tenant
        if tenant is None or TOKEN_HEADER not in call.identity.signed_headers:
            raise AccessDenied(
                "There were headers present in the request which were not signed",
                fields={"HeadersNotSigned": TOKEN_HEADER},
            )
        try:
            token = parse_token(call.head.fields[TOKEN_HEADER])
            return None if token is None else self._server.claim(tenant.name, token)
        except BadToken as error:
            raise InvalidRDMAToken(f"The RDMA token is not valid: {error}.") from error

    async def _prepare(self, call: Call) -> Answer:
        asked = await _document(call, Prepare)
        try:
            prepared = await self._server.prepare(_tenant(call), asked.address)
        except RdmaUnavailable as error:
            raise NotImplementedS3(
                "This gateway has no RDMA.", headers={REPLY_HEADER: DECLINED}
            ) from error
        except TooManySessions as error:
            raise SlowDown(f"{error}.") from error
        except VerbFailed as error:
            log.warning("no rdma session", tenant=_tenant(call), reason=str(error))
            raise InvalidRequest(
                "The queue pairs cannot be connected.", headers={REPLY_HEADER: DECLINED}
            ) from error
        body = msgspec.json.encode(prepared)
        return Answer(headers={"content-type": "application/json"}, body=body)

    async def _ready(self, call: Call) -> Answer:
        asked = await _document(call, Session)
        if not self._server.ready(_tenant(call), asked.session):
            raise InvalidArgument("There is no such RDMA session, or there is none any more.")
        return empty_answer(204)

    async def _cancel(self, call: Call) -> Answer:
        asked = await _document(call, Session)
        self._server.cancel(_tenant(call), asked.session)
        return empty_answer(204)


class _MemoryStream:
    """A client's memory as the stream that a body is read from."""

    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader

    async def readany(self) -> bytes:
        try:
            return await self._reader.read()
        except NoBuffer as error:
            raise SlowDown("No buffer for RDMA came free in time.") from error
        except TransferFailed as error:
            # What reads a body knows what to do with an S3 error: keep nothing.
            raise _broke_off(error) from error


async def _read_in(call: Call, handler: Handler, transfer: Transfer) -> Answer:
    if call.has_body:
        raise InvalidRequest("A request whose payload moves by RDMA has no body.")
    if call.head.header("content-md5") is None and not announced_checksums(call.head):
        raise InvalidRequest("What is read by RDMA needs a checksum: x-amz-checksum-*.")
    size_bytes = transfer.token.size_bytes
    reader = transfer.reader()
    call.memory = (_MemoryStream(reader), size_bytes)
    try:
        answer = await handler(call)
    finally:
        reader.close()
    return _moved(answer, size_bytes)


async def _write_out(call: Call, handler: Handler, transfer: Transfer) -> Answer:
    call.takes_files = True
    answer = await handler(call)
    try:
        length_bytes = answer.length_bytes
        assert answer.stream is not None  # noqa: S101 - a GetObject that succeeds has one
        assert length_bytes is not None  # noqa: S101 - and its length is known
        transfer.check_room(length_bytes)
        async for piece in answer.stream.pieces(files=True):
            if isinstance(piece, FileRegion):
                await transfer.write_file(piece.descriptor, piece.offset, piece.size_bytes)
                continue
            for block in piece if isinstance(piece, list) else (piece,):
                await transfer.write(block)
        moved_bytes = await transfer.finish()
    finally:
        await answer.close()
    if moved_bytes != length_bytes:
        raise TierUnavailable(f"{moved_bytes} of {length_bytes} bytes came")
    return _moved(answer, moved_bytes)


def _broke_off(error: TransferFailed) -> RDMATransferFailed:
    return RDMATransferFailed(f"The RDMA transfer failed: {error}.")


def _moved(answer: Answer, size_bytes: int) -> Answer:
    """The answer, whose payload has moved."""
    told = {REPLY_HEADER: str(answer.status), TRANSFERRED_HEADER: str(size_bytes)}
    return Answer(
        status=answer.status,
        headers={**answer.headers, **told},
        tier=answer.tier,
        served=answer.served,
    )


async def _document(call: Call, kind: type[Document]) -> Document:
    raw, _ = await call.document(limit_bytes=DOCUMENT_BYTES)
    try:
        return read_document(kind, raw)
    except BadDocument as error:
        raise InvalidArgument(f"The document is not as it should be: {error}") from error


def _tenant(call: Call) -> str:
    tenant = call.identity.tenant
    assert tenant is not None  # noqa: S101 - nobody else is let in
    return tenant.name
