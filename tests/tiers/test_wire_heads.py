"""Heads of HTTP answers: read strictly, and refused where they can be read in two ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tiers.wire_heads import MalformedAnswerError, parse_head, unchunked

OK = b"HTTP/1.1 200 OK"


def test_a_head_says_status_headers_and_how_the_body_ends() -> None:
    head = parse_head(
        b'HTTP/1.1 206 Partial Content\r\nETag: "e1"\r\nContent-Length: 7\r\n'
        b"x-amz-meta-Name:  caf\xc3\xa9 \t\r\nServer:"
    )
    assert head.status == 206
    assert head.headers == {
        "etag": '"e1"',
        "content-length": "7",
        "x-amz-meta-name": "café",
        "server": "",
    }
    assert (head.length_bytes, head.chunked, head.persists) == (7, False, True)


def test_a_value_that_is_not_utf8_is_latin_1() -> None:
    assert parse_head(OK + b"\r\nx-amz-meta-name: caf\xe9").headers["x-amz-meta-name"] == "café"


@pytest.mark.parametrize(
    ("head", "persists"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 200", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nconnection: Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_a_connection_lasts_as_http_has_it(head: bytes, persists: bool) -> None:
    assert parse_head(head).persists is persists


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 200 O\nK",
        b"<html>",
        OK + b"\r\nno colon",
        OK + b"\r\n folded: yes",
        OK + b"\r\na: 1\r\n continued",
        OK + b"\r\nspace : before",
        OK + b"\r\n: nameless",
        OK + b"\r\na: bare\nline: feed",
        OK + b"\r\na: nul\0",
        OK + b"\r\nContent-Length: -1",
        OK + b"\r\nContent-Length: 1, 1",
        OK + b"\r\nContent-Length: \xd9\xa1",
        OK + b"\r\nContent-Length: 1\r\nContent-Length: 2",
        OK + b"\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        OK + b"\r\nTransfer-Encoding: gzip, chunked",
        OK + b"\r\nContent-Length: 99999999999999999999",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        parse_head(raw)


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=20)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"))


@given(st.integers(100, 999), st.dictionaries(TOKENS, VALUES.map(str.strip), max_size=12))
def test_every_head_comes_back_as_it_was_written(status: int, headers: dict[str, str]) -> None:
    for framing in ("content-length", "transfer-encoding", "connection"):
        headers.pop(framing, None)
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in headers.items())]
    head = parse_head("\r\n".join(lines).encode())
    assert head.status == status
    assert head.headers == {name: value.strip(" \t") for name, value in headers.items()}
    assert (head.length_bytes, head.chunked) == (None, False)


@given(st.binary(max_size=300))
def test_no_head_brings_the_parser_down(raw: bytes) -> None:
    for text in (raw, OK + b"\r\n" + raw):
        try:
            head = parse_head(text)
        except MalformedAnswerError:
            continue
        assert 100 <= head.status <= 999


def chunked(pieces: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return framed + b"0\r\n" + trailer + b"\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b";a=b"]),
    st.sampled_from([b"", b"x-trailer: 1\r\n"]),
    st.binary(max_size=10),
)
def test_a_chunked_body_is_known_at_its_last_byte_and_not_before(
    pieces: list[bytes], extension: bytes, trailer: bytes, beyond: bytes
) -> None:
    raw = chunked(pieces, extension, trailer)
    assert unchunked(raw + beyond) == (b"".join(pieces), len(raw))
    for stop in range(len(raw)):
        assert unchunked(raw[:stop]) is None


@pytest.mark.parametrize(
    "raw", [b"x\r\n", b"\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"5\nabcde\r\n0\r\n\r\n", b"1" * 99]
)
def test_a_chunk_where_none_should_be_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        unchunked(raw + b"\r\n\r\n")


@given(st.binary(max_size=200))
def test_no_chunked_body_brings_the_parser_down(raw: bytes) -> None:
    try:
        found = unchunked(raw)
    except MalformedAnswerError:
        return
    assert found is None or found[1] <= len(raw)
