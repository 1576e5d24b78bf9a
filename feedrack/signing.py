"""Signature Version 4 in the `Authorization` header. Pure, but for a signing key kept a day.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from feedrack.profile import Credentials

Query = tuple[tuple[str, str], ...]

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


def encode_query(query: Query) -> str:
    """A query as it is sent and signed: encoded, sorted."""
    pairs = [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


class Signer:
    """Signs requests to one host in one region, with whatever credentials hold at the time."""

    def __init__(
        self,
        host_header: str,
        region: str,
        credentials: Callable[[], Credentials] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host_header = host_header
        self._region = region
        self._credentials = credentials
        self._clock = clock
        self._known: tuple[str, str, bytes] = ("", "", b"")

    def headers(
        self, method: str, path: str, query: str, headers: Mapping[str, str], sha256: str
    ) -> dict[str, str]:
        """All headers to send; those that begin with `x-` are signed. Unsigned without credentials.

        `path` and `query` are encoded, `headers` in lower case and without host."""
        sent = {"host": self._host_header, **headers}
        if self._credentials is None:
            return sent
        access_key, secret_key, token = self._credentials()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        scope = f"{moment[:8]}/{self._region}/s3/aws4_request"
        sent["x-amz-content-sha256"] = sha256
        sent["x-amz-date"] = moment
        if token:
            sent["x-amz-security-token"] = token
        names = sorted(name for name in sent if name == "host" or name.startswith("x-"))
        lines = "".join(f"{name}:{' '.join(sent[name].split())}\n" for name in names)
        signed = ";".join(names)
        request = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{sha256}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        signature = hmac.digest(self._key(secret_key, moment[:8]), text.encode(), "sha256").hex()
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature}"
        )
        return sent

    def _key(self, secret_key: str, day: str) -> bytes:
        known_secret, known_day, key = self._known
        if (known_secret, known_day) != (secret_key, day):
            key = f"AWS4{secret_key}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._known = (secret_key, day, key)
        return key
