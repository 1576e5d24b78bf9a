"""The routes by which other nodes read: spans, and what keys hold."""

import structlog
from msgspec import structs

from gateway.errors import (
    Corrupt,
    FeedrackError,
    S3Error,
    TierFull,
    TierUnavailable,
    VersionChanged,
)
from gateway.peers.rdma import PeerRdma
from gateway.peers.request import PeerAnswer, PeerRequest, Route
from gateway.store.giving import Giving, NotHeld
from gateway.tiers.peers.asking import (
    AGE,
    ERROR,
    ERROR_STATUS,
    HEAD_LENGTH,
    HEAD_PATH,
    SPAN_PATH,
    TIER,
    WrongQuestionError,
    encode_info,
    head_question,
    query_of,
    span_question,
)

log = structlog.get_logger()


def read_routes(service: Giving, rdma: PeerRdma) -> tuple[Route, ...]:
    """What `service` gives to others, into their memory where they name some."""

    async def span(request: PeerRequest) -> PeerAnswer:
        async with rdma.claim(request) as claim:
            try:
                question = span_question(query_of(request.query))
                given = await service.give(question, request.asker)
                try:
                    moved = await claim.moved(given)
                except FeedrackError:
                    # What was found corrupt on the way was dropped; it comes anew, as it would
                    # have been without.
                    await given.reader.close()
                    given, moved = await service.give(question, request.asker), None
                except BaseException:
                    await given.reader.close()
                    raise
            except (FeedrackError, WrongQuestionError) as error:
                refusal = _refusal(request, error)
                return structs.replace(refusal, headers=claim.signed(dict(refusal.headers)))
            if moved is not None:
                return moved
            return PeerAnswer(200, claim.signed({TIER: given.tier}), given=given)

    async def head(request: PeerRequest) -> PeerAnswer:
        try:
            question = head_question(query_of(request.query))
            found = await service.give_head(question)
        except (FeedrackError, WrongQuestionError) as error:
            return _refusal(request, error)
        info = encode_info(found.info)
        headers = {
            TIER: found.tier,
            AGE: f"{found.age_seconds:.3f}",
            HEAD_LENGTH: str(len(info)),
        }
        return PeerAnswer(200, headers, body=info, given=found.bytes)

    return Route("GET", SPAN_PATH, span), Route("GET", HEAD_PATH, head)


def _refusal(request: PeerRequest, error: Exception) -> PeerAnswer:
    """What is said in place of an answer; the asker knows where to go on."""
    match error:
        case WrongQuestionError():
            return PeerAnswer(400, body=str(error).encode())
        case NotHeld():
            return PeerAnswer(404)
        case VersionChanged():
            return PeerAnswer(412)
        case S3Error():
            # Under a status of its own: what the origin refuses is nothing between nodes.
            headers = {ERROR: error.code, ERROR_STATUS: str(error.status)}
            return PeerAnswer(422, headers, body=error.message.encode()[:2048])
        case TierFull() | Corrupt():
            return PeerAnswer(503)
        case TierUnavailable():
            log.info("a peer is sent on", asker=request.asker, reason=str(error))
            return PeerAnswer(502, {ERROR: "TierUnavailable"})
        case _:
            raise error
