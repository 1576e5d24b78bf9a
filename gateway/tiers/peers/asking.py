"""What one node asks another for, as path and query, and back. Pure.

    GET /v1/span?origin=&bucket=&key=&etag=&size=&number=&start=&stop=&offset=&until=&have=&level=
    GET /v1/head?origin=&bucket=&key=&fresh=&first=&checksums=&level=

A level says as what the asked node is asked, and it only ever asks at later ones, so that no
question comes back to where it has been:

    rack      the home in the rack: asks "cluster"
    cluster   the first home: asks "held", "partial", the origin
    held      gives what is on its disk, or comes in from the origin; of a head, what it believes
    partial   gives what has come in there so far

Where the asker has a queue pair to the asked node (POST /v1/rdma/prepare, ready, cancel: documents
as clients send them), it may name memory in `RDMA_TOKEN`, for the first bytes of what it asks for.
`RDMA_REPLY` of the answer says what became of that.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Struct

from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, Span

SPAN_PATH = "/v1/span"
HEAD_PATH = "/v1/head"
# In answers: the tier the bytes come from, how old a head is, how long it is; of the error that the
# origin answered with (422), code and status.
TIER = "x-feedrack-tier"
AGE = "x-feedrack-age"
HEAD_LENGTH = "x-feedrack-head-bytes"
ERROR = "x-feedrack-error"
ERROR_STATUS = "x-feedrack-error-status"

# Their names begin as those do that a node's proof covers.
RDMA_TOKEN = "x-feedrack-rdma-token"  # noqa: S105 - a header's name
RDMA_REPLY = "x-feedrack-rdma-reply"
RDMA_MOVED_BYTES = "x-feedrack-rdma-bytes"
RDMA_PATH = "/v1/rdma/"
# They lie in the memory: as many as `RDMA_MOVED_BYTES` says, and there is no body.
MOVED = "200"
# The body has all bytes; nothing touched the memory.
NOT_MOVED = "501"
# As before, but there is no such session (any more).
NO_SESSION = "410"
# As before, but the token was used before: another request may be at the memory.
USED_BEFORE = "409"
# The body has all bytes; the memory was touched, and the session is of no more use.
BROKE_OFF = "500"

Level = Literal["rack", "cluster", "held", "partial"]

_MOST_FIELDS = 32
_LARGEST = 2**62


class WrongQuestionError(ValueError):
    """It cannot be understood; the message says why."""


class SpanQuestion(Struct, frozen=True):
    """Bytes `offset` to `until` of a span. `have`: so many of its first bytes the asker can give,
    if nobody else has them."""

    span: Span
    level: Level
    offset: int
    until: int
    have: int = 0

    def target(self) -> str:
        span = self.span
        version = span.version
        have = f"&have={self.have}" if self.have else ""
        return (
            f"{SPAN_PATH}?{_named(version.ref)}&etag={_quoted(version.etag)}"
            f"&size={version.size_bytes}&number={span.number}&start={span.start}&stop={span.stop}"
            f"&offset={self.offset}&until={self.until}&level={self.level}{have}"
        )


class HeadQuestion(Struct, frozen=True):
    """What a key holds, as known not longer than `freshness_seconds` (None: for ever). `first`: its
    bytes too, if they are no more than that."""

    ref: ObjectRef
    level: Level
    freshness_seconds: float | None
    first: int = 0
    checksums: bool = False

    def target(self) -> str:
        target = f"{HEAD_PATH}?{_named(self.ref)}&level={self.level}"
        if self.freshness_seconds is not None:
            target += f"&fresh={_quoted(repr(float(self.freshness_seconds)))}"
        if self.first:
            target += f"&first={self.first}"
        return f"{target}&checksums=1" if self.checksums else target


def query_of(raw: str) -> dict[str, str]:
    """The fields of a query. WrongQuestionError."""
    try:
        pairs = parse_qsl(
            raw,
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="surrogatepass",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        raise WrongQuestionError("the query cannot be read") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise WrongQuestionError("a field is there twice")
    return fields


def span_question(fields: Mapping[str, str]) -> SpanQuestion:
    """The question in a query. WrongQuestionError."""
    version = ObjectVersion(_ref(fields), _text(fields, "etag"), _number(fields, "size"))
    span = Span(
        version, _number(fields, "number"), _number(fields, "start"), _number(fields, "stop")
    )
    question = SpanQuestion(
        span,
        _level(fields),
        _number(fields, "offset"),
        _number(fields, "until"),
        _number(fields, "have") if "have" in fields else 0,
    )
    if not 0 <= span.start < span.stop <= version.size_bytes:
        raise WrongQuestionError("start and stop are not of the object")
    if not 0 <= question.offset < question.until <= span.size_bytes:
        raise WrongQuestionError("offset and until are not of the span")
    if question.have > span.size_bytes:
        raise WrongQuestionError("have is more than the span")
    return question


def head_question(fields: Mapping[str, str]) -> HeadQuestion:
    """The question in a query. WrongQuestionError."""
    freshness = None
    if "fresh" in fields:
        try:
            freshness = float(fields["fresh"])
        except ValueError as error:
            raise WrongQuestionError("fresh is no number") from error
        if not 0 <= freshness < _LARGEST:
            raise WrongQuestionError("fresh is no time")
    return HeadQuestion(
        _ref(fields),
        _level(fields),
        freshness,
        _number(fields, "first") if "first" in fields else 0,
        fields.get("checksums") == "1",
    )


encode_info = msgspec.msgpack.Encoder().encode
decode_info = msgspec.msgpack.Decoder(ObjectInfo).decode


def _named(ref: ObjectRef) -> str:
    named = f"origin={_usual(ref.origin)}&bucket={_usual(ref.bucket)}&key={_quoted(ref.key)}"
    return named if ref.version_id is None else f"{named}&version={_quoted(ref.version_id)}"


def _quoted(text: str) -> str:
    return quote(text, safe="/", errors="surrogatepass")


@lru_cache(1024)
def _usual(text: str) -> str:
    """As `_quoted`, of what is there again and again."""
    return _quoted(text)


def _ref(fields: Mapping[str, str]) -> ObjectRef:
    return ObjectRef(
        _text(fields, "origin"),
        _text(fields, "bucket"),
        _text(fields, "key"),
        fields.get("version"),
    )


def _text(fields: Mapping[str, str], name: str) -> str:
    value = fields.get(name)
    if not value:
        raise WrongQuestionError(f"{name} is missing")
    return value


def _number(fields: Mapping[str, str], name: str) -> int:
    value = fields.get(name, "")
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) < _LARGEST):
        raise WrongQuestionError(f"{name} is no number")
    return int(value)


def _level(fields: Mapping[str, str]) -> Level:
    value = fields.get("level")
    if value not in get_args(Level):
        raise WrongQuestionError("level is none")
    return cast(Level, value)
