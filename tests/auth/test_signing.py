"""Canonical forms, against plain reference implementations."""

import hashlib
import hmac
import re
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.signing import (
    Moment,
    SignedHeaders,
    SigningKey,
    canonical_pairs,
    canonical_path,
    same,
    string_to_sign,
)
from gateway.config import Secret

# What is not UTF-8 on the wire comes as surrogate escapes.
_BYTES = st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_WIRE = st.text(st.sampled_from("aZ09-._~/%2Ff5B7D3=+&? é"))


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [
        ("", "/"),
        ("/a//b/../c/./", "/a//b/../c/./"),
        ("/test$file.text", "/test%24file.text"),
        ("/%41%2d%7e", "/A-~"),
        ("/a%2Fb", "/a%2Fb"),
        ("/a%2fb+c%20d", "/a%2Fb%2Bc%20d"),
        ("/é", "/%C3%A9"),
        ("/%zz", "/%25zz"),
        ("/date%3D2024", "/date%3D2024"),
    ],
)
def test_a_path_is_encoded_once_and_never_normalised(wire: str, canonical: str) -> None:
    assert canonical_path(wire) == canonical


@given(_WIRE)
def test_the_short_cut_of_a_path_changes_nothing(path: str) -> None:
    slow = "/".join(quote(unquote_to_bytes(part), safe="~") for part in path.split("/"))
    assert canonical_path(path) == (slow or "/")


@given(_WIRE)
def test_the_short_cut_of_a_query_changes_nothing(query: str) -> None:
    pairs = [piece.partition("=") for piece in query.split("&") if piece]
    slow = sorted(
        (quote(unquote_to_bytes(name), safe="~"), quote(unquote_to_bytes(value), safe="~"))
        for name, _, value in pairs
    )
    assert canonical_pairs(query) == slow


def test_a_query_is_sorted_by_name_before_value() -> None:
    assert canonical_pairs("a-=1&a=2&a=1&b") == [("a", "1"), ("a", "2"), ("a-", "1"), ("b", "")]


def test_blanks_within_a_value_are_folded() -> None:
    fields = {"x": "a  b\t c d", "y": "e f", "z": "g"}
    assert SignedHeaders("y;x").lines(fields) == "y:e f\nx:a b c d"
    assert SignedHeaders("z;y").lines(fields) == "z:g\ny:e f"
    assert SignedHeaders("x").lines(fields) == "x:a b c d"
    for missing in ("w", "w;x", "x;w"):
        with pytest.raises(KeyError, match="w"):
            SignedHeaders(missing).lines(fields)


@given(st.dictionaries(st.text("a%s-(d", min_size=1), st.text(max_size=5), min_size=1))
def test_the_lines_of_signed_headers_are_names_and_values(fields: dict[str, str]) -> None:
    blanks = re.compile("[ \t]+")
    expected = [f"{name}:{blanks.sub(' ', value)}" for name, value in fields.items()]
    assert SignedHeaders(";".join(fields)).lines(fields) == "\n".join(expected)


@given(st.text(max_size=80), st.text())
def test_a_signature_is_an_hmac_under_the_derived_key(secret: str, message: str) -> None:
    key = f"AWS4{secret}".encode()
    for part in (b"20130524", b"us-east-1", b"s3", b"aws4_request"):
        key = hmac.digest(key, part, "sha256")
    expected = hmac.new(key, message.encode(), hashlib.sha256).hexdigest()
    assert SigningKey(Secret(secret), "20130524", "us-east-1").sign(message) == expected


@given(_BYTES, st.sampled_from(["20130524T000000Z", "20130524T235959Z"]))
def test_a_moment_signs_what_its_string_to_sign_says(
    canonical_request: str, timestamp: str
) -> None:
    key = SigningKey(Secret("secret"), "20130524", "us-east-1")
    scope = "20130524/us-east-1/s3/aws4_request"
    expected = key.sign(string_to_sign(timestamp, scope, canonical_request))
    moment = Moment(key, timestamp, 0, scope)
    assert moment.sign(canonical_request) == expected
    assert moment.sign(canonical_request) == expected


def test_signatures_that_are_not_ascii_compare_as_different() -> None:
    assert same("ab", "ab")
    assert not same("ab", "aé")
    assert not same("ab", "a\udcff")
