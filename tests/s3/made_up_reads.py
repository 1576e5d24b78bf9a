"""Reads of all kinds, made up at random and signed as clients sign: right, wrong and odd."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from unittest.mock import patch
from urllib.parse import quote

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.compat import get_current_datetime
from botocore.credentials import Credentials
from msgspec import Struct

_REGION = "us-east-1"
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Stored(Struct, frozen=True):
    """An object to ask for. `versions`: ids it can be asked for by."""

    bucket: str
    key: str
    size_bytes: int
    etag: str
    last_modified: str
    versions: Sequence[str] = ()


class Signer(Struct, frozen=True):
    """Signs at a time of its own. `expires_seconds`: in the query; None: in a header."""

    access_key: str
    secret_key: str
    ahead: timedelta = timedelta()
    expires_seconds: int | None = None

    def sign(self, method: str, url: str, headers: Mapping[str, str], payload: str) -> AWSRequest:
        """The request with its signature, wherever it has it."""
        request = AWSRequest(method, url, headers=dict(headers))
        credentials = Credentials(self.access_key, self.secret_key)
        now: datetime = get_current_datetime() + self.ahead
        with patch("botocore.auth.get_current_datetime", lambda: now):
            if self.expires_seconds is None:
                request.headers["x-amz-content-sha256"] = payload
                S3SigV4Auth(credentials, "s3", _REGION).add_auth(request)
            else:
                S3SigV4QueryAuth(credentials, "s3", _REGION, expires=self.expires_seconds).add_auth(
                    request
                )
        return request


class MadeUpReads:
    """Draws reads from `chance`, one after the other. The first signer is most often the one."""

    def __init__(
        self,
        chance: random.Random,
        objects: Sequence[Stored],
        signers: Sequence[Signer],
        host: str,
    ) -> None:
        self._chance = chance
        self._objects = objects
        self._signers = signers
        self._host = host

    def draw(self) -> tuple[str, bytes]:
        """A method and the bytes of its request."""
        chance = self._chance
        meant = chance.choice(self._objects)
        method = chance.choices(["GET", "HEAD"], [4, 1])[0]
        query = self._query(meant)
        headers = self._headers(meant)
        target = self._path(meant) + ("?" + "&".join(query) if query else "")
        if chance.random() < 0.07:
            return method, self._written(method, target, headers)
        weights = [40, *([1] * (len(self._signers) - 1))]
        signer = chance.choices(self._signers, weights)[0]
        unsigned: dict[str, str] = {}
        if chance.random() < 0.2:
            headers, unsigned = unsigned, headers
        payload = chance.choice([_EMPTY, "UNSIGNED-PAYLOAD"])
        signed = signer.sign(method, f"http://{self._host}{target}", headers, payload)
        target = str(signed.url).removeprefix(f"http://{self._host}")
        return method, self._written(method, target, {**dict(signed.headers.items()), **unsigned})

    def _path(self, meant: Stored) -> str:
        chance = self._chance
        bucket, key = meant.bucket, meant.key
        if chance.random() < 0.06:
            bucket, key = chance.choice(
                [(bucket, "missing"), ("absent", key), (bucket, ""), ("", ""), (bucket, key + "/")]
            )
        path = quote(key, safe=chance.choice(["/", "/", "/~", "/+:@$,;=!*'()"]))
        odd = chance.random()
        if odd < 0.05:
            path = path.replace("%2", "%2").lower()
        elif odd < 0.1 and path:
            # What needs no escaping may be escaped all the same.
            path = f"%{ord(path[0]):02X}{path[1:]}" if path[0].isalnum() else path
        elif odd < 0.13:
            path += chance.choice(["%", "%zz", "%00", "%ff", "//", "/..", "%2F", "\\"])
        return f"/{bucket}/{path}"

    def _query(self, meant: Stored) -> list[str]:
        chance = self._chance
        found = []
        if chance.random() < 0.2:
            found.append(chance.choice(_OVERRIDES))
        if chance.random() < 0.1:
            found.append(f"versionId={chance.choice([*meant.versions, '', 'odd'])}")
        if chance.random() < 0.05:
            found.append(f"partNumber={chance.choice(['1', '2', '0', '10001', 'x', '', '+1'])}")
        if chance.random() < 0.08:
            found.append(chance.choice(_PARAMETERS))
        return found

    def _headers(self, meant: Stored) -> dict[str, str]:
        chance = self._chance
        headers: dict[str, str] = {}
        if chance.random() < 0.3:
            headers["Range"] = chance.choice(_ranges(meant.size_bytes))
        if chance.random() < 0.2:
            name = chance.choice(["If-Match", "If-None-Match"])
            headers[name] = chance.choice(
                [
                    f'"{meant.etag}"',
                    meant.etag,
                    '"other"',
                    "*",
                    f'"other", "{meant.etag}"',
                    "",
                    "W/",
                ]
            )
        if chance.random() < 0.15:
            name = chance.choice(["If-Modified-Since", "If-Unmodified-Since", "If-Range"])
            dates = [meant.last_modified, _LONG_AGO, _FAR_AHEAD, "odd", "2020-01-01"]
            headers[name] = chance.choice(dates)
        if chance.random() < 0.12:
            headers["x-amz-checksum-mode"] = chance.choice(["ENABLED", "enabled", "odd"])
        headers |= {name: value for name, value in _OTHERS.items() if chance.random() < 0.03}
        if chance.random() < 0.02:
            headers |= _CUSTOMER_KEY
        return headers

    def _written(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        """As bytes, in one of the ways in which clients write the same request."""
        chance = self._chance
        lines = [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Host: {self._host}")
        if chance.random() < 0.3:
            lines.append("Accept-Encoding: identity")
        if chance.random() < 0.3:
            lines.append(chance.choice(["Connection: keep-alive", "connection: Keep-Alive"]))
        if chance.random() < 0.2:
            chance.shuffle(lines)
        if chance.random() < 0.1:
            lines = [f"{name.lower()}:  {value}" for name, _, value in _parted(lines)]
        elif chance.random() < 0.05:
            lines = [f"{name}:{value}" for name, _, value in _parted(lines)]
        if chance.random() < 0.04:
            lines.append(chance.choice(["Content-Length: 0", "Connection: close", "TE: trailers"]))
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode()


def _parted(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    return [line.partition(": ") for line in lines]


def _ranges(size: int) -> list[str]:
    chunk = 1024**2
    starts = [0, 1, size // 2, size - 1, size, size + 1, chunk - 10, chunk, 2 * chunk - 1]
    return [
        *(f"bytes={start}-" for start in starts if start >= 0),
        *(f"bytes={start}-{start + 20}" for start in starts if start >= 0),
        "bytes=0-0", "bytes=-1", f"bytes=-{size}", f"bytes=-{size + 9}", "bytes=-0", "bytes=5-4",
        "bytes=a-b", "bytes=0-1,3-4", "items=0-1", "bytes = 0-1", "BYTES=0-1", "bytes=", "odd",
        f"bytes=0-{10**30}", f"bytes={10**30}-", f"bytes={chunk - 9}-{chunk + 9}", "bytes=0-1 ",
    ]  # fmt: skip


_OVERRIDES = [
    "response-content-type=text%2Fx-odd",
    "response-content-type=",
    "response-content-disposition=attachment%3B%20filename%3D%22%C3%BC%22",
    "response-cache-control=no-store",
    "response-expires=Thu%2C%2001%20Dec%201994%2016%3A00%3A00%20GMT",
    "response-content-language=a%0d%0aset-cookie:%20b",
    "response-content-encoding=%ff",
    "response-content-type=a+b",
]
_PARAMETERS = [
    "x-id=GetObject", "tagging", "acl", "attributes", "torrent", "uploads", "uploadId=x",
    "legal-hold", "retention", "odd=1", "list-type=2", "location", "versioning", "&", "a=b=c",
    "%zz", "prefix=a",
]  # fmt: skip
_LONG_AGO = "Mon, 01 Jan 2001 00:00:00 GMT"
_FAR_AHEAD = "Fri, 01 Jan 2100 00:00:00 GMT"
_CUSTOMER_KEY = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": "b2Rk",
    "x-amz-server-side-encryption-customer-key-md5": "b2Rk",
}
_OTHERS = {
    "User-Agent": "Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux#6 md/arch#x86_64 lang/python#3.11",
    "amz-sdk-invocation-id": "0b5e2f1c-7a5c-4d7e-9d0a-6a3d2f1b9c8d",
    "amz-sdk-request": "attempt=1; max=5",
    "Accept": "*/*",
    "Cookie": "a=b; c=d",
    "Content-Type": "text/plain",
    "x-amz-request-payer": "requester",
    "x-amz-expected-bucket-owner": "123456789012",
    "x-amz-security-token": "odd",
    "x-amz-meta-odd": "a  b\tc",
    "x-amz-bypass-governance-retention": "true",
    "x-feedrack-packs": "bypass",
    "Sec-WebSocket-Key": "b2Rk",
    "HTTP2-Settings": "b2Rk",
    "Date": _LONG_AGO,
}
