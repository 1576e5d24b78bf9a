"""The rules for tag sets."""

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, InvalidArgument, InvalidTag, S3Error
from gateway.s3.tags import BUCKET_LIMIT, OBJECT_LIMIT, check_tags, parse_tagging_header
from tests.s3.refusals import outcome

WORD = st.text(alphabet="abcXYZ019 +-=._:/@äß漢", min_size=1, max_size=128).filter(
    lambda text: not text.startswith("aws:")
)


def test_an_object_takes_ten_tags_and_a_bucket_fifty() -> None:
    tags = [(f"k{number}", "v") for number in range(51)]
    assert len(check_tags(tags[:10], OBJECT_LIMIT)) == 10
    assert len(check_tags(tags[:50], BUCKET_LIMIT)) == 50
    with pytest.raises(BadRequest):
        check_tags(tags[:11], OBJECT_LIMIT)
    with pytest.raises(BadRequest):
        check_tags(tags, BUCKET_LIMIT)


@pytest.mark.parametrize(
    "tag", [("", "v"), ("k" * 129, "v"), ("k", "v" * 257), ("k<", "v"), ("k", "\n"), ("aws:k", "")]
)
def test_a_tag_that_s3_would_not_take_is_invalid(tag: tuple[str, str]) -> None:
    with pytest.raises(InvalidTag):
        check_tags([tag], OBJECT_LIMIT)


def test_the_longest_tag_is_taken() -> None:
    assert check_tags([("k" * 128, "v" * 256)], OBJECT_LIMIT) == (("k" * 128, "v" * 256),)


def test_a_key_comes_once() -> None:
    with pytest.raises(InvalidTag):
        check_tags([("k", "1"), ("k", "2")], OBJECT_LIMIT)


@given(st.dictionaries(WORD, WORD, max_size=10))
def test_a_tagging_header_says_what_was_encoded(tags: dict[str, str]) -> None:
    assert dict(parse_tagging_header(urlencode(tags))) == tags


@pytest.mark.parametrize("header", ["a=%", "a=%ff", "%zz=1"])
def test_a_header_that_is_not_url_encoded_is_an_invalid_argument(header: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_tagging_header(header)


def test_a_header_may_leave_out_values() -> None:
    assert parse_tagging_header("a&b=") == (("a", ""), ("b", ""))
    assert parse_tagging_header("") == ()


@given(st.text(max_size=80))
def test_any_header_is_tags_or_an_s3_error(header: str) -> None:
    found = outcome(parse_tagging_header, header)
    assert found.status == 400 if isinstance(found, S3Error) else len(found) <= 10
