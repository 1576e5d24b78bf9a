"""Every S3 code is a class, and an origin's error comes through as itself."""

import builtins
import re

import pytest

from gateway import errors
from gateway.errors import (
    Corrupt,
    FeedrackError,
    InternalError,
    NoSuchKey,
    OriginError,
    S3Error,
    TierFull,
    TierUnavailable,
    VersionChanged,
    from_code,
)

CODES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type)
    and issubclass(value, S3Error)
    and value not in (S3Error, OriginError)
]


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_a_class_is_its_code(kind: type[S3Error]) -> None:
    error = kind()
    assert error.code == kind.__name__
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", error.code)
    assert error.status == 304 or 400 <= error.status <= 503
    assert error.message == str(error) == kind.default_message != ""
    assert isinstance(error, FeedrackError)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_an_origins_error_becomes_the_class_of_its_code(kind: type[S3Error]) -> None:
    error = from_code(kind.code, kind.status, "said the origin")
    assert type(error) is kind
    assert error.message == "said the origin"
    assert from_code(kind.code, kind.status, "").message == kind.default_message


# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AccessDenied", 403),
        ("BadDigest", 400),
        ("BucketAlreadyOwnedByYou", 409),
        ("BucketNotEmpty", 409),
        ("EntityTooSmall", 400),
        ("InternalError", 500),
        ("InvalidRange", 416),
        ("KeyTooLongError", 400),
        ("MalformedXML", 400),
        ("MethodNotAllowed", 405),
        ("MissingContentLength", 411),
        ("NoSuchBucket", 404),
        ("NoSuchKey", 404),
        ("NoSuchUpload", 404),
        ("NoSuchVersion", 404),
        ("NotImplemented", 501),
        ("NotModified", 304),
        ("PreconditionFailed", 412),
        ("ServiceUnavailable", 503),
        ("SignatureDoesNotMatch", 403),
        ("SlowDown", 503),
    ],
)
def test_statuses_are_those_of_aws(code: str, status: int) -> None:
    assert {kind.code: kind.status for kind in CODES}[code] == status


def test_a_code_without_a_class_comes_through_as_it_came() -> None:
    error = from_code("XMinioStorageFull", 507, "full")
    assert type(error) is OriginError
    assert (error.code, error.status, error.message) == ("XMinioStorageFull", 507, "full")
    assert from_code("Other", 418, "").code == "Other"
    assert OriginError.code == "OriginError"
    assert OriginError.status == 502


def test_a_known_code_with_another_status_keeps_the_origins_status() -> None:
    error = from_code("NoSuchKey", 410, "gone for good")
    assert (error.code, error.status) == ("NoSuchKey", 410)
    assert NoSuchKey.status == 404


def test_an_origin_cannot_name_our_own_classes() -> None:
    for name in ("OriginError", "S3Error", "TierUnavailable", ""):
        error = from_code(name, 502, "odd")
        assert type(error) is OriginError
        assert (error.code, error.status) == (name, 502)


def test_an_error_carries_its_message_fields_and_headers() -> None:
    error = NoSuchKey("no such thing", fields={"Key": "a"}, headers={"x": "y"})
    assert (error.message, error.fields, error.headers) == (
        "no such thing",
        {"Key": "a"},
        {"x": "y"},
    )
    assert NoSuchKey().fields == {}
    assert NoSuchKey().headers == {}


@pytest.mark.parametrize("kind", [TierUnavailable, TierFull, Corrupt, VersionChanged])
def test_what_tiers_say_is_no_s3_answer(kind: type[FeedrackError]) -> None:
    assert not issubclass(kind, S3Error)
    assert str(kind("why")) == "why"


def test_an_unavailable_tier_says_when_to_come_again() -> None:
    assert TierUnavailable("away").retry_after_seconds == 1
    assert TierUnavailable("away", retry_after_seconds=7).retry_after_seconds == 7


def test_s3s_not_implemented_does_not_pass_for_pythons() -> None:
    assert errors.NotImplemented is not builtins.NotImplemented
    assert issubclass(errors.NotImplemented, S3Error)
    assert S3Error.code == InternalError.code
