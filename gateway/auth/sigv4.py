"""Who signed a request: AWS Signature Version 4 in the Authorization header or in the query. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

This runs for every request, so what requests of one client have in common (scope, list of signed
headers, derived key) is remembered by the text it came from, but only once a signature has proved
the client to be who it says: strangers cannot fill that memory.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from gateway.auth.request import RequestHead
from gateway.auth.signing import (
    SERVICE,
    TERMINATOR,
    SigningKey,
    canonical_pairs,
    canonical_path,
    canonical_value,
    merged,
    same,
    string_to_sign,
)
from gateway.auth.sigv4_chunks import ChunkSigner
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

PayloadKind = Literal[
    "unsigned", "single", "signed-chunks", "signed-chunks-trailer", "unsigned-chunks-trailer"
]

_REMEMBERED = 1024
_MAX_EXPIRES_SECONDS = 604_800
_UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_STREAMING: Mapping[str, PayloadKind] = {
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": "signed-chunks",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": "signed-chunks-trailer",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": "unsigned-chunks-trailer",
}
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")
_V4_MARKS = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"})
_V2_MARKS = frozenset({"AWSAccessKeyId", "Signature"})
_QUERY_PARTS = _V4_MARKS | {"X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Expires"}


class PayloadSigning(Struct, frozen=True):
    """How the body is vouched for. `sha256_hex` with "single", `chunks` with signed chunks."""

    kind: PayloadKind
    sha256_hex: str | None = None
    chunks: ChunkSigner | None = None


class Identity(Struct, frozen=True):
    """Who asks (`tenant` None is the anonymous) and how the body is vouched for."""

    tenant: Tenant | None
    payload: PayloadSigning


UNSIGNED = PayloadSigning("unsigned")
ANONYMOUS = Identity(None, UNSIGNED)


class _Credential(Struct, frozen=True):
    tenant: Tenant
    key: SigningKey
    day: str
    scope: str
    signed_headers: str
    names: tuple[str, ...]
    covered: frozenset[str]


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
        self._proven: dict[str, _Credential] = {}

    def authenticate(self, head: RequestHead) -> Identity:
        """The identity that signed `head`; a request without any signature is anonymous.

        Raises the S3Error that AWS answers: AccessDenied, AuthorizationHeaderMalformed,
        AuthorizationQueryParametersError, InvalidAccessKeyId, InvalidArgument, InvalidRequest,
        InvalidToken, RequestTimeTooSkewed, SignatureDoesNotMatch; and NotImplemented where the
        mechanism is another.
        """
        headers = merged(head.headers)
        pairs = canonical_pairs(head.query) if head.query else []
        authorization = headers.get("authorization")
        names = {name for name, _ in pairs}
        by_query = not names.isdisjoint(_V4_MARKS)
        if authorization is not None:
            if by_query or names >= _V2_MARKS:
                raise InvalidArgument(
                    "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, "
                    "Signature query string parameter or the Authorization header should be "
                    "specified",
                    fields={"ArgumentName": "Authorization"},
                )
            return self._by_header(head, headers, pairs, authorization)
        if by_query:
            return self._by_query(head, headers, pairs)
        if names >= _V2_MARKS:
            raise unsupported()
        return ANONYMOUS

    def _by_header(
        self,
        head: RequestHead,
        headers: Mapping[str, str],
        pairs: Iterable[tuple[str, str]],
        authorization: str,
    ) -> Identity:
        # All but the signature is the same in every request of one client and day.
        proven = self._proven.get(authorization[:-64])
        if proven is not None:
            credential, signature = proven, authorization[-64:]
        else:
            scope, signed_headers, signature = parse_authorization(authorization)
            credential = self._credential(scope, signed_headers, malformed_header)
        if headers.get("x-amz-security-token"):
            raise InvalidToken
        timestamp = header_timestamp(headers)
        self._check_clock(timestamp)
        if not timestamp.startswith(credential.day):
            raise malformed_header(days_differ(credential.day, timestamp))
        payload = headers.get("x-amz-content-sha256")
        if payload is None:
            raise InvalidRequest("Missing required header for this request: x-amz-content-sha256")
        _check_covered(headers, credential.covered, exempt="")
        query = "&".join([f"{name}={value}" for name, value in pairs])
        _verify(head, headers, query, credential, timestamp, payload, signature)
        if proven is None and authorization.endswith(f"Signature={signature}"):
            self._remember(authorization[:-64], credential)
        return Identity(credential.tenant, _payload(payload, credential, timestamp, signature))

    def _by_query(
        self, head: RequestHead, headers: Mapping[str, str], pairs: Sequence[tuple[str, str]]
    ) -> Identity:
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
        proven = self._proven.get(text)
        credential = proven or self._credential(
            unquote(given["X-Amz-Credential"]),
            unquote(given["X-Amz-SignedHeaders"]),
            malformed_scope,
        )
        if given.get("X-Amz-Security-Token") or headers.get("x-amz-security-token"):
            raise InvalidToken
        timestamp = given["X-Amz-Date"]
        self._check_expiry(timestamp, given["X-Amz-Expires"])
        if not timestamp.startswith(credential.day):
            raise malformed_query(days_differ(credential.day, timestamp))
        # Covered whether it is a signed header or not: it is the canonical request's last line.
        payload = headers.get("x-amz-content-sha256") or unquote(
            given.get("X-Amz-Content-Sha256", _UNSIGNED_PAYLOAD)
        )
        _check_covered(headers, credential.covered, exempt="x-amz-content-sha256")
        signature = given["X-Amz-Signature"]
        query = "&".join([f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature"])
        _verify(head, headers, query, credential, timestamp, payload, signature)
        if proven is None:
            self._remember(text, credential)
        return Identity(credential.tenant, _payload(payload, credential, timestamp, signature))

    def _credential(
        self, text: str, signed_headers: str, malformed: Callable[..., S3Error]
    ) -> _Credential:
        access_key, day = parse_scope(text, self._region, malformed)
        tenant = self._tenants.get(access_key)
        if tenant is None:
            raise InvalidAccessKeyId(fields={"AWSAccessKeyId": printable(access_key)})
        names = tuple(signed_headers.split(";"))
        if "host" not in names:
            raise not_signed(["host"])
        return _Credential(
            tenant=tenant,
            key=self._key(tenant, day),
            day=day,
            scope=f"{day}/{self._region}/{SERVICE}/{TERMINATOR}",
            signed_headers=signed_headers,
            names=names,
            covered=frozenset(names),
        )

    def _key(self, tenant: Tenant, day: str) -> SigningKey:
        known = self._keys.get((tenant.access_key, day))
        if known is not None:
            return known
        key = SigningKey(tenant.secret, day, self._region)
        if len(self._keys) >= _REMEMBERED:
            self._keys.clear()
        self._keys[tenant.access_key, day] = key
        return key

    def _remember(self, text: str, credential: _Credential) -> None:
        if len(self._proven) >= _REMEMBERED:
            self._proven.clear()
        self._proven[text] = credential

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

    def _check_expiry(self, timestamp: str, expires: str) -> None:
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


def _check_covered(headers: Mapping[str, str], covered: frozenset[str], *, exempt: str) -> None:
    left_out = [
        name
        for name in headers
        if name.startswith("x-amz-") and name not in covered and name != exempt
    ]
    if left_out:
        raise not_signed(left_out)


def _verify(
    head: RequestHead,
    headers: Mapping[str, str],
    query: str,
    credential: _Credential,
    timestamp: str,
    payload: str,
    signature: str,
) -> None:
    lines = []
    for name in credential.names:
        value = headers.get(name)
        if value is None:
            raise SignatureDoesNotMatch(
                f"The signed header {name!r} is not in the request.",
                fields={"AWSAccessKeyId": credential.tenant.access_key},
            )
        lines.append(f"{name}:{canonical_value(value)}")
    path = canonical_path(head.path)
    canonical_request = "\n".join(
        (head.method, path, query, *lines, "", credential.signed_headers, payload)
    )
    message = string_to_sign(timestamp, credential.scope, canonical_request)
    if not same(credential.key.sign(message), signature):
        raise SignatureDoesNotMatch(
            fields={
                "AWSAccessKeyId": credential.tenant.access_key,
                "StringToSign": printable(message),
                "CanonicalRequest": printable(canonical_request),
            }
        )


def _payload(
    declared: str, credential: _Credential, timestamp: str, signature: str
) -> PayloadSigning:
    if declared == _UNSIGNED_PAYLOAD:
        return UNSIGNED
    if _SHA256_HEX.fullmatch(declared):
        return PayloadSigning("single", declared.lower())
    kind = _STREAMING.get(declared)
    if kind is None:
        raise InvalidArgument(
            f"x-amz-content-sha256 must be UNSIGNED-PAYLOAD, {', '.join(_STREAMING)} or a valid "
            "sha256 value.",
            fields={"ArgumentName": "x-amz-content-sha256", "ArgumentValue": printable(declared)},
        )
    if kind == "unsigned-chunks-trailer":
        return PayloadSigning(kind)
    signer = ChunkSigner(credential.key, timestamp, credential.scope, signature)
    return PayloadSigning(kind, chunks=signer)
