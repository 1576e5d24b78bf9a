"""Buckets: create, delete, head, list, and the questions about a bucket that have one answer.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address

from gateway.auth.rules import matches
from gateway.config import Rule
from gateway.errors import (
    AccessDenied,
    InvalidBucketName,
    InvalidLocationConstraint,
    NoSuchBucketPolicy,
    NoSuchCORSConfiguration,
    NoSuchLifecycleConfiguration,
    NoSuchPublicAccessBlockConfiguration,
    NoSuchWebsiteConfiguration,
    ObjectLockConfigurationNotFoundError,
    OwnershipControlsNotFoundError,
    ReplicationConfigurationNotFoundError,
    S3Error,
    ServerSideEncryptionConfigurationNotFoundError,
)
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.s3 import render
from gateway.s3.answer import Answer, empty_answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.headers import check_acl
from gateway.s3.tokens import decode_token, encode_token
from gateway.s3.xml import parse_create_bucket

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]", re.ASCII)
_RESERVED_STARTS = ("xn--", "sthree-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_LOCATION = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)

UNSET: dict[str, type[S3Error]] = {
    "GetBucketCors": NoSuchCORSConfiguration,
    "GetBucketEncryption": ServerSideEncryptionConfigurationNotFoundError,
    "GetBucketLifecycleConfiguration": NoSuchLifecycleConfiguration,
    "GetBucketOwnershipControls": OwnershipControlsNotFoundError,
    "GetBucketPolicy": NoSuchBucketPolicy,
    "GetBucketPolicyStatus": NoSuchBucketPolicy,
    "GetBucketReplication": ReplicationConfigurationNotFoundError,
    "GetBucketWebsite": NoSuchWebsiteConfiguration,
    "GetObjectLockConfiguration": ObjectLockConfigurationNotFoundError,
    "GetPublicAccessBlock": NoSuchPublicAccessBlockConfiguration,
}


async def list_buckets(call: Call) -> Answer:
    """The buckets of which the tenant may see anything at all."""
    tenant = call.identity.tenant
    if tenant is None:
        raise AccessDenied
    query = call.operation.query
    prefix = query.get("prefix", "")
    limit = call.operation.integer("max-buckets", 10_000, 1, 10_000)
    token = query.get("continuation-token")
    after = "" if token is None else decode_token(token)
    seen = [
        bucket
        for bucket in await call.service.list_buckets()
        if bucket.name > after
        and bucket.name.startswith(prefix)
        and visible(tenant.rules, bucket.name)
    ]
    page = seen[:limit]
    next_token = encode_token(page[-1].name) if len(seen) > limit else None
    return xml_answer(render.list_buckets(page, prefix=prefix, token=next_token))


async def create_bucket(call: Call) -> Answer:
    """Creates; one that exists already is no error."""
    bucket = call.operation.bucket
    check_bucket_name(bucket)
    check_acl(call.head)
    if (call.head.header("x-amz-bucket-object-lock-enabled") or "").lower() == "true":
        raise NotImplementedS3(fields={"Header": "x-amz-bucket-object-lock-enabled"})
    if call.has_body:
        document, _ = await call.document()
        location = parse_create_bucket(document) if document else None
        if location is not None and _LOCATION.fullmatch(location) is None:
            raise InvalidLocationConstraint(fields={"LocationConstraint": location})
    await call.service.create_bucket(bucket)
    return empty_answer(headers={"location": f"/{bucket}"})


async def delete_bucket(call: Call) -> Answer:
    await call.service.delete_bucket(call.operation.bucket)
    return empty_answer(204)


async def head_bucket(call: Call) -> Answer:
    await call.service.head_bucket(call.operation.bucket)
    return empty_answer(headers={"x-amz-bucket-region": call.config.region})


async def get_bucket_location(call: Call) -> Answer:
    await call.service.head_bucket(call.operation.bucket)
    return xml_answer(render.location(call.config.region))


async def get_bucket_versioning(call: Call) -> Answer:
    """A directory origin has no versions."""
    await call.service.head_bucket(call.operation.bucket)
    return xml_answer(render.versioning())


async def get_acl(call: Call) -> Answer:
    """Everything is private to its owner."""
    await _exists(call)
    return xml_answer(render.private_acl())


async def put_acl(call: Call) -> Answer:
    """Takes the canned private ACL, which says what is so anyway, and no other."""
    check_acl(call.head)
    if call.head.header("x-amz-acl") is None:
        raise NotImplementedS3("Only the canned private ACL can be set.")
    await _exists(call)
    return empty_answer()


async def unset(call: Call) -> Answer:
    """Configurations that no bucket here has."""
    await call.service.head_bucket(call.operation.bucket)
    raise UNSET[call.operation.name](fields={"BucketName": call.operation.bucket})


def check_bucket_name(name: str) -> None:
    """InvalidBucketName for what S3 would not let be created."""
    sound = (
        _NAME.fullmatch(name) is not None
        and not name.startswith(_RESERVED_STARTS)
        and not name.endswith(_RESERVED_ENDS)
        and not _is_address(name)
    )
    if not sound:
        raise InvalidBucketName(fields={"BucketName": name})


def visible(rules: Sequence[Rule], bucket: str) -> bool:
    """Whether a tenant may see anything of a bucket, and is not denied to see that it exists."""
    seen = False
    for rule in rules:
        if rule.deny:
            hides = any(matches(pattern, "ListBuckets") for pattern in rule.deny)
            if hides and any(matches(pattern, bucket) for pattern in rule.buckets):
                return False
        else:
            seen = seen or any(_reaches(pattern, bucket) for pattern in rule.buckets)
    return seen


def _reaches(pattern: str, bucket: str) -> bool:
    """Whether the pattern holds for the bucket or for some key in it."""
    name, slash, _ = pattern.partition("/")
    if matches(name, bucket):
        return True
    # Its "*" may also stand for the rest of the bucket's name and the beginning of a key.
    start, star, _ = name.partition("*")
    return bool(slash and star) and bucket.startswith(start)


async def _exists(call: Call) -> None:
    bucket, key = call.operation.bucket, call.operation.key
    if not key:
        await call.service.head_bucket(bucket)
        return
    read = await call.service.head(bucket, key, version_id=call.operation.version_id)
    await read.close()


def _is_address(name: str) -> bool:
    try:
        IPv4Address(name)
    except ValueError:
        return False
    return True
