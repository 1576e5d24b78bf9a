"""Conditional requests, as S3 evaluates them. Pure.

Precedence: RFC 9110 section 13.2.2, which S3 follows: If-Match over If-Unmodified-Since,
If-None-Match over If-Modified-Since.
"""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import formatdate, parsedate_to_datetime

from msgspec import Struct

from gateway.errors import NotModified, PreconditionFailed
from gateway.model.objects import ObjectInfo

# A quoted ETag may hold commas; what is not quoted ends at one.
_ETAG = re.compile(r'(?:[Ww]/)?"[^"]*"|[^\s,][^,]*')


class Conditions(Struct, frozen=True, kw_only=True):
    """The four conditional headers of a read (or of a copy's source). Dates in whole seconds."""

    if_match: tuple[str, ...] = ()
    if_none_match: tuple[str, ...] = ()
    if_modified_since: int | None = None
    if_unmodified_since: int | None = None

    def __bool__(self) -> bool:
        return self != UNCONDITIONAL


UNCONDITIONAL = Conditions()


class WriteConditions(Struct, frozen=True, kw_only=True):
    """`if_none_match_any` is `If-None-Match: *`; `if_match` an unquoted ETag or "*"."""

    if_match: str | None = None
    if_none_match_any: bool = False

    def __bool__(self) -> bool:
        return self.if_match is not None or self.if_none_match_any


UNCONDITIONAL_WRITE = WriteConditions()


def parse_conditions(headers: Mapping[str, str], prefix: str = "") -> Conditions:
    """The conditions in `headers` (a case-insensitive mapping); `prefix` is "" or
    "x-amz-copy-source-". Dates that do not parse are ignored, as HTTP demands."""
    return Conditions(
        if_match=_etags(headers.get(f"{prefix}if-match")),
        if_none_match=_etags(headers.get(f"{prefix}if-none-match")),
        if_modified_since=_date(headers.get(f"{prefix}if-modified-since")),
        if_unmodified_since=_date(headers.get(f"{prefix}if-unmodified-since")),
    )


def check_read(conditions: Conditions, info: ObjectInfo) -> None:
    """Nothing where the read may go on; PreconditionFailed or NotModified where not."""
    modified = info.last_modified_ms // 1000
    if conditions.if_match:
        if not _any(conditions.if_match, info.etag):
            raise PreconditionFailed(fields={"Condition": "If-Match"})
    elif conditions.if_unmodified_since is not None and modified > conditions.if_unmodified_since:
        raise PreconditionFailed(fields={"Condition": "If-Unmodified-Since"})
    if conditions.if_none_match:
        if _any(conditions.if_none_match, info.etag):
            raise _not_modified(info)
    elif conditions.if_modified_since is not None and modified <= conditions.if_modified_since:
        raise _not_modified(info)


def check_copy_source(conditions: Conditions, info: ObjectInfo) -> None:
    """As `check_read`, but a copy has no 304: every failed condition is PreconditionFailed."""
    try:
        check_read(conditions, info)
    except NotModified as error:
        raise PreconditionFailed from error


def unquote_etag(value: str) -> str:
    """An ETag without quotes or weakness mark."""
    value = value.strip()
    if value[:2] in ("W/", "w/"):
        value = value[2:]
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return value


def _not_modified(info: ObjectInfo) -> NotModified:
    # RFC 9110 section 15.4.5: a 304 names the version it speaks of.
    last_modified = formatdate(info.last_modified_ms // 1000, usegmt=True)
    return NotModified(headers={"etag": f'"{info.etag}"', "last-modified": last_modified})


def _etags(header: str | None) -> tuple[str, ...]:
    if header is None:
        return ()
    return tuple(unquote_etag(part) for part in _ETAG.findall(header))


def _any(wanted: tuple[str, ...], etag: str) -> bool:
    return "*" in wanted or etag in wanted


def _date(header: str | None) -> int | None:
    if header is None:
        return None
    try:
        date = parsedate_to_datetime(header)
        # The forms without a zone are GMT by RFC 9110, not the time where we run.
        return int((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
