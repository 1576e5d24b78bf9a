"""The head of a request keeps what was on the wire."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.request import RequestHead
from gateway.errors import InvalidURI


def head(query: str) -> RequestHead:
    return RequestHead("GET", "/", query, (("a", "1"), ("a", "2")))


def test_the_first_of_two_headers_is_found_and_an_absent_one_is_none() -> None:
    assert head("").header("a") == "1"
    assert head("").header("b") is None


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
