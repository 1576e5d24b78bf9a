"""What a tenant's rules allow. Pure.

A rule names operations in AWS's spelling ("GetObject", "Get*", "*") and where they are allowed or
denied. "train" is the bucket and everything in it; "train/imagenet/*" are the keys that begin with
"imagenet/". A `*` stands for any run of characters, "/" among them. A matching deny wins over every
allow, and what no rule allows is denied.

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
| GetObjects (to be asked for every key) | GetObject |
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.config import Rule

_REMEMBERED = 1024
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
    "GetObjects": ("GetObject",),
}


class _OfKeys(Struct, frozen=True):
    """A verdict that hangs on the key: patterns of `bucket/key` that deny, and such that allow
    where it is not `allowed` already."""

    denied: tuple[str, ...]
    allowed: bool
    allows: tuple[str, ...]


class Policy:
    """Decides by rules, in any order, and remembers by operation and bucket what they come to: a
    verdict, or the patterns of keys that it hangs on. A bounded number of them."""

    __slots__ = ("_rules", "_verdicts")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._verdicts: dict[tuple[str, str], bool | _OfKeys] = {}

    def allows_all(self, operation: str, bucket: str, prefix: str) -> bool:
        """Whether the rules let `operation` be done on every key that begins with `prefix`. It may
        say no where only several rules together do."""
        verdict = self._verdict(operation, bucket)
        if isinstance(verdict, bool):
            return verdict
        where = f"{bucket}/{prefix}"
        if any(_may_touch(pattern, where) for pattern in verdict.denied):
            return False
        return verdict.allowed or any(
            pattern.endswith("*") and matches(pattern, where) for pattern in verdict.allows
        )

    def allows(self, operation: str, bucket: str, key: str) -> bool:
        """Whether the rules let `operation` be done. `bucket` "" is the service (ListBuckets),
        `key` "" the bucket itself."""
        verdict = self._verdict(operation, bucket)
        if isinstance(verdict, bool):
            return verdict
        where = f"{bucket}/{key}"
        if _match((where,), verdict.denied):
            return False
        return verdict.allowed or _match((where,), verdict.allows)

    def _verdict(self, operation: str, bucket: str) -> bool | _OfKeys:
        verdict = self._verdicts.get((operation, bucket))
        if verdict is None:
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            verdict = self._verdicts[operation, bucket] = _verdict(self._rules, operation, bucket)
        return verdict


def _may_touch(pattern: str, where: str) -> bool:
    """Whether a pattern of keys may match some key that begins as `where` does."""
    first, wild, _ = pattern.partition("*")
    return first.startswith(where) or (bool(wild) and where.startswith(first))


def _verdict(rules: Sequence[Rule], operation: str, bucket: str) -> bool | _OfKeys:
    names = (operation, *_FOLLOWS.get(operation, ()))
    denied: list[str] = []
    allows: list[str] = []
    allowed_everywhere = False
    for rule in rules:
        if not _match(names, rule.deny or rule.allow):
            continue
        if _match((bucket,), [pattern for pattern in rule.buckets if "/" not in pattern]):
            if rule.deny:
                return False
            allowed_everywhere = True
        (denied if rule.deny else allows).extend(
            pattern for pattern in rule.buckets if _may_match_within(pattern, bucket)
        )
    if denied or (allows and not allowed_everywhere):
        return _OfKeys(tuple(denied), allowed_everywhere, tuple(allows))
    return allowed_everywhere


def _may_match_within(pattern: str, bucket: str) -> bool:
    """Whether a pattern of keys may match some key of the bucket."""
    first, slash, _ = pattern.partition("/")
    return bool(slash) and ("*" in first or first == bucket)


def _match(texts: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether any of the texts matches any of the patterns."""
    for pattern in patterns:
        for text in texts:
            if matches(pattern, text):
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
