"""Range headers are read as S3 reads them, and chunks tile what was asked for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRange
from gateway.model.objects import ObjectRef, ObjectVersion
from gateway.model.ranges import ByteRange, RangeSpec, parse_range, span, spans

SIZES = st.one_of(st.integers(0, 40), st.integers(0, 5 * 2**40))
POSITIONS = st.none() | st.integers(0, 50) | st.integers(0, 10**20 - 1)


def version(size_bytes: int) -> ObjectVersion:
    return ObjectVersion(ObjectRef("main", "train", "a"), "0" * 32, size_bytes)


@pytest.mark.parametrize(
    ("header", "size_bytes", "start", "stop"),
    [
        ("bytes=0-0", 10, 0, 1),
        ("bytes=0-9", 10, 0, 10),
        ("bytes=2-5", 10, 2, 6),
        ("bytes=9-", 10, 9, 10),
        ("bytes=0-", 10, 0, 10),
        ("bytes=5-999", 10, 5, 10),
        ("bytes=-3", 10, 7, 10),
        ("bytes=-10", 10, 0, 10),
        ("bytes=-11", 10, 0, 10),
        ("bytes=-99999999999999999999", 10, 0, 10),
        ("bytes=3-99999999999999999999", 10, 3, 10),
        ("bytes=00000000000000000001-2", 10, 1, 3),
        ("Bytes=1-2", 10, 1, 3),
        (" bytes= 1 - 2 ", 10, 1, 3),
    ],
)
def test_one_range_is_the_bytes_it_names(
    header: str, size_bytes: int, start: int, stop: int
) -> None:
    spec = parse_range(header)
    assert spec is not None
    assert spec.resolve(size_bytes) == ByteRange(start, stop)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=--1",
        "bytes=-1-",
        "bytes=1-2-3",
        "bytes=5-4",
        "bytes=1-0",
        "bytes=0-1,4-5",
        "bytes=0-1,",
        "bytes=+1-2",
        "bytes=-+2",
        "bytes=1.0-2",
        "bytes=0x1-2",
        "bytes=a-b",
        "bytes 0-1",
        "bytes=1 2-3",
        "items=0-1",
        "bytes=\u0661-\u0662",
        "bytes=\u00b2-3",
        "bytes=\uff10-\uff11",
        "bytes=100000000000000000000-",
        "bytes=0-" + "9" * 5000,
        "bytes=0-1\nbytes=2-3",
    ],
)
def test_what_is_not_one_valid_range_is_ignored(header: str | None) -> None:
    assert parse_range(header) is None


@pytest.mark.parametrize(
    "header", ["bytes=10-", "bytes=10-12", "bytes=99999999999999999999-", "bytes=-0"]
)
def test_a_range_past_the_end_is_refused_with_the_size(header: str) -> None:
    spec = parse_range(header)
    assert spec is not None
    with pytest.raises(InvalidRange) as refused:
        spec.resolve(10)
    assert refused.value.status == 416
    assert refused.value.headers == {"Content-Range": "bytes */10"}
    assert refused.value.fields["ActualObjectSize"] == "10"
    assert refused.value.fields["RangeRequested"] == str(spec)


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=1-2", "bytes=-0"])
def test_no_range_of_an_empty_object_is_satisfiable(header: str) -> None:
    spec = parse_range(header)
    assert spec is not None
    with pytest.raises(InvalidRange) as refused:
        spec.resolve(0)
    assert refused.value.headers == {"Content-Range": "bytes */0"}


@pytest.mark.parametrize("header", ["bytes=-1", "bytes=-524288"])
def test_but_the_last_bytes_of_an_empty_object_are_none(header: str) -> None:
    spec = parse_range(header)
    assert spec is not None
    assert spec.resolve(0) == ByteRange(0, 0)


@given(st.text() | st.text("bytes=-0123456789, \t\u0661", max_size=30))
def test_any_header_is_read_or_ignored(header: str) -> None:
    spec = parse_range(header)
    assert spec is None or parse_range(str(spec)) == spec


@given(POSITIONS, POSITIONS)
def test_a_range_comes_back_from_its_header(first: int | None, last: int | None) -> None:
    spec = RangeSpec(first, last)
    valid = first is not None or last is not None
    if first is not None and last is not None:
        valid = first <= last
    assert parse_range(str(spec)) == (spec if valid else None)


@given(POSITIONS, POSITIONS, SIZES)
def test_what_is_resolved_lies_within_the_object(
    first: int | None, last: int | None, size_bytes: int
) -> None:
    spec = parse_range(str(RangeSpec(first, last)))
    if spec is None:
        return
    try:
        wanted = spec.resolve(size_bytes)
    except InvalidRange:
        assert (first is None and last == 0) or (first is not None and first >= size_bytes)
        return
    assert 0 <= wanted.start <= wanted.stop <= size_bytes
    assert (wanted.size_bytes > 0) == (size_bytes > 0)
    if size_bytes:
        assert parse_range(wanted.header()) == RangeSpec(wanted.start, wanted.stop - 1)


def test_content_range_counts_from_zero_and_includes_the_last() -> None:
    assert ByteRange(2, 6).content_range(10) == "bytes 2-5/10"
    assert ByteRange(2, 6).size_bytes == 4


@given(st.data(), st.integers(1, 2**20), st.integers(1, 1000), st.integers(0, 7))
def test_the_chunks_of_a_range_tile_it(
    data: st.DataObject, chunk_size_bytes: int, chunks: int, rest: int
) -> None:
    size_bytes = max(1, chunk_size_bytes * chunks - rest)
    start = data.draw(st.integers(0, size_bytes - 1))
    stop = data.draw(st.integers(start + 1, min(size_bytes, start + 50 * chunk_size_bytes)))
    touched = list(spans(version(size_bytes), ByteRange(start, stop), chunk_size_bytes))
    assert touched[0].start <= start < touched[0].stop
    assert touched[-1].start < stop <= touched[-1].stop
    for before, after in pairwise(touched):
        assert before.stop == after.start
        assert before.number + 1 == after.number
    for one in touched:
        assert one == span(version(size_bytes), one.number, chunk_size_bytes)
        assert one.start == one.number * chunk_size_bytes
        assert 0 < one.size_bytes <= chunk_size_bytes
        assert one.stop <= size_bytes


@given(st.integers(1, 2**20), st.integers(1, 100), st.integers(0, 7))
def test_the_chunks_of_an_object_hold_each_byte_once(
    chunk_size_bytes: int, chunks: int, rest: int
) -> None:
    size_bytes = max(1, chunk_size_bytes * chunks - rest)
    whole = spans(version(size_bytes), ByteRange(0, size_bytes), chunk_size_bytes)
    assert sum(one.size_bytes for one in whole) == size_bytes


def test_an_empty_range_touches_no_chunk() -> None:
    assert list(spans(version(0), ByteRange(0, 0), 8)) == []
    assert list(spans(version(20), ByteRange(8, 8), 8)) == []
