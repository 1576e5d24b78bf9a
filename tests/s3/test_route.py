"""From a request's head to its operation."""

from urllib.parse import quote

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.request import RequestHead
from gateway.errors import (
    AccessForbidden,
    InvalidArgument,
    InvalidBucketName,
    InvalidURI,
    KeyTooLongError,
    MethodNotAllowed,
    S3Error,
)
from gateway.s3.operation import Operation
from gateway.s3.route import match
from tests.s3.refusals import outcome


def request(method: str, target: str, host: str = "127.0.0.1:9000", **headers: str) -> RequestHead:
    path, _, query = target.partition("?")
    pairs = [(name.replace("_", "-").lower(), value) for name, value in headers.items()]
    return RequestHead(method, path, query, (("host", host), *pairs))


def named(method: str, target: str, **headers: str) -> str:
    return match(request(method, target, **headers), None).name


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("GET", "/", "ListBuckets"),
        ("GET", "/b", "ListObjects"),
        ("GET", "/b/", "ListObjects"),
        ("GET", "/b?list-type=2&prefix=x", "ListObjectsV2"),
        ("GET", "/b?versions", "ListObjectVersions"),
        ("GET", "/b?uploads", "ListMultipartUploads"),
        ("GET", "/b?location", "GetBucketLocation"),
        ("GET", "/b?versioning", "GetBucketVersioning"),
        ("GET", "/b?acl", "GetBucketAcl"),
        ("GET", "/b?tagging", "GetBucketTagging"),
        ("GET", "/b?object-lock", "GetObjectLockConfiguration"),
        ("HEAD", "/b", "HeadBucket"),
        ("PUT", "/b", "CreateBucket"),
        ("PUT", "/b?cors", "PutBucketCors"),
        ("DELETE", "/b", "DeleteBucket"),
        ("DELETE", "/b?cors", "DeleteBucketCors"),
        ("DELETE", "/b?lifecycle", "DeleteBucketLifecycle"),
        ("GET", "/b?metrics", "ListBucketMetricsConfigurations"),
        ("GET", "/b?metrics&id=m", "GetBucketMetricsConfiguration"),
        ("POST", "/b?delete", "DeleteObjects"),
        ("POST", "/b?feedrack-batch", "GetObjects"),
        ("POST", "/b?feedrack-batch=", "GetObjects"),
        ("POST", "/b", "PostObject"),
        ("GET", "/b/k", "GetObject"),
        ("GET", "/b/k?partNumber=3", "GetObject"),
        ("GET", "/b/k?versionId=v", "GetObject"),
        ("GET", "/b/k?uploadId=u", "ListParts"),
        ("GET", "/b/k?tagging", "GetObjectTagging"),
        ("GET", "/b/k?acl", "GetObjectAcl"),
        ("GET", "/b/k?attributes", "GetObjectAttributes"),
        ("GET", "/b/k?retention", "GetObjectRetention"),
        ("GET", "/b/k?torrent", "GetObjectTorrent"),
        ("HEAD", "/b/k", "HeadObject"),
        ("PUT", "/b/k", "PutObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("PUT", "/b/k?renameObject", "RenameObject"),
        ("PUT", "/b/k?legal-hold", "PutObjectLegalHold"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("POST", "/b/k?restore", "RestoreObject"),
        ("POST", "/b/k?select&select-type=2", "SelectObjectContent"),
        ("DELETE", "/b/k", "DeleteObject"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        ("DELETE", "/b/k?tagging", "DeleteObjectTagging"),
    ],
)
def test_every_operation_is_found_by_method_and_sub_resource(
    method: str, target: str, operation: str
) -> None:
    assert named(method, target) == operation


# Names that AWS has given up, and operations of other endpoints than a bucket's.
_ELSEWHERE = {
    "GetBucketLifecycle",
    "GetBucketNotification",
    "ListDirectoryBuckets",
    "PutBucketLifecycle",
    "PutBucketNotification",
    "WriteGetObjectResponse",
}


def test_every_operation_that_botocore_knows_has_its_name_here() -> None:
    service = botocore.session.get_session().get_service_model("s3")
    for name in set(service.operation_names) - _ELSEWHERE:
        operation = service.operation_model(name)
        target = operation.http["requestUri"].replace("{Bucket}", "b").replace("{Key+}", "k")
        headers = {}
        shape = operation.input_shape
        for member in shape.required_members if shape is not None else ():
            where = shape.members[member].serialization  # type: ignore[union-attr]
            if where.get("location") == "querystring":
                target += f"{'&' if '?' in target else '?'}{where['name']}=1"
            elif where.get("location") == "header":
                headers[where["name"]] = "x"
        assert named(operation.http["method"], target, **headers) == name


@pytest.mark.parametrize(
    "target", ["/b?novelty", "/b?novelty=&x-id=1", "/b/k?novelty", "/b/k?versionId=v&novelty"]
)
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_sub_resource_of_tomorrow_never_becomes_a_write_of_what_it_belongs_to(
    method: str, target: str
) -> None:
    assert named(method, target) == "Unknown"


@pytest.mark.parametrize(
    ("method", "target"),
    [("DELETE", "/b?uploads"), ("DELETE", "/b/k?uploads"), ("PUT", "/b?delete"), ("PUT", "/b/k?x")],
)
def test_a_sub_resource_of_another_method_is_no_write_either(method: str, target: str) -> None:
    assert named(method, target) == "Unknown"


def test_a_parameter_with_a_value_is_ignored() -> None:
    assert named("PUT", "/b/k?x-id=PutObject") == "PutObject"
    assert named("DELETE", "/b?trace=1") == "DeleteBucket"
    assert named("PUT", "/b/k?X-Amz-Security-Token=&x-amz-acl=") == "PutObject"


def test_a_copy_source_makes_a_put_a_copy() -> None:
    assert named("PUT", "/b/k", x_amz_copy_source="/s/k") == "CopyObject"
    part = "/b/k?partNumber=1&uploadId=u"
    assert named("PUT", part, x_amz_copy_source="/s/k") == "UploadPartCopy"


@pytest.mark.parametrize("target", ["/b/k?uploadId=u", "/b/k?partNumber=1"])
def test_half_an_upload_part_never_becomes_a_put_of_the_object(target: str) -> None:
    with pytest.raises(InvalidArgument):
        named("PUT", target)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/b//a", "/a"),
        ("/b/a//b/", "a//b/"),
        ("/b/../a/./b", "../a/./b"),
        ("/b/a+b", "a+b"),
        ("/b/a%2Bb%20c", "a+b c"),
        ("/b/a%2Fb", "a/b"),
        ("/b/%E2%82%AC", "€"),
        ("/b/€", "€"),
        ("/b/%00", "\0"),
        ("/b/%25", "%"),
    ],
)
def test_a_key_is_what_the_raw_path_says(path: str, key: str) -> None:
    assert match(request("GET", path), None).key == key


