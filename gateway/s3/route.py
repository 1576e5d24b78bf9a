"""From a request's head to its operation. Pure.

A sub-resource in the query decides; every sub-resource S3 has is listed, also those that are not
offered, so that `DELETE /bucket?cors` never becomes a DeleteBucket. One that S3 may have tomorrow
is known by its lack of a value, and never becomes a write of the bucket or object itself.
https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
"""

import re

from gateway.auth.request import RequestHead
from gateway.errors import (
    AccessForbidden,
    InvalidArgument,
    InvalidBucketName,
    InvalidURI,
    MethodNotAllowed,
)
from gateway.s3.operation import Operation, check_key, decode

# Wider than what CreateBucket allows: folders of a NAS may have older names.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)

# Sub-resources whose operations are all called {Get,Put,Delete}<noun>.
_BUCKET_NOUNS = {
    "abac": "BucketAbac",
    "accelerate": "BucketAccelerateConfiguration",
    "acl": "BucketAcl",
    "analytics": "BucketAnalyticsConfiguration",
    "cors": "BucketCors",
    "encryption": "BucketEncryption",
    "intelligent-tiering": "BucketIntelligentTieringConfiguration",
    "inventory": "BucketInventoryConfiguration",
    "lifecycle": "BucketLifecycleConfiguration",
    "location": "BucketLocation",
    "logging": "BucketLogging",
    "metadataAnnotationTable": "BucketMetadataAnnotationTableConfiguration",
    "metadataConfiguration": "BucketMetadataConfiguration",
    "metadataTable": "BucketMetadataTableConfiguration",
    "metadataInventoryTable": "BucketMetadataInventoryTableConfiguration",
    "metadataJournalTable": "BucketMetadataJournalTableConfiguration",
    "metrics": "BucketMetricsConfiguration",
    "notification": "BucketNotificationConfiguration",
    "object-lock": "ObjectLockConfiguration",
    "ownershipControls": "BucketOwnershipControls",
    "policy": "BucketPolicy",
    "policyStatus": "BucketPolicyStatus",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "BucketReplication",
    "requestPayment": "BucketRequestPayment",
    "tagging": "BucketTagging",
    "versioning": "BucketVersioning",
    "website": "BucketWebsite",
}
_OBJECT_NOUNS = {
    "acl": "ObjectAcl",
    "annotation": "ObjectAnnotation",
    "attributes": "ObjectAttributes",
    "encryption": "ObjectEncryption",
    "legal-hold": "ObjectLegalHold",
    "renameObject": "ObjectName",
    "retention": "ObjectRetention",
    "tagging": "ObjectTagging",
    "torrent": "ObjectTorrent",
}
_EXCEPTIONS = {
    "DeleteBucketLifecycleConfiguration": "DeleteBucketLifecycle",
    "PutBucketMetadataAnnotationTableConfiguration": (
        "UpdateBucketMetadataAnnotationTableConfiguration"
    ),
    "PutBucketMetadataInventoryTableConfiguration": (
        "UpdateBucketMetadataInventoryTableConfiguration"
    ),
    "PutBucketMetadataJournalTableConfiguration": "UpdateBucketMetadataJournalTableConfiguration",
    "PutObjectName": "RenameObject",
    "PutObjectEncryption": "UpdateObjectEncryption",
}
# What there may be several of, and the parameter that names one: without it, they are listed.
_NUMEROUS = {
    "analytics": "id",
    "annotation": "annotationName",
    "intelligent-tiering": "id",
    "inventory": "id",
    "metrics": "id",
}
# Parameters of writes that may come without a value and yet ask for nothing else.
_VALUELESS = {
    "PUT": frozenset(("partNumber", "uploadId")),
    "POST": frozenset(("delete", "feedrack-batch", "restore", "select", "uploadId", "uploads")),
    "DELETE": frozenset(("uploadId", "versionId")),
}
_RDMA_STEPS = {"prepare": "PrepareRdma", "ready": "ReadyRdma", "cancel": "CancelRdma"}
_UNKNOWN = "Unknown"
_VERBS = {"GET": "Get", "HEAD": "Get", "PUT": "Put", "POST": "Create", "DELETE": "Delete"}


def match(head: RequestHead, virtual_host_domain: str | None) -> Operation:
    """The operation a request means.

    Raises InvalidURI, InvalidBucketName, KeyTooLongError, InvalidArgument (sub-resources that do
    not go together), MethodNotAllowed, and AccessForbidden for a CORS preflight.
    """
    if head.method == "OPTIONS":
        raise AccessForbidden
    if head.method not in _VERBS:
        raise MethodNotAllowed
    if not head.path.startswith("/") or "#" in head.path:
        raise InvalidURI
    query: dict[str, str] = {}
    for name, value in head.query_pairs:
        query.setdefault(name, value)
    bucket, key = _address(head, virtual_host_domain)
    if not bucket and not key:
        return Operation(_service(head.method, query), query=query)
    if _BUCKET.fullmatch(bucket) is None:
        raise InvalidBucketName(fields={"BucketName": bucket})
    if not key:
        return Operation(_bucket(head.method, query), bucket, "", query)
    copies = head.header("x-amz-copy-source") is not None
    return Operation(_object(head.method, query, copies=copies), bucket, check_key(key), query)


