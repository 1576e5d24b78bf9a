"""Spans that other nodes ask for, moved by RDMA: their sessions, and the requests that name memory.

What lies on this node's disk is written into the memory of whoever asks, as if they were a client;
all else, and whatever goes wrong, leaves the answer as it is without RDMA. An answer that speaks of
its token promises that nothing of it is under way any more, so a token is looked at first.
"""

from types import TracebackType

import msgspec
import structlog

from gateway.errors import FeedrackError
from gateway.peers.request import PeerAnswer, PeerRequest, Route
from gateway.rdma.device import RdmaUnavailable, VerbFailed
from gateway.rdma.server import RdmaServer
from gateway.rdma.sessions import NODE_PREFIX, TooManySessions
from gateway.rdma.token import BadToken, parse_token
from gateway.rdma.transfers import NoBuffer, Transfer, TransferFailed
from gateway.rdma.wire import BadDocument, Prepare, Session, read_document
from gateway.store.giving import Given
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.asking import (
    BROKE_OFF,
    MOVED,
    NO_SESSION,
    NOT_MOVED,
    RDMA_MOVED_BYTES,
    RDMA_PATH,
    RDMA_REPLY,
    RDMA_TOKEN,
    TIER,
    USED_BEFORE,
)

_OPERATION = "peer"
# There is always HTTP, so nobody waits as long as clients do.
_LONGEST_TIMEOUT_SECONDS = 5.0
_REGION_BYTES = 2 * 1024**2
_BLOCK_BYTES = 262_144

log = structlog.get_logger()


class PeerRdma:
    """A node's RDMA as other nodes have it. A transfer may rest for `timeout_seconds`."""

    def __init__(self, server: RdmaServer, metrics: Metrics, *, timeout_seconds: float) -> None:
        self._server = server
        self._metrics = metrics
        self._timeout_seconds = min(timeout_seconds, _LONGEST_TIMEOUT_SECONDS)

    def routes(self) -> tuple[Route, ...]:
        """By which sessions begin and end."""
        return (
            Route("POST", f"{RDMA_PATH}prepare", self._prepare),
            Route("POST", f"{RDMA_PATH}ready", self._ready),
            Route("POST", f"{RDMA_PATH}cancel", self._cancel),
        )

    def claim(self, request: PeerRequest) -> "Claim":
        """What the request says of memory, if it does. Use it as a context."""
        text = request.headers.get(RDMA_TOKEN)
        if text is None:
            return Claim(self._metrics, None, None)
        try:
            token = parse_token(text)
            transfer = token and self._server.claim(
                _tenant(request), token, timeout_seconds=self._timeout_seconds
            )
        except BadToken as error:
            log.warning("a peer's token is not taken", peer=request.asker, reason=str(error))
            return Claim(self._metrics, None, USED_BEFORE)
        return Claim(self._metrics, transfer, NO_SESSION if transfer is None else NOT_MOVED)

    async def _prepare(self, request: PeerRequest) -> PeerAnswer:
        try:
            asked = read_document(Prepare, request.body)
            prepared = await self._server.prepare(_tenant(request), asked.address)
        except BadDocument as error:
            return PeerAnswer(400, body=str(error).encode())
        except RdmaUnavailable:
            return PeerAnswer(501)
        except TooManySessions as error:
            return PeerAnswer(503, body=str(error).encode())
        except VerbFailed as error:
            log.warning("no rdma session", peer=request.asker, reason=str(error))
            return PeerAnswer(502, body=str(error).encode()[:2048])
        return PeerAnswer(body=msgspec.json.encode(prepared))

    async def _ready(self, request: PeerRequest) -> PeerAnswer:
        try:
            asked = read_document(Session, request.body)
        except BadDocument as error:
            return PeerAnswer(400, body=str(error).encode())
        known = self._server.ready(_tenant(request), asked.session)
        return PeerAnswer(200 if known else 404)

    async def _cancel(self, request: PeerRequest) -> PeerAnswer:
        try:
            asked = read_document(Session, request.body)
        except BadDocument as error:
            return PeerAnswer(400, body=str(error).encode())
        self._server.cancel(_tenant(request), asked.session)
        return PeerAnswer()


class Claim:
    """What one request's token is good for, until the context ends: a transfer, or only a word."""

    def __init__(self, metrics: Metrics, transfer: Transfer | None, reply: str | None) -> None:
        self._metrics = metrics
        self._transfer = transfer
        self._reply = reply

    async def __aenter__(self) -> "Claim":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def moved(self, given: Given) -> PeerAnswer | None:
        """The answer for bytes that are in the asker's memory, as many as it has room for, with the
        reader closed. None where they are to be sent: they do not lie on the disk, or the transfer
        failed. Raises what the reader does."""
        transfer = self._transfer
        if transfer is None or given.tier != "disk" or not transfer.room_bytes:
            return None
        try:
            moved_bytes = await _write(transfer, given)
        except (TransferFailed, NoBuffer) as error:
            log.warning("a peer's transfer failed", reason=str(error))
            await self._broke_off()
            return None
        except FeedrackError:
            await self._broke_off()
            raise
        self._reply = MOVED
        await self._end()
        await given.reader.close()
        self._metrics.rdma_bytes.labels(_OPERATION).inc(moved_bytes)
        self._metrics.rdma_copied_bytes.labels(_OPERATION).inc(transfer.copied_bytes)
        headers = self.signed({TIER: given.tier, RDMA_MOVED_BYTES: str(moved_bytes)})
        return PeerAnswer(headers=headers, moved_bytes=moved_bytes)

    def signed(self, headers: dict[str, str]) -> dict[str, str]:
        """The headers with what is to be said of the token."""
        if self._reply is None:
            return headers
        outcome = {MOVED: "moved", BROKE_OFF: "failed"}.get(self._reply, "declined")
        self._metrics.rdma_transfers.labels(_OPERATION, outcome).inc()
        return {**headers, RDMA_REPLY: self._reply}

    async def _broke_off(self) -> None:
        self._reply = BROKE_OFF
        await self._end()

    async def _end(self) -> None:
        """Returns once nothing touches the asker's memory any more."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            await transfer.close()


async def _write(transfer: Transfer, given: Given) -> int:
    """Writes what is given into the asker's memory, up to its end: how much."""
    reader, position, block = given.reader, given.offset, given.block
    until = min(given.until, position + transfer.room_bytes)
    while position < until:
        left_bytes = until - position
        region = None if block else reader.region(position, min(left_bytes, _REGION_BYTES))
        if region is not None:
            await transfer.write_file(region.descriptor, region.offset, region.size_bytes)
            position += region.size_bytes
            continue
        if not block:
            limit_bytes = min(left_bytes, _BLOCK_BYTES)
            block = reader.read_now(position, limit_bytes) or (
                await reader.read(position, limit_bytes)
            )
        taken = memoryview(block)[:left_bytes]
        await transfer.write(taken)
        position += len(taken)
        block = b""
    return await transfer.finish()


def _tenant(request: PeerRequest) -> str:
    """No tenant's name has a colon in it."""
    return f"{NODE_PREFIX}{request.asker}"
