"""Who signed a request: AWS Signature Version 4 in the Authorization header or in the query. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

What was proven before is recognised in `proven.py`; everything else is read here, step by step,
with AWS's error for each that fails.
"""

import time
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from gateway.auth.identity import ANONYMOUS, Identity
from gateway.auth.proven import (
    SIGNATURE_LENGTH,
    UNSIGNED_PAYLOAD,
    V2_MARKS,
    V4_MARKS,
    Credential,
    Presigned,
    Proven,
    joined,
    keep,
    left_out,
)
from gateway.auth.request import RequestHead
from gateway.auth.signing import (
    SERVICE,
    TERMINATOR,
    Moment,
    SigningKey,
    canonical_pairs,
    canonical_path,
    same,
    string_to_sign,
)
from gateway.auth.sigv4_parse import (
    check_algorithm,
    days_differ,
    header_timestamp,
    iso,
    malformed_header,
    malformed_query,
    malformed_scope,
    no_date,
    not_signed,
    parse_authorization,
    parse_scope,
    printable,
    seconds,
    unsupported,
)
from gateway.auth.tenants import Tenant
from gateway.errors import (
    AccessDenied,
    InvalidAccessKeyId,
    InvalidArgument,
    InvalidRequest,
    InvalidToken,
    RequestTimeTooSkewed,
    S3Error,
    SignatureDoesNotMatch,
)

_MAX_EXPIRES_SECONDS = 604_800
_QUERY_PARTS = V4_MARKS | {"X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Expires"}


