"""S3's headers to our words and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_s3.headers import content_range, object_info, outgoing, put_result

ANSWER = {
    "etag": '"abc"',
    "last-modified": "Tue, 02 Jan 2024 03:04:05 GMT",
    "content-length": "10",
    "content-type": "text/plain",
    "content-encoding": "gzip,aws-chunked",
    "x-amz-meta-a": "1",
    "x-amz-storage-class": "GLACIER_IR",
    "x-amz-version-id": "v1",
    "x-amz-request-id": "r",
    "x-amz-id-2": "i",
    "x-amz-checksum-sha256": "x=-2",
    "x-amz-mp-parts-count": "2",
    "server": "AmazonS3",
}


def test_what_describes_the_object_is_kept_and_nothing_else() -> None:
    info = object_info(ANSWER, 10, checksums_known=True)
    assert info is not None
    assert info.headers == {
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "x-amz-meta-a": "1",
        "x-amz-storage-class": "GLACIER_IR",
    }
    assert (info.etag, info.version_id, info.size_bytes) == ("abc", "v1", 10)
    assert info.last_modified_ms == 1_704_164_645_000
    assert (info.checksums, info.checksum_type) == ({"SHA256": "x=-2"}, "COMPOSITE")


def test_without_an_etag_there_is_no_version() -> None:
    assert object_info({}, 10, checksums_known=True) is None


def test_a_write_answers_with_what_the_client_may_see() -> None:
    result = put_result(
        {"etag": '"abc"', "x-amz-request-id": "r", "x-amz-server-side-encryption": "AES256"},
        {"ETag": '"def-2"', "ChecksumCRC32": "AAAAAA==-2", "ChecksumType": "COMPOSITE"},
    )
    assert result.etag == "def-2"
    assert result.checksums == {"CRC32": "AAAAAA==-2"}
    assert result.checksum_type == "COMPOSITE"
    assert result.headers == {"x-amz-server-side-encryption": "AES256"}


@pytest.mark.parametrize(
    ("value", "sent"),
    [("aws-chunked", None), ("gzip, aws-chunked", "gzip"), ("br,gzip", "br,gzip")],
)
def test_framing_is_not_an_encoding(value: str, sent: str | None) -> None:
    assert outgoing({"content-encoding": value}).get("content-encoding") == sent


@given(st.text())
def test_a_header_goes_out_as_it_is_or_not_at_all(value: str) -> None:
    assert outgoing({"x-amz-meta-a": value}) == {"x-amz-meta-a": value}


def test_what_is_not_utf8_does_not_go_out() -> None:
    with pytest.raises(InvalidArgument):
        outgoing({"x-amz-meta-a": "\ud800"})


@given(first=st.integers(0, 10**12), size=st.integers(1, 10**12), more=st.integers(0, 10**12))
def test_content_range_is_read_back(first: int, size: int, more: int) -> None:
    wanted = ByteRange(first, first + size)
    total = wanted.stop + more
    assert content_range(wanted.content_range(total)) == (wanted, total)


@given(st.one_of(st.none(), st.text(), st.from_regex(r"bytes [0-9*]*-?[0-9]*/[0-9*]*")))
def test_any_content_range_is_one_or_none(value: str | None) -> None:
    found = content_range(value)
    if found is not None:
        wanted, total = found
        assert 0 <= wanted.start < wanted.stop <= total
