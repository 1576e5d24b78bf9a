"""Requests made and signed before the clock starts, so that signing costs the load nothing.

Signature Version 4 in headers, as SDKs send it, by botocore itself. A signature stays good for
fifteen minutes, so one per key serves a whole run. Uploads are signed with UNSIGNED-PAYLOAD, as
over TLS; nginx gets the very same requests and ignores what it does not know.
"""

from functools import lru_cache

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import Struct

from benchmarks import objects
from benchmarks.jobs import Job

_REGION = "us-east-1"


class Request(Struct, frozen=True):
    """A request's head as it goes over the wire, its body, and the object it is about."""

    head: bytes
    body: bytes
    number: int


class _UnsignedPayload(S3SigV4Auth):
    def payload(self, request: AWSRequest) -> str:  # noqa: ARG002 - botocore's name
        return "UNSIGNED-PAYLOAD"


def prepare(job: Job) -> list[Request]:
    """One signed request for each key of the job, in the order of the keys."""
    body = objects.content(job.size_bytes) if job.method == "PUT" else b""
    return [
        Request(_head(job, objects.key(job.prefix, number)), body, number if job.numbered else 0)
        for number in range(job.count)
    ]


def _head(job: Job, key: str) -> bytes:
    length_bytes = job.size_bytes if job.method == "PUT" else None
    return signed_head(
        job.method,
        f"{job.host}:{job.port}",
        f"/{job.bucket}/{key}",
        access_key=job.access_key,
        secret_key=job.secret_key,
        length_bytes=length_bytes,
    )


@lru_cache(maxsize=65_536)
def signed_head(
    method: str,
    host: str,
    path: str,
    *,
    access_key: str,
    secret_key: str,
    length_bytes: int | None = None,
    byte_range: str | None = None,
) -> bytes:
    """A signed request head, remembered: the same words get the same signature within a run."""
    request = AWSRequest(method=method, url=f"http://{host}{path}")
    if byte_range is not None:
        request.headers["Range"] = byte_range
    signer = S3SigV4Auth if method == "GET" else _UnsignedPayload
    signer(Credentials(access_key, secret_key), "s3", _REGION).add_auth(request)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if length_bytes is not None:
        lines.append(f"Content-Length: {length_bytes}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
