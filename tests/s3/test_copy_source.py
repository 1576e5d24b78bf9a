"""What a copy reads from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument, KeyTooLongError, S3Error
from gateway.model.ranges import ByteRange
from gateway.s3.copy_source import CopySource, parse_copy_source, parse_source_range
from tests.s3.refusals import outcome

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("header", "source"),
    [
        ("/b/k", CopySource("b", "k")),
        ("b/k", CopySource("b", "k")),
        ("b/a/b//c", CopySource("b", "a/b//c")),
        ("b/a%20b+c", CopySource("b", "a b+c")),
        ("b%2Fk", CopySource("b", "k")),
        ("b/k?versionId=v%2F1", CopySource("b", "k", "v/1")),
        ("b/k?x", CopySource("b", "k?x")),
        ("b/k%3FversionId=1", CopySource("b", "k?versionId=1")),
    ],
)
def test_a_source_is_bucket_key_and_perhaps_a_version(header: str, source: CopySource) -> None:
    assert parse_copy_source(header) == source


@pytest.mark.parametrize(
    "header",
    ["", "/", "b", "b/", "/b/", "//k", "b/%ff", "b/%z", "b/k?versionId=", "arn:aws:s3:::b/k"],
)
def test_what_is_not_that_is_an_invalid_argument(header: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_copy_source(header)


def test_a_source_key_has_the_limit_of_every_key() -> None:
    with pytest.raises(KeyTooLongError):
        parse_copy_source("b/" + "k" * 1025)


@given(TEXT, st.none() | TEXT)
def test_a_source_survives_its_own_header(key: str, version_id: str | None) -> None:
    source = CopySource("b", key, version_id)
    assert parse_copy_source(source.header("b")) == source


@given(st.text(max_size=80))
def test_any_other_header_is_a_source_or_an_s3_error(header: str) -> None:
    found = outcome(parse_copy_source, header)
    assert found.status == 400 if isinstance(found, S3Error) else found.bucket and found.key


def test_a_source_range_has_both_ends() -> None:
    assert parse_source_range(None) is None
    assert parse_source_range("bytes=0-0") == ByteRange(0, 1)
    assert parse_source_range("bytes=5-9") == ByteRange(5, 10)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes=",
        "bytes=1-",
        "bytes=-1",
        "bytes=2-1",
        "0-1",
        "bytes=0-1,3-4",
        "bytes=\u0660-\u0661",
    ],
)
def test_any_other_source_range_is_an_invalid_argument(header: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_source_range(header)
