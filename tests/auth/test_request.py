"""The head of a request keeps what was on the wire."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.auth.request import RequestHead
from gateway.errors import InvalidURI


def head(query: str) -> RequestHead:
    return RequestHead("GET", "/", query, (("a", "1"), ("a", "2")))


def test_the_first_of_two_headers_is_found_and_an_absent_one_is_none() -> None:
    assert head("").header("a") == "1"
    assert head("").header("b") is None


def test_the_values_of_one_header_are_joined_in_wire_order() -> None:
    repeated = RequestHead("GET", "/", "", (("x", "1"), ("y", "2"), ("x", "0")))
    assert repeated.fields == {"x": "1,0", "y": "2"}
    assert repeated.header("x") == "1"
    assert RequestHead("GET", "/", "", (("x", "1"), ("y", "2"))).fields == {"x": "1", "y": "2"}


def test_a_plain_head_is_the_same_as_one_of_pairs() -> None:
    fields = {"host": "h", "range": "bytes=0-1"}
    plain = RequestHead.plain("GET", "/a", "b=c", tuple(fields.items()), fields)
    assert plain == RequestHead("GET", "/a", "b=c", (("host", "h"), ("range", "bytes=0-1")))
    assert plain.fields is fields
    assert plain.header("range") == "bytes=0-1"
    assert plain.header("if-match") is None


def test_a_head_made_of_another_has_its_own_fields() -> None:
    plain = RequestHead.plain("GET", "/a", "", (("host", "h"),), {"host": "h"})
    assert replace(plain, headers=(("host", "g"),)).fields == {"host": "g"}


def test_a_plus_stays_a_plus_and_blank_values_are_kept() -> None:
    assert head("a=b+c&d&e=&&f=%2B").query_pairs == (
        ("a", "b+c"),
        ("d", ""),
        ("e", ""),
        ("f", "+"),
    )


def test_a_query_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidURI):
        _ = head("a=%ff").query_pairs
    with pytest.raises(InvalidURI):
        _ = head(b"a=\xff".decode("utf-8", "surrogateescape")).query_pairs


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_every_text_survives_the_query(pairs: list[tuple[str, str]]) -> None:
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    assert head(text).query_pairs == tuple(pairs)


@given(st.binary())
def test_any_query_parses_or_is_an_invalid_uri(raw: bytes) -> None:
    parsed = head(raw.decode("utf-8", "surrogateescape"))
    try:
        assert all(len(pair) == 2 for pair in parsed.query_pairs)
    except InvalidURI:
        return
