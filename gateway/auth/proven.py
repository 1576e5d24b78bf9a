"""Requests of clients that have proved themselves before, recognised in few steps. Pure.

What the requests of one client have in common (scope, signed headers, derived key; of a presigned
URL all of the query but its signature) is remembered by the very text it came in, once a signature
over that text has proved the client to be who it says: strangers are not remembered. A request is
recognised only if its signature verifies like any other; what is saved is the reading. Whatever is
wrong or new is not recognised, and is for `sigv4.py` to judge, which has the words for it.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TypeVar

from msgspec import Struct

from gateway.auth.identity import UNSIGNED, Identity, PayloadKind, PayloadSigning
from gateway.auth.request import RequestHead
from gateway.auth.signing import (
    Moment,
    SignedHeaders,
    SigningKey,
    canonical_pairs,
    canonical_path,
    same,
)
from gateway.auth.sigv4_chunks import ChunkSigner
from gateway.auth.sigv4_parse import printable, seconds
from gateway.auth.tenants import Tenant
from gateway.errors import InvalidArgument

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
V4_MARKS = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"})
V2_MARKS = frozenset({"AWSAccessKeyId", "Signature"})
SIGNATURE_LENGTH = 64

_REMEMBERED = 1024
_REMEMBERED_LENGTH = 2048
_REMEMBERED_NAMES = 64
_SIGNATURE_MARK = "&X-Amz-Signature="
_EMPTY_SHA256 = sha256().hexdigest()
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")
_STREAMING: Mapping[str, PayloadKind] = {
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": "signed-chunks",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": "signed-chunks-trailer",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": "unsigned-chunks-trailer",
}

_Name = TypeVar("_Name")
_Kept = TypeVar("_Kept")


class Credential:
    """What a client says it signs with, and the key that checks it.

    `harmless` are header names that a request signed with it may carry, signed or not: those
    covered, and those that have been seen to be none of AWS's. `moment` is the last one proven.
    """

    __slots__ = (
        "_identities", "_names", "covered", "day", "harmless", "key", "moment", "scope",
        "signed_headers", "tenant",
    )  # fmt: skip

    def __init__(
        self, tenant: Tenant, key: SigningKey, day: str, scope: str, signed_headers: str
    ) -> None:
        self.tenant = tenant
        self.key = key
        self.day = day
        self.scope = scope
        self.signed_headers = SignedHeaders(signed_headers)
        self.harmless = self.signed_headers.covered
        self.moment: Moment | None = None
        # Those that many requests share.
        self._identities = {
            UNSIGNED_PAYLOAD: self._identity(UNSIGNED),
            _EMPTY_SHA256: self._identity(PayloadSigning("single", _EMPTY_SHA256)),
        }

    def at(self, timestamp: str) -> Moment | None:
        """The moment of a timestamp; None where it is none, or of another day."""
        if self.moment is not None and self.moment.timestamp == timestamp:
            return self.moment
        requested = seconds(timestamp)
        if requested is None or not timestamp.startswith(self.day):
            return None
        return Moment(self.key, timestamp, requested, self.scope)

    def canonical_request(self, head: RequestHead, path: str, query: str, payload: str) -> str:
        """What a request's signature is about; KeyError where a signed header is missing.

        `path` and `query` are canonical.
        """
        signed = self.signed_headers
        lines = signed.lines(head.fields)
        return f"{head.method}\n{path}\n{query}\n{lines}\n\n{signed.text}\n{payload}"

    def identity(self, declared: str, timestamp: str, signature: str) -> Identity:
        """Who signed so, the payload being `declared`. InvalidArgument where it cannot be that."""
        known = self._identities.get(declared)
        if known is not None:
            return known
        return self._identity(self._payload(declared, timestamp, signature))

    def _identity(self, payload: PayloadSigning) -> Identity:
        return Identity(self.tenant, payload, self.signed_headers.covered)

    def _payload(self, declared: str, timestamp: str, signature: str) -> PayloadSigning:
        if _SHA256_HEX.fullmatch(declared):
            return PayloadSigning("single", declared.lower())
        kind = _STREAMING.get(declared)
        if kind is None:
            raise InvalidArgument(
                f"x-amz-content-sha256 must be UNSIGNED-PAYLOAD, {', '.join(_STREAMING)} or a "
                "valid sha256 value.",
                fields={
                    "ArgumentName": "x-amz-content-sha256",
                    "ArgumentValue": printable(declared),
                },
            )
        if kind == "unsigned-chunks-trailer":
            return PayloadSigning(kind)
        signer = ChunkSigner(self.key, timestamp, self.scope, signature)
        return PayloadSigning(kind, chunks=signer)


class Presigned(Struct, frozen=True):
    """All that presigned URLs of one query have in common. `query` is canonical and without the
    signature; the URL is good until `expires`, in seconds since the epoch."""

    credential: Credential
    moment: Moment
    expires: int
    query: str
    payload: str


class Proven:
    """Remembers what was proven, a bounded number of it, and recognises it.

    `now` gives seconds since the epoch.
    """

    def __init__(self, *, clock_skew_seconds: float, now: Callable[[], float]) -> None:
        self._clock_skew_seconds = clock_skew_seconds
        self._now = now
        self._credentials: dict[str, Credential] = {}
        self._presigned: dict[str, Presigned] = {}

    def credential(self, text: str) -> Credential | None:
        """What was proven of a client by the text its credential came in."""
        return self._credentials.get(text)

    def by_header(self, head: RequestHead, authorization: str) -> Identity | None:
        """Who signed `head` in this Authorization header; None where that is not recognised.

        InvalidArgument where the signature is right and the payload declared wrong.
        """
        credential = self._credentials.get(authorization[:-SIGNATURE_LENGTH])
        fields = head.fields
        if credential is None or not fields.keys() <= credential.harmless:
            return None
        timestamp, payload = fields.get("x-amz-date"), fields.get("x-amz-content-sha256")
        if timestamp is None or payload is None or fields.get("x-amz-security-token"):
            return None
        moment = credential.at(timestamp)
        if moment is None or abs(self._now() - moment.seconds) > self._clock_skew_seconds:
            return None
        query = head.query
        if query:
            pairs = canonical_pairs(query)
            if any(name in V4_MARKS or name in V2_MARKS for name, _ in pairs):
                return None
            query = joined(pairs)
        signature = authorization[-SIGNATURE_LENGTH:]
        if not _signed(head, query, credential, moment, payload, signature):
            return None
        credential.moment = moment
        return credential.identity(payload, timestamp, signature)

    def by_query(self, head: RequestHead) -> Identity | None:
        """Who signed the presigned URL `head`; None where that is not recognised.

        InvalidArgument where the signature is right and the payload declared wrong.
        """
        common, _, signature = head.query.rpartition(_SIGNATURE_MARK)
        known = self._presigned.get(common)
        if known is None:
            return None
        fields, credential, moment = head.fields, known.credential, known.moment
        if not fields.keys() <= credential.harmless or fields.get("x-amz-security-token"):
            return None
        now = self._now()
        if moment.seconds - now > self._clock_skew_seconds or now > known.expires:
            return None
        payload = fields.get("x-amz-content-sha256") or known.payload
        if not _signed(head, known.query, credential, moment, payload, signature):
            return None
        return credential.identity(payload, moment.timestamp, signature)

    def remember(self, text: str, head: RequestHead, credential: Credential) -> None:
        """Learns from a request that was proved to be signed with what `text` says: of an
        Authorization header, all but the signature."""
        if len(credential.harmless) < _REMEMBERED_NAMES:
            credential.harmless = credential.harmless.union(head.fields)
        if len(text) <= _REMEMBERED_LENGTH:
            keep(self._credentials, text, credential)

    def remember_presigned(self, head: RequestHead, signature: str, presigned: Presigned) -> None:
        """Learns from a presigned URL that was proved to be signed so."""
        common, _, last = head.query.rpartition(_SIGNATURE_MARK)
        # Where the signature does not come last, as it does with all clients, it is read anew.
        if last == signature and len(common) <= _REMEMBERED_LENGTH:
            keep(self._presigned, common, presigned)


def joined(pairs: list[tuple[str, str]]) -> str:
    """Canonical parameters as one text."""
    return "&".join([f"{name}={value}" for name, value in pairs])


def left_out(fields: Mapping[str, str], covered: frozenset[str]) -> list[str]:
    """AWS's own headers in a request that are not signed, as all of them must be."""
    return [name for name in fields if name.startswith("x-amz-") and name not in covered]


def _signed(
    head: RequestHead,
    query: str,
    credential: Credential,
    moment: Moment,
    payload: str,
    signature: str,
) -> bool:
    try:
        canonical = credential.canonical_request(head, canonical_path(head.path), query, payload)
    except KeyError:
        return False
    return same(moment.sign(canonical), signature)


def keep(known: dict[_Name, _Kept], name: _Name, kept: _Kept) -> None:
    """Remembers what was proven under a name; where too much is, all else is forgotten."""
    if len(known) >= _REMEMBERED and name not in known:
        known.clear()
    known[name] = kept
