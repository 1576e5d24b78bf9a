"""How a node that leaves has another take over what it holds.

POST /v1/take      body: MessagePack, a list of spans; they are asked of the asker, one by one,
                   as "held" (`asking.py`). The answer's body: how many are there now.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.cluster.leaving import BATCH_SPANS
from gateway.cluster.members import Member
from gateway.model.objects import ObjectRef, ObjectVersion, Span
from gateway.tiers.peers.asking import SpanQuestion, WrongQuestionError
from gateway.tiers.peers.client import PeerClient
from gateway.tiers.peers.near import Near
from gateway.tiers.protocol import Incoming

TAKE_PATH = "/v1/take"


class _Told(Struct, frozen=True, array_like=True):
    origin: str
    bucket: bytes
    key: bytes
    version_id: bytes | None
    etag: bytes
    object_bytes: int
    number: int
    start: int
    stop: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Told]).decode


def encode_spans(spans: Sequence[Span]) -> bytes:
    """The body of a request."""
    return _encode([_told(each) for each in spans])


def decode_spans(raw: bytes) -> list[Span]:
    """What the body says. WrongQuestionError."""
    try:
        told = _decode(raw)
        spans = [_span(each) for each in told]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WrongQuestionError("the body is no list of spans") from error
    if len(spans) > BATCH_SPANS:
        raise WrongQuestionError("too many spans")
    for each in spans:
        if not 0 <= each.start < each.stop <= each.version.size_bytes or each.number < 0:
            raise WrongQuestionError("start and stop are not of the object")
    return spans


class TakeAsker:
    """Asks a node to take spans over; how many it has now."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client

    async def __call__(self, member: Member, spans: Sequence[Span]) -> int:
        """PeerFailed."""
        status, body = await self._client.ask_whole(
            member, TAKE_PATH, what="take", method="POST", body=encode_spans(spans), limit_bytes=64
        )
        return int(body) if status == 200 and body.isdigit() else 0


class HandedSource:
    """`Source` of a span that one node hands over: that node, and nobody else."""

    at_origin = False

    def __init__(self, near: Near, member: Member, span: Span) -> None:
        self._near = near
        self._member = member
        self._span = span

    async def open(self, offset: int, stop: int) -> Incoming:
        question = SpanQuestion(self._span, "held", offset, stop)
        return await self._near.bytes(self._member, question)

    def goes_on(self) -> bool:
        return False


def _told(span: Span) -> _Told:
    version, ref = span.version, span.version.ref
    return _Told(
        ref.origin,
        _raw(ref.bucket),
        _raw(ref.key),
        None if ref.version_id is None else _raw(ref.version_id),
        _raw(version.etag),
        version.size_bytes,
        span.number,
        span.start,
        span.stop,
    )


def _span(told: _Told) -> Span:
    version_id = None if told.version_id is None else _text(told.version_id)
    ref = ObjectRef(told.origin, _text(told.bucket), _text(told.key), version_id)
    version = ObjectVersion(ref, _text(told.etag), told.object_bytes)
    return Span(version, told.number, told.start, told.stop)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
