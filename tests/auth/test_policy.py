"""Deny wins, nothing matching means no, and operations follow one another as IAM has them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.identity import ANONYMOUS, UNSIGNED, Identity
from gateway.auth.policy import allowed, authorise, matches, needed_besides
from gateway.auth.tenants import Tenant
from gateway.config import Rule, Secret
from gateway.errors import AccessDenied


def allow(*operations: str, buckets: tuple[str, ...] = ("*",)) -> Rule:
    return Rule(allow=operations, buckets=buckets)


def deny(*operations: str, buckets: tuple[str, ...] = ("*",)) -> Rule:
    return Rule(deny=operations, buckets=buckets)


def test_without_rules_nothing_is_allowed() -> None:
    assert not allowed((), "GetObject", "train", "a")


def test_a_star_allows_everything_the_service_itself_included() -> None:
    for operation, bucket, key in [("GetObject", "b", "k"), ("ListBuckets", "", "")]:
        assert allowed((allow("*"),), operation, bucket, key)


def test_operations_match_by_pattern_and_case() -> None:
    rules = (allow("Get*"),)
    assert allowed(rules, "GetObject", "b", "k")
    assert allowed(rules, "GetBucketLocation", "b", "")
    assert not allowed(rules, "PutObject", "b", "k")
    assert not allowed((allow("getobject"),), "GetObject", "b", "k")


def test_a_bucket_pattern_covers_the_bucket_and_everything_in_it() -> None:
    rules = (allow("*", buckets=("train", "test-*")),)
    assert allowed(rules, "HeadBucket", "train", "")
    assert allowed(rules, "GetObject", "train", "a/b")
    assert allowed(rules, "GetObject", "test-1", "a")
    assert not allowed(rules, "GetObject", "training", "a")
    assert not allowed(rules, "ListBuckets", "", "")


def test_a_prefix_pattern_covers_keys_and_listings_below_it() -> None:
    rules = (allow("*", buckets=("train/imagenet/*",)),)
    assert allowed(rules, "GetObject", "train", "imagenet/a/b.jpg")
    assert allowed(rules, "ListObjectsV2", "train", "imagenet/")
    assert not allowed(rules, "GetObject", "train", "imagenet")
    assert not allowed(rules, "ListObjectsV2", "train", "")
    assert not allowed(rules, "ListObjectsV2", "train", "image")
    assert not allowed(rules, "DeleteBucket", "train", "")
    assert not allowed(rules, "GetObject", "other", "imagenet/a")


@pytest.mark.parametrize("order", [0, 1])
def test_a_deny_wins_wherever_it_stands(order: int) -> None:
    rules = [allow("*"), deny("Put*", "Delete*", buckets=("train/gold/*",))]
    if order:
        rules.reverse()
    assert allowed(rules, "PutObject", "train", "lead")
    assert allowed(rules, "GetObject", "train", "gold/a")
    assert not allowed(rules, "PutObject", "train", "gold/a")
    assert not allowed(rules, "DeleteObject", "train", "gold/a")


@pytest.mark.parametrize(
    ("operation", "leader"),
    [
        ("HeadObject", "GetObject"),
        ("GetObjectAttributes", "GetObject"),
        ("CreateMultipartUpload", "PutObject"),
        ("UploadPart", "PutObject"),
        ("CompleteMultipartUpload", "PutObject"),
        ("AbortMultipartUpload", "PutObject"),
        ("CopyObject", "PutObject"),
        ("UploadPartCopy", "PutObject"),
        ("ListObjects", "ListObjectsV2"),
        ("ListObjectsV2", "ListObjects"),
        ("HeadBucket", "ListObjects"),
        ("HeadBucket", "ListObjectsV2"),
        ("DeleteObjects", "DeleteObject"),
    ],
)
def test_an_operation_follows_its_leader_in_allow_and_deny(operation: str, leader: str) -> None:
    assert allowed((allow(leader),), operation, "b", "k")
    assert not allowed((allow("*"), deny(leader)), operation, "b", "k")


def test_a_leader_does_not_follow_its_followers() -> None:
    rules = (allow("HeadObject", "UploadPart", "HeadBucket"),)
    for operation in ("GetObject", "PutObject", "ListObjectsV2"):
        assert not allowed(rules, operation, "b", "k")
    assert allowed((allow("*"), deny("HeadObject")), "GetObject", "b", "k")


def identity(*rules: Rule) -> Identity:
    return Identity(Tenant("t", "k", Secret("s"), rules), UNSIGNED)


def test_a_tenant_may_what_its_rules_allow() -> None:
    authorise(identity(allow("GetObject")), "GetObject", "b", "k", public_read=False)
    with pytest.raises(AccessDenied, match="PutObject"):
        authorise(identity(allow("GetObject")), "PutObject", "b", "k", public_read=False)


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


@given(st.text("ab*/", max_size=8), st.text("ab/\n", max_size=12))
def test_a_star_stands_for_any_run_of_characters(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL)
    assert matches(pattern, text) == (expected is not None)


def test_many_stars_against_a_long_key_take_no_time() -> None:
    assert not matches("*a" * 60 + "b", "a" * 1024)


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
