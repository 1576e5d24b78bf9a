"""What a batch asks for: understood, or refused by the place where it is off."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument, InvalidRequest, KeyTooLongError, S3Error
from gateway.model.ranges import RangeSpec
from gateway.s3.batch_request import DOCUMENT_BYTES, parse_batch
from gateway.store.batch import WantedObject
from tests.s3.batch_reading import document

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def test_a_batch_is_objects_in_order_with_their_ranges() -> None:
    batch = parse_batch(
        b'{"objects":[{"key":"b"},{"key":"a/\\u00e4","range":"bytes=2-3"},'
        b'{"key":"b","range":"bytes=-5"}],"format":"frames","strict":true}'
    )
    assert batch.objects == [
        WantedObject("b"),
        WantedObject("a/ä", RangeSpec(2, 3)),
        WantedObject("b", RangeSpec(None, 5)),
    ]
    assert (batch.format, batch.strict) == ("frames", True)


def test_format_and_strict_may_be_left_out() -> None:
    batch = parse_batch(document(["a"]))
    assert (batch.format, batch.strict) == ("tar", False)


def test_ten_thousand_objects_with_the_longest_keys_fit() -> None:
    body = document(["ä" * 512] * 10_000, format="frames")
    assert len(body) > DOCUMENT_BYTES
    body = json.dumps(json.loads(body), ensure_ascii=False).encode()
    assert len(body) < DOCUMENT_BYTES
    assert len(parse_batch(body).objects) == 10_000


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", InvalidRequest),
        (b"key", InvalidRequest),
        (b'{"objects":[{"key":"a"}]', InvalidRequest),
        (b'{"objects":[{"key":"a"}]} {}', InvalidRequest),
        (b'{"objects":[{"key":"\xff"}]}', InvalidRequest),
        (b'{"objects":[{"key":"\\ud800x"}]}', InvalidRequest),
        (b'{"objects":[{"key":"\\udc00"}]}', InvalidRequest),
        (b"[]", InvalidArgument),
        (b"{}", InvalidArgument),
        (b"[" * 1_000_000, InvalidArgument),
        (b'{"objects":' + b"[" * 1_000_000, InvalidArgument),
        (document([]), InvalidArgument),
        (document(["a"] * 10_001), InvalidArgument),
        (document(["a"] * 200_000), InvalidArgument),
        (document([""]), InvalidArgument),
        (document([{"key": 1}]), InvalidArgument),
        (document([{}]), InvalidArgument),
        (document([{"key": "a", "versionId": "v"}]), InvalidArgument),
        (document(["a"], format="zip"), InvalidArgument),
        (document(["a"], format=None), InvalidArgument),
        (document(["a"], strict=1), InvalidArgument),
        (document(["a"], Format="tar"), InvalidArgument),
        (document(["k" * 1025]), KeyTooLongError),
        (document(["ä" * 513]), KeyTooLongError),
        *(
            (document([{"key": "a", "range": wrong}]), InvalidArgument)
            for wrong in ("", "bytes=", "bytes=3-2", "bytes=0-1,3-4", "lines=0-1", "0-1", "x" * 65)
        ),
    ],
)
def test_anything_else_is_refused(body: bytes, error: type[S3Error]) -> None:
    with pytest.raises(error):
        parse_batch(body)


def test_a_refusal_says_where_and_no_more() -> None:
    with pytest.raises(InvalidArgument, match=r"\$\.objects\[1\]\.key"):
        parse_batch(document(["a", {"key": 1}]))
    with pytest.raises(InvalidArgument) as caught:
        parse_batch(document(["a"], **{"x" * 100_000: 1}))
    assert len(str(caught.value)) <= 500
    with pytest.raises(InvalidArgument) as caught:
        parse_batch(document(["a", {"key": "b", "range": "bytes=x"}]))
    assert caught.value.fields["ArgumentName"] == "objects[1].range"


@given(st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_no_document_is_answered_by_anything_but_an_s3_error(body: bytes) -> None:
    with suppress(InvalidArgument, InvalidRequest):
        assert parse_batch(body).objects


@given(st.lists(KEYS.filter(lambda key: len(key.encode()) <= 1024), min_size=1, max_size=20))
def test_keys_come_through_as_they_are(keys: list[str]) -> None:
    assert [each.key for each in parse_batch(document(keys)).objects] == keys
