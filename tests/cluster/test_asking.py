"""Questions between nodes: what is asked arrives, and rubbish is told to be."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.objects import ObjectRef, ObjectVersion, Span
from gateway.peers.request import WrongRequestError, parse_request
from gateway.tiers.peers.asking import (
    HeadQuestion,
    Level,
    SpanQuestion,
    WrongQuestionError,
    head_question,
    query_of,
    span_question,
)

texts = st.text(st.characters(), min_size=1, max_size=30)
LEVELS: tuple[Level, ...] = ("rack", "cluster", "held", "partial")
levels = st.sampled_from(LEVELS)


@st.composite
def refs(draw: st.DrawFn) -> ObjectRef:
    return ObjectRef(draw(texts), draw(texts), draw(texts), draw(st.none() | texts))


@st.composite
def span_questions(draw: st.DrawFn) -> SpanQuestion:
    size = draw(st.integers(1, 2**40))
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    offset = draw(st.integers(0, stop - start - 1))
    return SpanQuestion(
        Span(ObjectVersion(draw(refs()), draw(texts), size), draw(st.integers(0, 9)), start, stop),
        draw(levels),
        offset,
        draw(st.integers(offset + 1, stop - start)),
        draw(st.integers(0, stop - start)),
    )


@given(span_questions())
def test_a_question_for_bytes_arrives_as_it_was_asked(question: SpanQuestion) -> None:
    target = question.target()
    assert span_question(query_of(target.partition("?")[2])) == question
    assert parse_request(f"GET {target} HTTP/1.1".encode("ascii")).target == target


@given(refs(), levels, st.none() | st.floats(0, 1e9), st.integers(0, 2**30), st.booleans())
def test_a_question_for_a_head_arrives_as_it_was_asked(
    ref: ObjectRef, level: object, freshness: float | None, first: int, checksums: bool
) -> None:
    question = HeadQuestion(ref, level, freshness, first, checksums)  # type: ignore[arg-type]
    assert head_question(query_of(question.target().partition("?")[2])) == question


fields = st.dictionaries(
    st.sampled_from(
        [
            "origin",
            "bucket",
            "key",
            "etag",
            "size",
            "number",
            "start",
            "stop",
            "offset",
            "until",
            "level",
            "have",
            "fresh",
            "first",
            "checksums",
            "version",
        ]
    ),
    st.sampled_from(["", "0", "1", "-1", "1e9", "nan", "inf", "9" * 30, "rack", "٣", "x"]),
)


@given(fields)
def test_a_wrong_question_is_told_to_be_wrong(query: dict[str, str]) -> None:
    for read in (span_question, head_question):
        with contextlib.suppress(WrongQuestionError):
            read(query)


@given(st.text(max_size=200))
def test_any_query_is_read_or_refused(raw: str) -> None:
    with contextlib.suppress(WrongQuestionError):
        query_of(raw)


heads = st.lists(
    st.sampled_from(
        [
            b"GET",
            b" ",
            b"/v1/span",
            b"HTTP/1.1",
            b"\r\n",
            b"\n",
            b"host: x",
            b"a: b",
            b"\x00",
            b"\xff",
            b"content-length: 5",
            b"content-length: -1",
            b"transfer-encoding: chunked",
            b":",
        ]
    ),
    max_size=14,
).map(b"".join)


@given(heads | st.binary(max_size=200))
def test_any_head_is_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WrongRequestError):
        parse_request(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /v1/span HTTP/1.0",
        b"GET http://other/v1/span HTTP/1.1",
        b"GET /v1/span HTTP/1.1\r\na: 1\r\na: 2",
        b"GET /v1/span HTTP/1.1\r\nA: 1\r\na: 2",
        b"GET /v1/span HTTP/1.1\r\ntransfer-encoding: chunked",
        b"GET /v1/span HTTP/1.1\r\ncontent-length: 99999999",
        b"GET /v1/span HTTP/1.1\r\n folded: yes",
        b"GET /v1/span HTTP/1.1\r\n" + b"a: b\r\n" * 65,
    ],
)
def test_what_no_peer_sends_is_no_request(raw: bytes) -> None:
    with pytest.raises(WrongRequestError):
        parse_request(raw)
