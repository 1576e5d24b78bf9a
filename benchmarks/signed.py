"""Requests made and signed before the clock starts, so that signing costs the load nothing.

A GET's head is boto3's, header for header, with Signature Version 4 in `Authorization`. An upload
is signed with UNSIGNED-PAYLOAD, as over TLS, and says neither `Expect` nor a checksum. Every
server gets the very same requests; nginx ignores what it does not know.

No two requests of a run are the same bytes, so that no server can win by remembering one: each has
its own `amz-sdk-invocation-id`, as boto3's have, and whenever a key comes round again it is signed
for another second than before. A server allows a clock to be fifteen minutes wrong; ten are used.
"""

import hmac
import random
import time
from collections.abc import Callable, Iterator
from hashlib import sha256

from msgspec import Struct

from benchmarks import objects
from benchmarks.jobs import Job, Method

_REGION = "us-east-1"
_EMPTY_SHA256 = sha256(b"").hexdigest()
_AGENT = (
    "Boto3/1.43.117 md/Botocore#1.43.117 ua/2.1 os/linux#6.18 md/arch#x86_64 lang/python#3.11.7 "
    "md/pyimpl#CPython m/e,b,D,N,Z cfg/retry-mode#legacy Botocore/1.43.117"
)
_SKEW_SECONDS = 600
# Ranges of one object asked for before the first comes again.
_PIECES = 2000


class Request(Struct, frozen=True, gc=False):
    """A request's head as it goes over the wire, and which bytes it is about."""

    method: Method
    head: bytes
    number: int
    offset: int


class Seconds:
    """The times to sign for: none twice for the same keys of the same server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._next: dict[tuple[int, str, str], int] = {}

    def take(self, job: Job) -> int:
        """The next second, from ten minutes ago on. RuntimeError where it is too far ahead."""
        target = (job.port, job.bucket, job.prefix)
        now = int(self._clock())
        second = max(self._next.get(target, 0), now - _SKEW_SECONDS)
        if second > now + _SKEW_SECONDS:
            raise RuntimeError(f"no time is left to sign {job.prefix} for: ask for fewer requests")
        self._next[target] = second + 1
        return second


def prepare(job: Job, seconds: Seconds, randomness: random.Random) -> list[Request]:
    """All requests of the job, signed, in the order in which they are to be sent."""
    targets = [(number, 0) for number in range(job.count)]
    if job.piece_bytes is not None:
        last = job.size_bytes - job.piece_bytes
        targets = [
            (number % job.count, randomness.randint(0, last))
            for number in range(min(_PIECES, job.requests))
        ]
    randomness.shuffle(targets)
    methods = randomness.choices([*job.mix], [*job.mix.values()], k=job.requests)
    found: list[Request] = []
    while len(found) < job.requests:
        moments = [_Moment(job, seconds.take(job), randomness) for _ in range(job.together)]
        for number, offset in targets:
            for moment in moments[: job.requests - len(found)]:
                method = methods[len(found)]
                found.append(Request(method, moment.head(method, number, offset), number, offset))
    return found


def signed_head(job: Job, method: Method, number: int, offset: int = 0) -> bytes:
    """One head signed for now."""
    return _Moment(job, int(time.time()), random.Random()).head(method, number, offset)


def body(request: Request, job: Job) -> Iterator[bytes | memoryview]:
    """What follows the head."""
    if request.method == "PUT":
        yield from objects.parts(request.number, job.size_bytes)


class _Moment:
    """Signs requests to one server for one second: what they share is made once."""

    def __init__(self, job: Job, second: int, randomness: random.Random) -> None:
        self._job = job
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        self._host = f"{job.host}:{job.port}"
        day = self._date[:8]
        scope = f"{day}/{_REGION}/s3/aws4_request"
        self._to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{scope}\n"
        self._credential = f"AWS4-HMAC-SHA256 Credential={job.access_key}/{scope}"
        self._key = f"AWS4{job.secret_key}".encode()
        for part in (day, _REGION, "s3", "aws4_request"):
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        self._randomness = randomness

    def head(self, method: Method, number: int, offset: int) -> bytes:
        job = self._job
        signed: dict[str, str] = {}
        sent = "Accept-Encoding: identity\r\n"
        payload = _EMPTY_SHA256
        if method == "PUT":
            payload = "UNSIGNED-PAYLOAD"
            sent += f"Content-Length: {job.size_bytes}\r\n"
        else:
            if method == "GET" and job.piece_bytes is not None:
                signed["range"] = f"bytes={offset}-{offset + job.piece_bytes - 1}"
                sent += f"Range: {signed['range']}\r\n"
            signed["x-amz-checksum-mode"] = "ENABLED"
            sent += "x-amz-checksum-mode: ENABLED\r\n"
        names = ";".join(["host", *signed, "x-amz-content-sha256", "x-amz-date"])
        lines = "".join([f"{name}:{value}\n" for name, value in signed.items()])
        path = f"/{job.bucket}/{objects.key(job.prefix, number)}"
        canonical = (
            f"{method}\n{path}\n\nhost:{self._host}\n{lines}x-amz-content-sha256:{payload}\n"
            f"x-amz-date:{self._date}\n\n{names}\n{payload}"
        )
        digest = sha256(canonical.encode()).hexdigest()
        signature = hmac.digest(self._key, (self._to_sign + digest).encode(), "sha256").hex()
        unique = f"{self._randomness.getrandbits(128):032x}"
        return (
            f"{method} {path} HTTP/1.1\r\n{sent}User-Agent: {_AGENT}\r\nHost: {self._host}\r\n"
            f"X-Amz-Date: {self._date}\r\nx-amz-content-sha256: {payload}\r\n"
            f"Authorization: {self._credential}, SignedHeaders={names}, Signature={signature}\r\n"
            f"amz-sdk-invocation-id: {unique[:8]}-{unique[8:12]}-{unique[12:16]}-{unique[16:20]}"
            f"-{unique[20:]}\r\namz-sdk-request: attempt=1\r\n\r\n"
        ).encode()
