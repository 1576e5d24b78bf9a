"""What an origin's failures mean: the client's error, a 503, or the operator's to fix."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
)

from gateway import errors
from gateway.errors import (
    AccessDenied,
    FeedrackError,
    InvalidArgument,
    InvalidRange,
    MethodNotAllowed,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    NoSuchVersion,
    OriginError,
    PreconditionFailed,
    S3Error,
    TierUnavailable,
)
from gateway.tiers.origin_s3.errors import Asked, from_answer, from_exception

OBJECT = Asked("main", "HeadObject", "bucket", "key")
VERSION = Asked("main", "HeadObject", "bucket", "key", "v1")
BUCKET = Asked("main", "HeadBucket", "bucket")


@pytest.mark.parametrize(
    ("asked", "status", "code", "kind"),
    [
        (OBJECT, 404, "NoSuchKey", NoSuchKey),
        (OBJECT, 404, "NoSuchUpload", NoSuchUpload),
        (OBJECT, 404, "404", NoSuchKey),
        (VERSION, 404, "404", NoSuchVersion),
        (BUCKET, 404, "404", NoSuchBucket),
        (OBJECT, 403, "403", AccessDenied),
        (OBJECT, 403, "", AccessDenied),
        (OBJECT, 405, "405", MethodNotAllowed),
        (OBJECT, 412, "412", PreconditionFailed),
        (OBJECT, 416, "416", InvalidRange),
        (OBJECT, 501, "NotImplemented", errors.NotImplemented),
        (OBJECT, 409, "SomethingOfTheirOwn", OriginError),
    ],
)
def test_errors_about_the_request_come_through_as_themselves(
    asked: Asked, status: int, code: str, kind: type[S3Error]
) -> None:
    error = from_answer(asked, status, code, "said so", {})
    assert type(error) is kind
    assert isinstance(error, S3Error)
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"),
        (502, ""),
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (504, "504"),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
    ],
)
def test_a_busy_origin_is_unavailable(status: int, code: str) -> None:
    assert isinstance(from_answer(OBJECT, status, code, "", {}), TierUnavailable)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (403, "RequestTimeTooSkewed"),
        (400, "AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect"),
        (301, "301"),
        (307, "TemporaryRedirect"),
    ],
)
def test_what_the_operator_must_fix_is_unavailable_and_loud(
    status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = from_answer(OBJECT, status, code, "", {})
    assert isinstance(error, TierUnavailable)
    assert error.retry_after_seconds > 1
    captured = capsys.readouterr()
    assert "origin_misconfigured" in captured.out + captured.err


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7), ("0", 1), ("99999", 300), ("Fri, 31 Dec", 1), ("-1", 1)]
)
def test_retry_after_is_believed_within_reason(value: str, seconds: int) -> None:
    error = from_answer(OBJECT, 503, "SlowDown", "", {"retry-after": value})
    assert isinstance(error, TierUnavailable)
    assert error.retry_after_seconds == seconds


def test_a_delete_marker_keeps_its_headers() -> None:
    headers = {"x-amz-delete-marker": "true", "x-amz-version-id": "v1", "server": "x"}
    error = from_answer(VERSION, 405, "405", "", headers)
    assert isinstance(error, MethodNotAllowed)
    assert error.headers == {"x-amz-delete-marker": "true", "x-amz-version-id": "v1"}


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (EndpointConnectionError(endpoint_url="http://x"), TierUnavailable),
        (ConnectTimeoutError(endpoint_url="http://x"), TierUnavailable),
        (TimeoutError(), TierUnavailable),
        (ConnectionResetError(), TierUnavailable),
        (NoCredentialsError(), TierUnavailable),
        (ParamValidationError(report="odd"), InvalidArgument),
        (ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject"), TierUnavailable),
        (
            ClientError(
                {
                    "Error": {"Code": "NoSuchKey", "Message": "gone"},
                    "ResponseMetadata": {
                        "HTTPStatusCode": 404,
                        "HTTPHeaders": {},
                        "HostId": "",
                        "RequestId": "",
                        "RetryAttempts": 0,
                    },
                },
                "GetObject",
            ),
            NoSuchKey,
        ),
    ],
)
def test_what_is_raised_has_a_meaning(raised: Exception, kind: type[FeedrackError]) -> None:
    assert type(from_exception(OBJECT, raised)) is kind
