"""Who may do what: one pure function over a tenant's rules.

A rule names operations in AWS's spelling ("GetObject", "Get*", "*") and where they are allowed or
denied. "train" is the bucket and everything in it; "train/imagenet/*" are the keys that begin with
"imagenet/". A `*` stands for any run of characters, "/" among them. A matching deny wins over every
allow, and what no rule allows is denied.

For a listing, the key is the prefix asked for: who may list "train/imagenet/*" may ask for the
prefix "imagenet/" and below, and for nothing above it. As with IAM, a deny by prefix does not
filter the answer of a listing that begins higher up: deny the listing there too.

Operations that IAM has no action of its own for, or that tell no more than another one, follow
that other one, in allow and deny alike:

| operation | follows |
| --- | --- |
| HeadObject, GetObjectAttributes | GetObject |
| ListObjects, ListObjectsV2 | each other |
| HeadBucket | ListObjects, ListObjectsV2 |
| CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload | PutObject |
| CopyObject, UploadPartCopy (of the target; the source needs GetObject) | PutObject |
| DeleteObjects (to be asked for every key) | DeleteObject |

A request that does two things in one needs leave for both, as with IAM: with tags, a lock or a
legal hold in its headers, a write needs PutObjectTagging, PutObjectRetention or PutObjectLegalHold
as well, and what lifts a governed lock needs BypassGovernanceRetention.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
"""

from collections.abc import Iterable, Sequence

from gateway.auth.identity import Identity
from gateway.config import Rule
from gateway.errors import AccessDenied

_FOLLOWS = {
    "GetObjectAttributes": ("GetObject",),
    "HeadObject": ("GetObject",),
    "ListObjects": ("ListObjectsV2",),
    "ListObjectsV2": ("ListObjects",),
    "HeadBucket": ("ListObjects", "ListObjectsV2"),
    "CreateMultipartUpload": ("PutObject",),
    "UploadPart": ("PutObject",),
    "CompleteMultipartUpload": ("PutObject",),
    "AbortMultipartUpload": ("PutObject",),
    "CopyObject": ("PutObject",),
    "UploadPartCopy": ("PutObject",),
    "DeleteObjects": ("DeleteObject",),
}
_BESIDES = {
    "x-amz-bypass-governance-retention": "BypassGovernanceRetention",
    "x-amz-object-lock-legal-hold": "PutObjectLegalHold",
    "x-amz-object-lock-mode": "PutObjectRetention",
    "x-amz-object-lock-retain-until-date": "PutObjectRetention",
    "x-amz-tagging": "PutObjectTagging",
}
_PUBLIC = frozenset({"GetObject", "HeadObject"})


def allowed(rules: Sequence[Rule], operation: str, bucket: str, key: str) -> bool:
    """Whether `rules` let `operation` be done. `bucket` "" is the service (ListBuckets), `key` ""
    the bucket itself."""
    names = (operation, *_FOLLOWS.get(operation, ()))
    verdict = False
    for rule in rules:
        patterns = rule.deny or rule.allow
        if not _names(patterns, names) or not _holds(rule.buckets, bucket, key):
            continue
        if rule.deny:
            return False
        verdict = True
    return verdict


def needed_besides(headers: Iterable[tuple[str, str]]) -> set[str]:
    """What else a request does by its headers, as operations that its sender must be allowed."""
    return {_BESIDES[name] for name, _ in headers if name in _BESIDES}


def authorise(
    identity: Identity, operation: str, bucket: str, key: str, *, public_read: bool
) -> None:
    """Nothing where `identity` may; AccessDenied where not.

    `public_read`: the bucket's objects may be read by anyone, whatever a tenant's own rules say.
    """
    if public_read and operation in _PUBLIC:
        return
    tenant = identity.tenant
    if tenant is None:
        raise AccessDenied
    if not allowed(tenant.rules, operation, bucket, key):
        raise AccessDenied(f"Tenant {tenant.name} is not allowed {operation} here.")


def _names(patterns: Iterable[str], names: Iterable[str]) -> bool:
    for pattern in patterns:
        for name in names:
            if matches(pattern, name):
                return True
    return False


def _holds(patterns: Iterable[str], bucket: str, key: str) -> bool:
    for pattern in patterns:
        if matches(pattern, f"{bucket}/{key}" if "/" in pattern else bucket):
            return True
    return False


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern, with `*` for any run of characters, is all of the text; linear time."""
    if pattern in ("*", text):
        return True
    first, *middle = pattern.split("*")
    if not middle:
        return False
    last = middle.pop()
    position, stop = len(first), len(text) - len(last)
    if position > stop or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, position, stop)
        if found < 0:
            return False
        position = found + len(piece)
    return True
