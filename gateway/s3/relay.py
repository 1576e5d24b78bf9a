"""What goes to an S3 origin as it came: versioning, object lock, SSE-C and the like.

The gateway authenticates and authorises such a request as any other, names the origin's buckets
in it, and hands it on; the answer comes back as the origin gave it. Nothing of it is kept.
"""

from collections.abc import AsyncIterator

from gateway.auth.request import RequestHead
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.s3.answer import Answer
from gateway.s3.call import Call
from gateway.s3.copy_object import source_of
from gateway.s3.copy_source import CopySource
from gateway.s3.entry import Request
from gateway.s3.headers import check_acl, has_customer_key, object_headers, without_aws_chunked
from gateway.tiers.protocol import RelayAnswer, RelayRequest

# Operations that only an S3 origin knows, and whether they change what an object's head says.
ALWAYS = {
    "GetBucketEncryption": False,
    "GetBucketVersioning": False,
    "PutBucketVersioning": False,
    "GetObjectAttributes": False,
    "GetObjectLockConfiguration": False,
    "PutObjectLockConfiguration": False,
    "GetObjectLegalHold": False,
    "PutObjectLegalHold": True,
    "GetObjectRetention": False,
    "PutObjectRetention": True,
}
# Operations that are relayed when they carry a customer's key.
_WITH_CUSTOMER_KEY = {
    "GetObject": False,
    "HeadObject": False,
    "PutObject": True,
    "CopyObject": True,
    "CreateMultipartUpload": False,
    "UploadPart": False,
    "UploadPartCopy": False,
    "ListParts": False,
    "CompleteMultipartUpload": True,
}
_LIFTS_LOCK = ("x-amz-bypass-governance-retention", "x-amz-mfa")

_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# What belongs to the client's own request: its signature, its framing, its wish to be asked.
_CLIENT_ONLY = _HOP_BY_HOP | {
    "accept-encoding",
    "authorization",
    "content-length",
    "expect",
    "host",
    "user-agent",
    "x-amz-content-sha256",
    "x-amz-copy-source",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-expected-bucket-owner",
    "x-amz-security-token",
    "x-amz-source-expected-bucket-owner",
    "x-amz-trailer",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
}
_ORIGIN_ONLY = _HOP_BY_HOP | {
    "content-length",
    "date",
    "server",
    "x-amz-id-2",
    "x-amz-rdma-bytes-transferred",
    "x-amz-rdma-reply",
    "x-amz-request-id",
}
_SIGNATURE_PREFIX = "x-amz-"
# What is said to this gateway is not said to a service behind it, nor the other way round: least of
# all where a client's memory is.
_OURS_PREFIXES = ("x-feedrack-", "x-amz-rdma-")
_WITHOUT_BODY = frozenset(("GET", "HEAD", "DELETE"))


def relayed(request: Request) -> bool | None:
    """None where the gateway answers itself; else whether the request changes its object.

    NotImplemented where only an S3 origin could do what is asked and the bucket has none.
    """
    name = request.operation.name
    writes: bool | None = None
    needed = True
    if has_customer_key(request.head):
        writes = _WITH_CUSTOMER_KEY.get(name)
    elif name in ("DeleteObject", "DeleteObjects") and _lifts_lock(request.head):
        if name == "DeleteObjects":
            raise NotImplementedS3("Locked objects can be deleted one at a time only.")
        writes = True
    elif name == "CreateBucket" and request.head.header("x-amz-bucket-object-lock-enabled"):
        writes = False
    else:
        writes = ALWAYS.get(name)
        needed = False
    if writes is None or request.relays:
        return writes
    if needed:
        raise NotImplementedS3
    return None


async def relay(call: Call, *, writes: bool) -> Answer:
    """The origin's answer, whatever it is."""
    operation = call.operation
    headers = _headers(call.head)
    check_acl(call.head)
    if operation.name in ("PutObject", "CreateMultipartUpload", "CopyObject"):
        # Its checks are the gateway's to make; the values travel as they came.
        object_headers(call.head)
    if operation.name in ("CopyObject", "UploadPartCopy"):
        headers["x-amz-copy-source"] = _origin_source(call, source_of(call))
    request = RelayRequest(
        method=call.head.method,
        bucket=operation.bucket,
        key=operation.key,
        query=tuple(
            pair
            for pair in call.head.query_pairs
            if not pair[0].lower().startswith(_SIGNATURE_PREFIX)
        ),
        headers=headers,
    )
    body = None
    if call.head.method not in _WITHOUT_BODY and call.has_body:
        body = await call.body()
    answer = await call.service.relay(request, body, writes=writes)
    length = answer.headers.get("content-length")
    return Answer(
        status=answer.status,
        headers={name: value for name, value in answer.headers.items() if name not in _ORIGIN_ONLY},
        stream=_Relayed(answer),
        length_bytes=int(length) if length is not None and length.isdigit() else None,
        tier="origin" if operation.name in ("GetObject", "HeadObject") else None,
    )


class _Relayed:
    """A relayed answer's bytes, as they come."""

    def __init__(self, answer: RelayAnswer) -> None:
        self._answer = answer

    def pieces(self, *, files: bool) -> AsyncIterator[bytes]:  # noqa: ARG002 - there are none
        return self._answer.blocks()

    async def close(self) -> None:
        await self._answer.close()


def _lifts_lock(head: RequestHead) -> bool:
    return any(head.header(name) is not None for name in _LIFTS_LOCK)


def _headers(head: RequestHead) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in head.headers:
        if name not in _CLIENT_ONLY and not name.startswith(_OURS_PREFIXES):
            headers.setdefault(name, value)
    encoding = without_aws_chunked(headers.pop("content-encoding", ""))
    if encoding:
        headers["content-encoding"] = encoding
    return headers


def _origin_source(call: Call, source: CopySource) -> str:
    """The copy source by the origin's own bucket name. NotImplemented across origins."""
    there = call.service.bucket(source.bucket)
    if there.origin is not call.service.bucket(call.operation.bucket).origin:
        raise NotImplementedS3("A copy with a customer's key stays within one origin.")
    return source.header(there.origin_bucket)
