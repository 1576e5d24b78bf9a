"""Who may do what: a tenant's rules (`rules.py`) put to requests. Pure.

For a listing, the key is the prefix asked for: who may list "train/imagenet/*" may ask for the
prefix "imagenet/" and below, and for nothing above it. As with IAM, a deny by prefix does not
filter the answer of a listing that begins higher up: deny the listing there too.

A request that does two things in one needs leave for both, as with IAM: with tags, a lock or a
legal hold in its headers, a write needs PutObjectTagging, PutObjectRetention or PutObjectLegalHold
as well, and what lifts a governed lock needs BypassGovernanceRetention.

A request that is made past packs (docs/pack-format.md) needs, beside leave for what it does to its
own key, leave to do the same to `.feedrack/packs/` of the bucket: everything packed can be read and
lost there, whoever's keys it has. That a bucket is public does not give it.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
"""

from collections.abc import Iterable

from gateway.auth.identity import Identity
from gateway.errors import AccessDenied
from gateway.model.reserved import PACKS

_BESIDES = {
    "x-amz-bypass-governance-retention": "BypassGovernanceRetention",
    "x-amz-object-lock-legal-hold": "PutObjectLegalHold",
    "x-amz-object-lock-mode": "PutObjectRetention",
    "x-amz-object-lock-retain-until-date": "PutObjectRetention",
    "x-amz-tagging": "PutObjectTagging",
}
_PUBLIC = frozenset({"GetObject", "HeadObject"})


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
    if not tenant.policy.allows(operation, bucket, key):
        raise AccessDenied(f"Tenant {tenant.name} is not allowed {operation} here.")


def authorise_past_packs(identity: Identity, operation: str, bucket: str) -> None:
    """Nothing where `identity` may do `operation` past the packs of the bucket, if it may do it to
    the key at hand; AccessDenied where not."""
    authorise(identity, operation, bucket, PACKS, public_read=False)
