"""A tenant may what its rules allow, anyone may read what is public, and nobody anything else."""

import pytest

from gateway.auth.identity import ANONYMOUS, UNSIGNED, Identity
from gateway.auth.policy import authorise, needed_besides
from gateway.auth.tenants import Tenant
from gateway.config import Rule, Secret
from gateway.errors import AccessDenied

_READ = Rule(allow=("GetObject",))


def identity(*rules: Rule) -> Identity:
    return Identity(Tenant("t", "k", Secret("s"), rules), UNSIGNED)


def test_a_tenant_may_what_its_rules_allow() -> None:
    authorise(identity(_READ), "GetObject", "b", "k", public_read=False)
    with pytest.raises(AccessDenied, match="PutObject"):
        authorise(identity(_READ), "PutObject", "b", "k", public_read=False)


def test_the_anonymous_may_nothing() -> None:
    with pytest.raises(AccessDenied):
        authorise(ANONYMOUS, "GetObject", "b", "k", public_read=False)


@pytest.mark.parametrize("who", [ANONYMOUS, identity()])
def test_a_public_bucket_lets_anyone_read_and_nothing_else(who: Identity) -> None:
    for operation in ("GetObject", "HeadObject"):
        authorise(who, operation, "b", "k", public_read=True)
    for operation in ("ListObjectsV2", "PutObject", "GetObjectTagging", "HeadBucket"):
        with pytest.raises(AccessDenied):
            authorise(who, operation, "b", "k", public_read=True)


def test_what_a_request_does_by_its_headers_is_needed_besides() -> None:
    assert needed_besides([("host", "h"), ("x-amz-meta-a", "b")]) == set()
    assert needed_besides([("x-amz-tagging", "a=b"), ("x-amz-tagging", "c=d")]) == {
        "PutObjectTagging"
    }
    assert needed_besides(
        [("x-amz-object-lock-mode", "GOVERNANCE"), ("x-amz-object-lock-legal-hold", "ON")]
    ) == {"PutObjectRetention", "PutObjectLegalHold"}
    assert needed_besides([("x-amz-bypass-governance-retention", "true")]) == {
        "BypassGovernanceRetention"
    }
