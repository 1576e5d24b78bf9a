"""What an S3 origin's failure means to the caller. Pure, but for the log line on our own faults.

Three kinds: the origin's own S3 error about the request, passed on; the origin not answering or
answering 5xx, which is TierUnavailable and never a 404; and an error about *our* credentials or
configuration, which must not come out as if the client's were wrong.

Codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from collections.abc import Mapping

import aiohttp
import structlog
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from lxml import etree
from msgspec import Struct

from gateway.errors import (
    AccessDenied,
    FeedrackError,
    InvalidArgument,
    InvalidRange,
    InvalidRequest,
    MethodNotAllowed,
    NoSuchBucket,
    NoSuchKey,
    NoSuchVersion,
    NotModified,
    PreconditionFailed,
    S3Error,
    TierUnavailable,
    from_code,
)

# Codes that speak of the credentials the request was signed with: ours, not the client's.
_CREDENTIALS = frozenset({
    "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId",
    "InvalidSecurity", "InvalidToken", "MissingAuthenticationToken", "NotSignedUp",
    "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired",
    "UnrecognizedClientException",
})  # fmt: skip
_MOVED = frozenset({"PermanentRedirect", "Redirect", "TemporaryRedirect"})
_BUSY = frozenset({
    "BandwidthLimitExceeded", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequestsException",
})  # fmt: skip
_CREDENTIALS_RETRY_SECONDS = 30
_LONGEST_RETRY_SECONDS = 300
# Answer headers that belong to an error as much as to a success (a delete marker's).
_ERROR_HEADERS = ("x-amz-delete-marker", "x-amz-version-id", "last-modified", "allow")

UNREACHABLE = (BotoCoreError, aiohttp.ClientError, TimeoutError, OSError)
"""What a broken, stalled or refused connection raises, while asking or while reading on."""


class Asked(Struct, frozen=True):
    """What the origin was asked: enough to give a name to an answer that has none."""

    origin: str
    operation: str
    bucket: str = ""
    key: str = ""
    version_id: str | None = None


def from_answer(
    asked: Asked, status: int, code: str, message: str, headers: Mapping[str, str]
) -> FeedrackError:
    """The error that stands for an origin's error answer. `headers` have lower-case names."""
    if code in _CREDENTIALS:
        return _not_ours_to_fix(asked, f"refuses this gateway's credentials: {code}: {message}")
    if code in _MOVED or (300 <= status < 400 and status != 304):
        region = headers.get("x-amz-bucket-region", "another region")
        return _not_ours_to_fix(asked, f"says that bucket {asked.bucket} is in {region}")
    if code in _BUSY or status == 429 or (status >= 500 and status != 501):
        return TierUnavailable(
            f"origin {asked.origin} answered {status} {code} to {asked.operation}: {message}",
            retry_after_seconds=_retry_after(headers),
        )
    error = _without_body(asked, status) if not code or code.isdigit() else None
    if error is None:
        error = from_code(code or "InternalError", status, message)
    if isinstance(error, NoSuchKey):
        error.fields = {"Key": asked.key or ""}
    error.headers = {name: headers[name] for name in _ERROR_HEADERS if name in headers}
    return error


def from_exception(asked: Asked, error: Exception) -> FeedrackError:
    """The error that stands for what botocore or the connection raised."""
    match error:
        case ClientError():
            metadata = error.response.get("ResponseMetadata", {})
            said = error.response.get("Error", {})
            return from_answer(
                asked,
                metadata.get("HTTPStatusCode", 500),
                said.get("Code", ""),
                said.get("Message", ""),
                metadata.get("HTTPHeaders", {}),
            )
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return _not_ours_to_fix(asked, f"has no usable credentials here: {error}")
        case ParamValidationError():
            return InvalidArgument(f"The origin's client refuses the request: {error}")
        case _:
            return unreachable(asked, error)


def code_of(body: bytes) -> tuple[str, str]:
    """Code and message of an S3 error document; empty where it is none."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True)
    try:
        root = etree.fromstring(body, parser) if body.strip() else None
    except (etree.XMLSyntaxError, ValueError):
        return "", ""
    if root is None:
        return "", ""
    found = {etree.QName(child).localname: child.text or "" for child in root.iterchildren("{*}*")}
    return found.get("Code", ""), found.get("Message", "")


def unreachable(asked: Asked, error: Exception | str) -> TierUnavailable:
    """An origin that could not be asked, or whose answer broke off."""
    what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return TierUnavailable(f"origin {asked.origin} failed at {asked.operation}: {what}")


def _without_body(asked: Asked, status: int) -> S3Error | None:
    """A HEAD's error has no body and therefore no code: the status and the question give it."""
    match status:
        case 304:
            return NotModified()
        case 400:
            return InvalidRequest(f"The origin refused {asked.operation} as a bad request.")
        case 403:
            return AccessDenied()
        case 404 if not asked.key:
            return NoSuchBucket()
        case 404:
            return NoSuchKey() if asked.version_id is None else NoSuchVersion()
        case 405:
            return MethodNotAllowed()
        case 412:
            return PreconditionFailed()
        case 416:
            return InvalidRange()
        case _:
            return None


def _not_ours_to_fix(asked: Asked, what: str) -> TierUnavailable:
    """A fault of the operator's, not of the client's: loud here, a 503 there."""
    structlog.get_logger().error(
        "origin_misconfigured", origin=asked.origin, operation=asked.operation, what=what
    )
    return TierUnavailable(
        f"origin {asked.origin} {what}", retry_after_seconds=_CREDENTIALS_RETRY_SECONDS
    )


def _retry_after(headers: Mapping[str, str]) -> int:
    value = headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return max(1, min(int(value), _LONGEST_RETRY_SECONDS))
    return 1
