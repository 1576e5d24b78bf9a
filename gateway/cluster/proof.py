"""How nodes prove themselves to each other: HMAC-SHA256 with the cluster's secret. Pure.

    x-feedrack-node           who asks, or answers
    x-feedrack-server-nonce   which process of the asked node is meant; in an answer, its nonce now
    x-feedrack-client-nonce   names the request, once
    x-feedrack-signature      over all of the head that matters

No clocks are compared. A request is good for one process of one node and for the time of two of its
nonces, and only once: what is heard on the wire cannot be said again. Whoever does not know the
nonce yet is told it, and signs again. An answer is signed over the request's signature, so that it
answers this one and no other.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from itertools import count
from typing import Literal

from gateway.config import Secret

SIGNATURE = "x-feedrack-signature"
NODE = "x-feedrack-node"
SERVER_NONCE = "x-feedrack-server-nonce"
CLIENT_NONCE = "x-feedrack-client-nonce"
# Said in place of a server's nonce that is not known yet.
UNKNOWN_NONCE = "-"

_OURS = "x-feedrack-"
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_NONCE = re.compile(r"[0-9a-f]{1,64}\Z")
# A nonce is renewed after so many seconds, or requests: their names are remembered until it goes.
_NONCE_SECONDS = 60.0
_NONCE_USES = 65_536

Verdict = Literal["good", "stale", "bad"]


class Prover:
    """Signs and checks with one secret, and never shows it."""

    def __init__(self, secret: Secret) -> None:
        self._keyed = hmac.new(secret.reveal().encode(), digestmod=sha256)
        self._name = secrets.token_hex(8)
        self._numbers = count(1)

    def signed_request(
        self, method: str, target: str, headers: Mapping[str, str], *, node: str, server_nonce: str
    ) -> dict[str, str]:
        """The headers of a request with those that prove it. `target` is path and query."""
        proven = {
            **headers,
            NODE: node,
            SERVER_NONCE: server_nonce,
            CLIENT_NONCE: f"{self._name}{next(self._numbers):016x}",
        }
        proven[SIGNATURE] = self._over(_request(method, target, proven))
        return proven

    def signs_request(self, method: str, target: str, headers: Mapping[str, str]) -> bool:
        """Whether a request's signature is right; of its nonces nothing is said."""
        return self._is(headers.get(SIGNATURE, ""), _request(method, target, headers))

    def signed_answer(
        self, asked: str, status: int, length_bytes: int, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """An answer's headers with the one that proves it. `asked`: the request's signature."""
        said = _answer(asked, status, length_bytes, headers)
        return {**headers, SIGNATURE: self._over(said)}

    def signs_answer(
        self, asked: str, status: int, length_bytes: int, headers: Mapping[str, str]
    ) -> bool:
        """Whether an answer's signature is right."""
        said = _answer(asked, status, length_bytes, headers)
        return self._is(headers.get(SIGNATURE, ""), said)

    def _over(self, lines: Iterable[str]) -> str:
        keyed = self._keyed.copy()
        keyed.update("\n".join(lines).encode("utf-8", "surrogatepass"))
        return keyed.hexdigest()

    def _is(self, signature: str, lines: Iterable[str]) -> bool:
        if _HEX.match(signature) is None:
            return False
        return hmac.compare_digest(signature, self._over(lines))


class Verifier:
    """What a node's port asks of each request. `now` is a monotonic clock in seconds."""

    def __init__(
        self,
        prover: Prover,
        *,
        now: Callable[[], float],
        nonce_seconds: float = _NONCE_SECONDS,
        nonce_uses: int = _NONCE_USES,
    ) -> None:
        self._prover = prover
        self._now = now
        self._nonce_seconds = nonce_seconds
        self._nonce_uses = nonce_uses
        # The current nonce and the one before, with the requests that each was good for.
        self._used: dict[str, set[str]] = {}
        self.nonce = ""
        self._since = 0.0
        self._renew()

    def verify(self, method: str, target: str, headers: Mapping[str, str]) -> Verdict:
        """good: act on it. stale: whoever asks has the secret, but does not know the nonce, or has
        asked this before. bad: anybody."""
        if not self._prover.signs_request(method, target, headers):
            return "bad"
        if self._now() - self._since >= self._nonce_seconds:
            self._renew()
        used = self._used.get(headers.get(SERVER_NONCE, ""))
        name = headers.get(CLIENT_NONCE, "")
        if _NONCE.match(name) is None:
            return "bad"
        if used is None or name in used:
            return "stale"
        used.add(name)
        if len(used) >= self._nonce_uses:
            self._renew()
        return "good"

    def _renew(self) -> None:
        before = self._used.get(self.nonce)
        kept = {} if before is None else {self.nonce: before}
        self.nonce = secrets.token_hex(16)
        self._used = {**kept, self.nonce: set()}
        self._since = self._now()


def proven_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a request that its proof speaks for; of others nobody knows who wrote them. The
    proof itself is nobody's to see."""
    return {
        name: value
        for name, value in headers.items()
        if name.startswith(_OURS) and name != SIGNATURE
    }


def is_nonce(value: str) -> bool:
    """Whether a server may have said that."""
    return _NONCE.match(value) is not None


def _request(method: str, target: str, headers: Mapping[str, str]) -> Iterable[str]:
    return ("feedrack request 1", method, target, *_lines(headers))


def _answer(
    asked: str, status: int, length_bytes: int, headers: Mapping[str, str]
) -> Iterable[str]:
    return ("feedrack answer 1", asked, str(status), str(length_bytes), *_lines(headers))


def _lines(headers: Mapping[str, str]) -> list[str]:
    # Lengths in front, so that no value can pass for two headers.
    return sorted(
        f"{name}:{len(value)}:{value}"
        for name, value in headers.items()
        if name.startswith(_OURS) and name != SIGNATURE
    )
