"""Deny wins, nothing matching means no, and operations follow one another as IAM has them."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.rules import Policy, matches
from gateway.config import Rule


def allow(*operations: str, buckets: tuple[str, ...] = ("*",)) -> Rule:
    return Rule(allow=operations, buckets=buckets)


def deny(*operations: str, buckets: tuple[str, ...] = ("*",)) -> Rule:
    return Rule(deny=operations, buckets=buckets)


def allowed(rules: Sequence[Rule], operation: str, bucket: str, key: str) -> bool:
    return Policy(rules).allows(operation, bucket, key)


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


@given(st.text("ab*/", max_size=8), st.text("ab/\n", max_size=12))
def test_a_star_stands_for_any_run_of_characters(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL)
    assert matches(pattern, text) == (expected is not None)


def test_many_stars_against_a_long_key_take_no_time() -> None:
    assert not matches("*a" * 60 + "b", "a" * 1024)


# What is remembered

LEADERS = {"HeadObject": {"GetObject"}, "HeadBucket": {"ListObjects", "ListObjectsV2"}}


def plainly(rules: Sequence[Rule], operation: str, bucket: str, key: str) -> bool:
    """The verdict by its definition."""
    names = {operation} | LEADERS.get(operation, set())
    fitting = [
        bool(rule.deny)
        for rule in rules
        if any(matches(pattern, name) for pattern in rule.deny or rule.allow for name in names)
        and any(
            matches(pattern, f"{bucket}/{key}" if "/" in pattern else bucket)
            for pattern in rule.buckets
        )
    ]
    return bool(fitting) and not any(fitting)


OPERATIONS = st.sampled_from(["GetObject", "HeadObject", "PutObject", "HeadBucket", "ListBuckets"])
PATTERNS = st.sampled_from(["GetObject", "Get*", "*Object", "ListObjectsV2", "*", "Head*"])
WHERE = st.sampled_from(["*", "a", "a*", "b", "", "*/x", "a/*", "a/x*", "ab/x", "*b/*y", "a*/"])
RULES = st.lists(
    st.builds(
        lambda denies, operations, buckets: (deny if denies else allow)(
            *operations, buckets=tuple(buckets)
        ),
        st.booleans(),
        st.lists(PATTERNS, min_size=1, max_size=2),
        st.lists(WHERE, max_size=3),
    ),
    max_size=4,
)
ASKED = st.lists(
    st.tuples(OPERATIONS, st.sampled_from(["", "a", "ab", "b"]), st.text("xy/", max_size=3)),
    min_size=1,
    max_size=8,
)


@given(RULES, ASKED)
def test_a_remembered_verdict_is_the_plain_one(
    rules: list[Rule], asked: list[tuple[str, str, str]]
) -> None:
    policy = Policy(rules)
    for operation, bucket, key in asked * 2:
        verdict = policy.allows(operation, bucket, key)
        assert verdict == plainly(rules, operation, bucket, key)


def test_what_is_remembered_is_bounded() -> None:
    policy = Policy([allow("*", buckets=("a*", "b1/*"))])
    for number in range(5_000):
        assert policy.allows("GetObject", f"a{number}", "k")
        assert policy.allows("GetObject", f"b{number}", "k") == (number == 1)
    assert len(policy._verdicts) <= 1024


@given(
    st.lists(
        st.builds(
            lambda made, names: made("GetObject", buckets=tuple(names)),
            st.sampled_from([allow, deny]),
            st.lists(st.sampled_from(["b", "*", "b/*", "b/p*", "b/p/*", "b/*q", "b/p/*q*", "c"])),
        ),
        max_size=4,
    ),
    st.sampled_from(["", "p", "p/", "p/q"]),
    st.text("pq/", max_size=4),
)
def test_who_may_read_all_may_read_each(rules: list[Rule], prefix: str, rest: str) -> None:
    policy = Policy(rules)
    if policy.allows_all("GetObject", "b", prefix):
        assert policy.allows("GetObject", "b", prefix + rest)