@pytest.mark.parametrize(
    "path", ["/b/%", "/b/%zz", "/b/%ff", "/b/%c3", "/b/%ed%a0%80", "/b/\udcff"]
)
def test_a_key_that_is_not_utf_8_is_an_invalid_uri(path: str) -> None:
    with pytest.raises(InvalidURI):
        match(request("GET", path), None)


def test_a_key_may_have_1024_bytes_and_no_more() -> None:
    assert match(request("GET", "/b/" + "%C3%A9" * 512), None).key == "é" * 512
    with pytest.raises(KeyTooLongError):
        match(request("GET", "/b/" + "%C3%A9" * 512 + "a"), None)


@pytest.mark.parametrize(
    "host",
    ["train.s3.example", "train.s3.example:9000", "TRAIN.S3.Example", "train.s3.example."],
)
def test_a_host_below_the_domain_names_the_bucket(host: str) -> None:
    found = match(request("GET", "/a/b?x=1", host), "s3.example")
    assert found == Operation("GetObject", "train", "a/b", {"x": "1"})


def test_a_bucket_of_a_virtual_host_may_have_dots() -> None:
    found = match(request("PUT", "/", "a.b.s3.example"), "s3.example")
    assert (found.name, found.bucket) == ("CreateBucket", "a.b")


@pytest.mark.parametrize(
    "host", ["s3.example", "s3.example:80", "127.0.0.1:9000", "[::1]:9000", ""]
)
def test_any_other_host_means_the_path_names_the_bucket(host: str) -> None:
    assert match(request("GET", "/b/k", host), "s3.example").bucket == "b"


@pytest.mark.parametrize("path", ["//k", "/../k", "/%2e%2e/k", "/a%2Fb/k", "/b%00/k", "/-b/k"])
def test_what_cannot_be_a_bucket_is_refused(path: str) -> None:
    with pytest.raises(InvalidBucketName):
        match(request("GET", path), None)


def test_a_cors_preflight_is_forbidden_and_odd_methods_are_not_allowed() -> None:
    with pytest.raises(AccessForbidden):
        named("OPTIONS", "/b/k")
    for method in ("TRACE", "CONNECT", "PATCH", "PROPFIND"):
        with pytest.raises(MethodNotAllowed):
            named(method, "/b/k")
    with pytest.raises(MethodNotAllowed):
        named("PUT", "/")


@pytest.mark.parametrize("target", ["http://127.0.0.1:9000/b/k", "*", "b/k", "/b/k#x"])
def test_a_target_that_is_no_path_is_an_invalid_uri(target: str) -> None:
    with pytest.raises(InvalidURI):
        named("GET", target)


def test_the_first_of_repeated_parameters_counts() -> None:
    assert match(request("GET", "/b?prefix=a&prefix=b"), None).query == {"prefix": "a"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_any_key_survives_the_path(key: str) -> None:
    assert match(request("GET", "/b/" + quote(key, safe="")), None).key == key


@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"]),
    st.text(max_size=60),
    st.text(max_size=60),
    st.text(max_size=30),
)
def test_no_target_is_answered_with_anything_but_an_operation_or_an_s3_error(
    method: str, path: str, query: str, host: str
) -> None:
    head = RequestHead(method, f"/{path}", query, (("host", host),))
    found = outcome(match, head, "s3.example")
    assert 400 <= found.status < 500 if isinstance(found, S3Error) else found.name