def _address(head: RequestHead, domain: str | None) -> tuple[str, str]:
    """(bucket, key) of a path-style or virtual-host request."""
    path = head.path[1:]
    if domain is not None:
        host = _host_name(head.header("host") or "")
        suffix = f".{domain.lower()}"
        if host.endswith(suffix) and len(host) > len(suffix):
            return host.removesuffix(suffix), decode(path)
    bucket, _, key = path.partition("/")
    return decode(bucket), decode(key)


def _host_name(host: str) -> str:
    """A Host header without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    if colon and (not port or port.isdigit()) and not name.endswith(":"):
        host = name
    return host.rstrip(".").lower()


def _service(method: str, query: dict[str, str]) -> str:
    if method == "GET":
        return "ListBuckets"
    if method == "POST" and "feedrack-rdma" in query:
        # Ours, not AWS's: docs/rdma.md.
        return _named_step(query["feedrack-rdma"])
    raise MethodNotAllowed


def _named_step(step: str) -> str:
    name = _RDMA_STEPS.get(step)
    if name is None:
        raise InvalidArgument(
            f"feedrack-rdma is one of {', '.join(_RDMA_STEPS)}.",
            fields={"ArgumentName": "feedrack-rdma", "ArgumentValue": step[:64]},
        )
    return name


def _bucket(method: str, query: dict[str, str]) -> str:
    name = _sub_resource(method, query, _BUCKET_NOUNS)
    if name is not None:
        return name
    match method:
        case "GET" if "versions" in query:
            return "ListObjectVersions"
        case "GET" if "uploads" in query:
            return "ListMultipartUploads"
        case "GET" if "session" in query:
            return "CreateSession"
        case "GET" if "feedrack-packs" in query:
            # Ours, not AWS's: docs/reader.md.
            return "GetPacks"
        case "GET" if "list-type" in query:
            if query["list-type"] != "2":
                raise InvalidArgument("Invalid List Type specified in Request")
            return "ListObjectsV2"
        case "GET":
            return "ListObjects"
        case "HEAD":
            return "HeadBucket"
        case "PUT":
            return "CreateBucket"
        case "DELETE":
            return "DeleteBucket"
        case "POST" if "delete" in query:
            return "DeleteObjects"
        case "POST" if "feedrack-batch" in query:
            # Ours, not AWS's: docs/batch.md.
            return "GetObjects"
        case _:
            return "PostObject"


def _object(method: str, query: dict[str, str], *, copies: bool) -> str:
    name = _sub_resource(method, query, _OBJECT_NOUNS)
    if name is not None:
        return name
    upload = "uploadId" in query
    match method:
        case "GET":
            return "ListParts" if upload else "GetObject"
        case "HEAD":
            return "HeadObject"
        case "PUT" if upload or "partNumber" in query:
            if not upload or "partNumber" not in query:
                raise InvalidArgument("uploadId and partNumber go together.")
            return "UploadPartCopy" if copies else "UploadPart"
        case "PUT":
            return "CopyObject" if copies else "PutObject"
        case "DELETE":
            return "AbortMultipartUpload" if upload else "DeleteObject"
        case _:
            return _post_object(query)


def _sub_resource(method: str, query: dict[str, str], nouns: dict[str, str]) -> str | None:
    """The operation on a sub-resource, if the query names one."""
    # Most requests have no query at all, and none has as many parameters as there are nouns.
    for parameter in query:
        if parameter in nouns:
            return _named(method, parameter, nouns[parameter], query)
    known = _VALUELESS.get(method)
    if known is not None and any(
        not value and parameter not in known and not parameter.lower().startswith("x-amz-")
        for parameter, value in query.items()
    ):
        return _UNKNOWN
    return None


def _named(method: str, parameter: str, noun: str, query: dict[str, str]) -> str:
    if method == "GET" and _NUMEROUS.get(parameter, parameter) not in query:
        return f"List{noun}s"
    name = _VERBS[method] + noun
    return _EXCEPTIONS.get(name, name)


def _post_object(query: dict[str, str]) -> str:
    if "uploads" in query:
        return "CreateMultipartUpload"
    if "uploadId" in query:
        return "CompleteMultipartUpload"
    if "select" in query:
        return "SelectObjectContent"
    if "restore" in query:
        return "RestoreObject"
    raise MethodNotAllowed
