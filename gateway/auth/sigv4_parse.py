"""Reading what a signature says about itself, and refusing it in AWS's words. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from gateway.auth.signing import ALGORITHM, SERVICE, TERMINATOR
from gateway.errors import (
    AccessDenied,
    AuthorizationHeaderMalformed,
    AuthorizationQueryParametersError,
    InvalidArgument,
    S3Error,
)
from gateway.errors import NotImplemented as NotImplementedS3

_PARTS = frozenset({"Credential", "SignedHeaders", "Signature"})
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")


def parse_authorization(authorization: str) -> tuple[str, str, str]:
    """Credential, SignedHeaders and Signature of an Authorization header."""
    algorithm, _, rest = authorization.partition(" ")
    check_algorithm(algorithm, header=True)
    parts: dict[str, str] = {}
    for piece in rest.split(","):
        name, _, value = piece.strip().partition("=")
        if name not in _PARTS or name in parts or not value:
            break
        parts[name] = value
    if len(parts) != len(_PARTS) or rest.count(",") != len(_PARTS) - 1:
        raise malformed_header(
            "the authorization header requires three components: Credential, SignedHeaders, and "
            "Signature."
        )
    return parts["Credential"], parts["SignedHeaders"], parts["Signature"]


def check_algorithm(algorithm: str, *, header: bool = False) -> None:
    """Nothing where it is AWS4-HMAC-SHA256; `header`: it came in the Authorization header."""
    if algorithm == ALGORITHM:
        return
    if algorithm in ("AWS", "AWS4-ECDSA-P256-SHA256"):
        raise unsupported()
    if header:
        raise InvalidArgument(
            "Unsupported Authorization Type", fields={"ArgumentName": "Authorization"}
        )
    raise malformed_query('X-Amz-Algorithm only supports "AWS4-HMAC-SHA256"')


def parse_scope(
    text: str, expected_region: str, malformed: Callable[..., S3Error]
) -> tuple[str, str]:
    """Access key and day of a credential, once region, service and terminator are ours."""
    parts = text.rsplit("/", 4)
    if len(parts) != 5:
        raise malformed(
            'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/'
            'aws4_request".'
        )
    access_key, day, region, service, terminator = parts
    if len(day) != 8 or not day.isascii() or not day.isdigit():
        raise malformed(
            f'incorrect date format "{day}". This date in the credential must be in the format '
            '"yyyyMMdd".'
        )
    if region != expected_region:
        raise malformed(
            f"the region '{region}' is wrong; expecting '{expected_region}'",
            fields={"Region": expected_region},
        )
    if service != SERVICE:
        raise malformed(f'incorrect service "{service}". This endpoint belongs to "s3".')
    if terminator != TERMINATOR:
        raise malformed(f'incorrect terminal "{terminator}". This endpoint uses "aws4_request".')
    return access_key, day


def header_timestamp(headers: Mapping[str, str]) -> str:
    """When the request was signed, as x-amz-date (which `seconds` has yet to judge) or Date say."""
    timestamp = headers.get("x-amz-date")
    if timestamp is not None:
        return timestamp
    date = headers.get("date", "")
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        moment = parsedate_to_datetime(date)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise no_date() from error


def seconds(timestamp: str) -> int | None:
    """Seconds since the epoch of an ISO 8601 basic timestamp; None where it is none."""
    return _seconds(timestamp) if len(timestamp) == 16 else None


@lru_cache(maxsize=1024)
def _seconds(timestamp: str) -> int | None:
    if not _TIMESTAMP.fullmatch(timestamp):
        return None
    try:
        return int(datetime.strptime(f"{timestamp}+0000", "%Y%m%dT%H%M%SZ%z").timestamp())
    except ValueError:
        return None


def iso(seconds: float) -> str:
    """Seconds since the epoch as AWS writes them in errors."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def printable(text: str) -> str:
    """What a client sent, as XML can carry it."""
    return "".join([char if char == "\n" or char.isprintable() else "\ufffd" for char in text])


def days_differ(day: str, timestamp: str) -> str:
    return (
        f'Invalid credential date "{day}". This date is not the same as X-Amz-Date: '
        f'"{timestamp[:8]}".'
    )


def malformed_header(
    detail: str, fields: Mapping[str, str] | None = None
) -> AuthorizationHeaderMalformed:
    message = f"The authorization header is malformed; {printable(detail)}"
    return AuthorizationHeaderMalformed(message, fields=fields)


def malformed_query(
    detail: str, fields: Mapping[str, str] | None = None
) -> AuthorizationQueryParametersError:
    return AuthorizationQueryParametersError(printable(detail), fields=fields)


def malformed_scope(
    detail: str, fields: Mapping[str, str] | None = None
) -> AuthorizationQueryParametersError:
    return malformed_query(f"Error parsing the X-Amz-Credential parameter; {detail}", fields)


def not_signed(names: Sequence[str]) -> AccessDenied:
    return AccessDenied(
        "There were headers present in the request which were not signed",
        fields={"HeadersNotSigned": printable(", ".join(names))},
    )


def no_date() -> AccessDenied:
    return AccessDenied("AWS authentication requires a valid Date or x-amz-date header")


def unsupported() -> NotImplementedS3:
    return NotImplementedS3(
        "The authorization mechanism you have provided is not supported. Please use "
        "AWS4-HMAC-SHA256."
    )
