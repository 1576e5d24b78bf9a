"""Request headers that describe an object, and answer headers that tell of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.request import RequestHead
from gateway.errors import (
    InvalidArgument,
    InvalidRequest,
    InvalidStorageClass,
    MetadataTooLarge,
    S3Error,
)
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import ObjectInfo
from gateway.s3.headers import (
    checksum_algorithm,
    checksum_type,
    info_headers,
    object_headers,
    read_conditions,
    response_overrides,
    with_hoisted,
    write_conditions,
)
from tests.s3.refusals import outcome


def head(*headers: tuple[str, str]) -> RequestHead:
    return RequestHead("PUT", "/b/k", "", headers)


def test_what_describes_the_object_is_kept_and_nothing_else() -> None:
    kept = object_headers(
        head(
            ("host", "x"),
            ("authorization", "secret"),
            ("content-type", "text/plain"),
            ("content-length", "3"),
            ("content-md5", "x"),
            ("cache-control", "no-store"),
            ("x-amz-meta-a", "1"),
            ("x-amz-storage-class", "STANDARD_IA"),
            ("x-amz-tagging", "a=b"),
            ("x-amz-date", "now"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
        )
    )
    assert kept == {
        "content-type": "text/plain",
        "cache-control": "no-store",
        "x-amz-meta-a": "1",
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-tagging": "a=b",
    }


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("aws-chunked", None),
        ("gzip,aws-chunked", "gzip"),
        ("AWS-CHUNKED, gzip", "gzip"),
        ("gzip", "gzip"),
        ("", None),
    ],
)
def test_the_framing_is_not_part_of_the_content_encoding(sent: str, kept: str | None) -> None:
    assert object_headers(head(("content-encoding", sent))).get("content-encoding") == kept


def test_metadata_sent_twice_is_one_value() -> None:
    kept = object_headers(head(("x-amz-meta-a", "1"), ("x-amz-meta-a", "2")))
    assert kept == {"x-amz-meta-a": "1,2"}


def test_metadata_that_is_not_ascii_travels_encoded() -> None:
    kept = object_headers(head(("x-amz-meta-a", "ÄMÄZÕÑ S3")))
    assert kept == {"x-amz-meta-a": "=?UTF-8?B?w4RNw4Raw5XDkSBTMw==?="}
    raw = object_headers(head(("x-amz-meta-a", "\udcc4")))
    assert raw == {"x-amz-meta-a": "=?UTF-8?B?w4Q=?="}


def test_metadata_cannot_break_a_line() -> None:
    with pytest.raises(InvalidArgument):
        object_headers(head(("x-amz-meta-a", "b\r\nx: y")))


def test_metadata_takes_2_kib() -> None:
    assert object_headers(head(("x-amz-meta-abc", "v" * 2045)))
    with pytest.raises(MetadataTooLarge):
        object_headers(head(("x-amz-meta-abc", "v" * 2046)))


@pytest.mark.parametrize("acl", ["private", "bucket-owner-full-control"])
def test_a_private_acl_is_taken(acl: str) -> None:
    assert object_headers(head(("x-amz-acl", acl))) == {}


@pytest.mark.parametrize(
    "header", [("x-amz-acl", "public-read"), ("x-amz-acl", ""), ("x-amz-grant-read", "id=x")]
)
def test_any_other_acl_is_not_supported(header: tuple[str, str]) -> None:
    with pytest.raises(NotImplementedS3):
        object_headers(head(header))


def test_a_storage_class_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidStorageClass):
        object_headers(head(("x-amz-storage-class", "CHEAP")))


def test_headers_in_a_presigned_query_count_as_headers() -> None:
    query = "X-Amz-Signature=s&X-Amz-Date=d&x-amz-meta-a=b%20c&x-amz-acl=private&prefix=p"
    presigned = RequestHead("PUT", "/b/k", query, (("x-amz-acl", "public-read"),))
    assert with_hoisted(presigned).headers == (
        ("x-amz-acl", "public-read"),
        ("x-amz-meta-a", "b c"),
    )
    unsigned = RequestHead("PUT", "/b/k", "x-amz-meta-a=b", ())
    assert with_hoisted(unsigned) is unsigned


def test_conditions_of_a_read_and_of_a_copy_source_are_told_apart() -> None:
    both = head(("if-match", '"a", "b"'), ("x-amz-copy-source-if-none-match", '"c"'))
    assert read_conditions(both) == Conditions(if_match=("a", "b"))
    assert read_conditions(both, "x-amz-copy-source-") == Conditions(if_none_match=("c",))


def test_conditions_of_a_write() -> None:
    assert write_conditions(head()) == WriteConditions()
    assert write_conditions(head(("if-none-match", "*"))) == WriteConditions(if_none_match_any=True)
    assert write_conditions(head(("if-match", '"e"'))) == WriteConditions(if_match="e")


@pytest.mark.parametrize(
    "headers",
    [
        (("if-none-match", '"e"'),),
        (("if-none-match", "*"), ("if-match", "*")),
        (("x-amz-if-match-size", "1"),),
        (("x-amz-if-match-last-modified-time", "Sun, 29 Nov 2026 19:16:21 GMT"),),
        (("x-amz-write-offset-bytes", "0"),),
    ],
)
def test_conditions_that_s3_does_not_take_on_a_write(headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(NotImplementedS3):
        write_conditions(head(*headers))


def test_checksum_algorithm_and_type_are_checked() -> None:
    assert checksum_algorithm(head(("x-amz-checksum-algorithm", "crc64nvme"))) == "CRC64NVME"
    assert checksum_type(head(("x-amz-checksum-type", "COMPOSITE"))) == "COMPOSITE"
    with pytest.raises(InvalidRequest):
        checksum_algorithm(head(("x-amz-checksum-algorithm", "MD4")))
    with pytest.raises(InvalidRequest):
        checksum_type(head(("x-amz-checksum-type", "HALF")))


def test_an_object_without_a_content_type_is_binary() -> None:
    info = ObjectInfo(
        etag="e",
        size_bytes=1,
        last_modified_ms=1_000_999,
        version_id="v",
        headers={"x-amz-storage-class": "STANDARD"},
        checksums={"CRC32": "AAAAAA=="},
        checksum_type="FULL_OBJECT",
    )
    plain = {
        "content-type": "binary/octet-stream",
        "etag": '"e"',
        "last-modified": "Thu, 01 Jan 1970 00:16:40 GMT",
        "accept-ranges": "bytes",
        "x-amz-version-id": "v",
    }
    assert info_headers(info, checksums=False) == plain
    assert info_headers(info, checksums=True) == plain | {
        "x-amz-checksum-crc32": "AAAAAA==",
        "x-amz-checksum-type": "FULL_OBJECT",
    }


def test_answer_headers_can_be_overridden_but_not_injected() -> None:
    assert response_overrides({"response-content-type": "a/b", "x": "y"}) == {"content-type": "a/b"}
    with pytest.raises(InvalidArgument):
        response_overrides({"response-expires": "x\r\nSet-Cookie: y"})


@given(
    st.lists(st.tuples(st.sampled_from(["x-amz-meta-a", "expires", "x-amz-tagging"]), st.text()))
)
def test_any_headers_are_kept_as_clean_text_or_refused(headers: list[tuple[str, str]]) -> None:
    found = outcome(object_headers, head(*headers))
    if isinstance(found, S3Error):
        assert found.status == 400
    else:
        assert all(value.encode() or not value for value in found.values())