class Authenticator:
    """Finds out who signed a request. `now` gives seconds since the epoch."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        *,
        region: str,
        clock_skew_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tenants = {tenant.access_key: tenant for tenant in tenants}
        self._region = region
        self._clock_skew_seconds = clock_skew_seconds
        self._now = now
        self._keys: dict[tuple[str, str], SigningKey] = {}
        self._proven = Proven(clock_skew_seconds=clock_skew_seconds, now=now)

    def authenticate(self, head: RequestHead) -> Identity:
        """The identity that signed `head`; a request without any signature is anonymous.

        Raises the S3Error that AWS answers: AccessDenied, AuthorizationHeaderMalformed,
        AuthorizationQueryParametersError, InvalidAccessKeyId, InvalidArgument, InvalidRequest,
        InvalidToken, RequestTimeTooSkewed, SignatureDoesNotMatch; and NotImplemented where the
        mechanism is another.
        """
        authorization = head.fields.get("authorization")
        if authorization is not None:
            recognised = self._proven.by_header(head, authorization)
        elif head.query:
            recognised = self._proven.by_query(head)
        else:
            return ANONYMOUS
        return self._examine(head, authorization) if recognised is None else recognised

    def _examine(self, head: RequestHead, authorization: str | None) -> Identity:
        pairs = canonical_pairs(head.query)
        names = {name for name, _ in pairs}
        by_query = not names.isdisjoint(V4_MARKS)
        if authorization is not None:
            if by_query or names >= V2_MARKS:
                raise InvalidArgument(
                    "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, "
                    "Signature query string parameter or the Authorization header should be "
                    "specified",
                    fields={"ArgumentName": "Authorization"},
                )
            return self._by_header(head, joined(pairs), authorization)
        if by_query:
            return self._by_query(head, pairs)
        if names >= V2_MARKS:
            raise unsupported()
        return ANONYMOUS

    def _by_header(self, head: RequestHead, query: str, authorization: str) -> Identity:
        headers = head.fields
        # All but the signature is the same in every request of one client and day.
        text = authorization[:-SIGNATURE_LENGTH]
        credential = self._proven.credential(text)
        if credential is not None:
            signature = authorization[-SIGNATURE_LENGTH:]
        else:
            scope, signed_headers, signature = parse_authorization(authorization)
            credential = self._credential(scope, signed_headers, malformed_header)
        if headers.get("x-amz-security-token"):
            raise InvalidToken
        timestamp = header_timestamp(headers)
        self._check_clock(timestamp)
        moment = credential.at(timestamp)
        if moment is None:
            raise malformed_header(days_differ(credential.day, timestamp))
        payload = headers.get("x-amz-content-sha256")
        if payload is None:
            raise InvalidRequest("Missing required header for this request: x-amz-content-sha256")
        unsigned = left_out(headers, credential.signed_headers.covered)
        if unsigned:
            raise not_signed(unsigned)
        _verify(head, query, credential, moment, payload, signature)
        self._remember_key(credential)
        if authorization == f"{text}{signature}" and text.endswith("Signature="):
            self._proven.remember(text, head, credential)
        return credential.identity(payload, timestamp, signature)

    def _by_query(self, head: RequestHead, pairs: Sequence[tuple[str, str]]) -> Identity:
        headers = head.fields
        given = {name: value for name, value in pairs if name.startswith("X-Amz-")}
        if not given.keys() >= _QUERY_PARTS:
            raise malformed_query(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, "
                "X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and "
                "X-Amz-Expires parameters."
            )
        if len([name for name, _ in pairs if name in _QUERY_PARTS]) > len(_QUERY_PARTS):
            raise malformed_query("A query parameter of the signature is given more than once.")
        check_algorithm(given["X-Amz-Algorithm"])
        text = f"{given['X-Amz-Credential']}\n{given['X-Amz-SignedHeaders']}"
        credential = self._proven.credential(text) or self._credential(
            unquote(given["X-Amz-Credential"]),
            unquote(given["X-Amz-SignedHeaders"]),
            malformed_scope,
        )
        if given.get("X-Amz-Security-Token") or headers.get("x-amz-security-token"):
            raise InvalidToken
        timestamp = given["X-Amz-Date"]
        expires = self._check_expiry(timestamp, given["X-Amz-Expires"])
        moment = credential.at(timestamp)
        if moment is None:
            raise malformed_query(days_differ(credential.day, timestamp))
        unsigned = left_out(headers, credential.signed_headers.covered | {"x-amz-content-sha256"})
        if unsigned:
            raise not_signed(unsigned)
        # Covered whether it is a signed header or not: it is the canonical request's last line.
        declared = unquote(given.get("X-Amz-Content-Sha256", UNSIGNED_PAYLOAD))
        payload = headers.get("x-amz-content-sha256") or declared
        signature = given["X-Amz-Signature"]
        query = joined([(name, value) for name, value in pairs if name != "X-Amz-Signature"])
        _verify(head, query, credential, moment, payload, signature)
        self._remember_key(credential)
        self._proven.remember(text, head, credential)
        self._proven.remember_presigned(
            head, signature, Presigned(credential, moment, expires, query, declared)
        )
        return credential.identity(payload, timestamp, signature)

    def _credential(
        self, text: str, signed_headers: str, malformed: Callable[..., S3Error]
    ) -> Credential:
        access_key, day = parse_scope(text, self._region, malformed)
        tenant = self._tenants.get(access_key)
        if tenant is None:
            raise InvalidAccessKeyId(fields={"AWSAccessKeyId": printable(access_key)})
        key = self._keys.get((access_key, day)) or SigningKey(tenant.secret, day, self._region)
        scope = f"{day}/{self._region}/{SERVICE}/{TERMINATOR}"
        credential = Credential(tenant, key, day, scope, signed_headers)
        if "host" not in credential.signed_headers.covered:
            raise not_signed(["host"])
        return credential

    def _remember_key(self, credential: Credential) -> None:
        keep(self._keys, (credential.tenant.access_key, credential.day), credential.key)

    def _check_clock(self, timestamp: str) -> None:
        requested = seconds(timestamp)
        if requested is None:
            raise no_date()
        now = self._now()
        if abs(now - requested) > self._clock_skew_seconds:
            raise RequestTimeTooSkewed(
                fields={
                    "RequestTime": timestamp,
                    "ServerTime": iso(now),
                    "MaxAllowedSkewMilliseconds": str(int(self._clock_skew_seconds * 1000)),
                }
            )

    def _check_expiry(self, timestamp: str, expires: str) -> int:
        """When the URL ends, in seconds since the epoch."""
        requested = seconds(timestamp)
        if requested is None:
            raise malformed_query(
                "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""
            )
        digits = expires.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            raise malformed_query("X-Amz-Expires should be a number")
        lifetime_seconds = int(expires)
        if lifetime_seconds < 0:
            raise malformed_query("X-Amz-Expires must be non-negative")
        if not 0 < lifetime_seconds <= _MAX_EXPIRES_SECONDS:
            raise malformed_query(
                "X-Amz-Expires must be at least 1 and at most 604800 seconds (a week)"
            )
        now = self._now()
        if requested - now > self._clock_skew_seconds:
            raise AccessDenied("Request is not valid yet")
        if now > requested + lifetime_seconds:
            raise AccessDenied(
                "Request has expired",
                fields={
                    "X-Amz-Expires": expires,
                    "Expires": iso(requested + lifetime_seconds),
                    "ServerTime": iso(now),
                },
            )
        return requested + lifetime_seconds


def _verify(
    head: RequestHead,
    query: str,
    credential: Credential,
    moment: Moment,
    payload: str,
    signature: str,
) -> None:
    access_key = credential.tenant.access_key
    path = canonical_path(head.path)
    try:
        canonical_request = credential.canonical_request(head, path, query, payload)
    except KeyError as missing:
        raise SignatureDoesNotMatch(
            f"The signed header {missing.args[0]!r} is not in the request.",
            fields={"AWSAccessKeyId": access_key},
        ) from missing
    if not same(moment.sign(canonical_request), signature):
        message = string_to_sign(moment.timestamp, credential.scope, canonical_request)
        raise SignatureDoesNotMatch(
            fields={
                "AWSAccessKeyId": access_key,
                "StringToSign": printable(message),
                "CanonicalRequest": printable(canonical_request),
            }
        )
