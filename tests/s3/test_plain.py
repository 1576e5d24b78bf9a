"""The fast lane's parser, held against the long lane's: what it takes, aiohttp reads in the same
way, and where it says that a message ends, aiohttp's parsers say so too."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserC, HttpRequestParserPy, RawRequestMessage
from aiohttp.streams import StreamReader
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from gateway.s3.long_lane import parser_settings
from gateway.s3.plain import may_go_on, message_bytes, parse

_LIMIT_BYTES = 16_384
_MARKER = b"GET /marker HTTP/1.1\r\nHost: after\r\n\r\n"
_PARSERS = (HttpRequestParserC, HttpRequestParserPy)
# Bodies that are made up here are no longer than this; larger lengths are only announced.
_BODY_BYTES = 64

many = settings(max_examples=250, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for aiohttp's parsers to hold; nothing runs in it."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


class Parsed:
    """What one of aiohttp's parsers makes of bytes. `refused`: they are not HTTP, which ends the
    connection."""

    def __init__(self, kind: type, *pieces: bytes) -> None:
        loop = asyncio.get_event_loop_policy().get_event_loop()
        # As in aiohttp's RequestHandler.
        self._parser = kind(
            BaseProtocol(loop), loop, 2**16, max_msg_queue_size=32, **parser_settings(_LIMIT_BYTES)
        )
        self.messages: list[tuple[RawRequestMessage, StreamReader]] = []
        self.refused = False
        self._upgraded = False
        for piece in pieces:
            self.feed(piece)

    def feed(self, data: bytes) -> None:
        try:
            messages, self._upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError:
            self.refused = True
            return
        assert self._upgraded or not tail
        self.messages += messages

    @property
    def is_one_message(self) -> bool:
        """Whether they are one message, head and body, and another one may follow."""
        ended = not self._upgraded and all(body.is_eof() for _, body in self.messages)
        return ended and len(self.messages) == 1


def same_everywhere(data: bytes, start: int = 0) -> bool:
    """Whether `parse` and `message_bytes` know where the message ends, once they have been found to
    agree with both of aiohttp's parsers."""
    read = parse(data, start, _LIMIT_BYTES)
    size_bytes = message_bytes(data, start, _LIMIT_BYTES)
    if read is not None:
        assert read.stop - start == size_bytes
        for kind in _PARSERS:
            parsed = Parsed(kind, data[start : read.stop])
            assert parsed.is_one_message
            message, _ = parsed.messages[0]
            path, _, query = message.path.partition("?")
            assert (read.head.method, read.head.path, read.head.query) == (
                message.method,
                path,
                query,
            )
            headers = tuple((name.lower(), value) for name, value in message.headers.items())
            assert read.head.headers == headers
            assert read.head.fields == dict(reversed(headers))
            assert message.version == (1, 1)
            assert not any((message.should_close, message.chunked, message.upgrade))
    if size_bytes is None:
        return False
    head_and_body = data[start : start + size_bytes]
    missing_bytes = size_bytes - len(head_and_body)
    if missing_bytes <= _BODY_BYTES:
        for kind in _PARSERS:
            ends_here(kind, head_and_body + b"b" * missing_bytes)
    return True


def ends_here(kind: type, data: bytes) -> None:
    """Asserts that the parser finds one message in the bytes, to the last of them, or refuses."""
    assert not Parsed(kind, data[:-1]).is_one_message
    parsed = Parsed(kind, data)
    if parsed.refused:
        return
    assert parsed.is_one_message
    if not parsed.messages[0][0].should_close:
        parsed.feed(_MARKER)
        assert not parsed.refused
        assert [message.path for message, _ in parsed.messages[1:]] == ["/marker"]


# What is made up

_TOKEN = st.text("!#$%&'*+-.^_`|~09AZaz", min_size=1, max_size=12)
_FRAMING = st.sampled_from(
    ["Content-Length", "content-length", "CONTENT-LENGTH", "Transfer-Encoding", "Connection"]
)
_PLAIN = st.sampled_from(
    [
        "Accept",
        "Accept-Encoding",
        "Authorization",
        "Content-Encoding",
        "Content-MD5",
        "Content-Type",
        "Cookie",
        "Date",
        "ETag",
        "HTTP2-Settings",
        "If-Match",
        "If-Modified-Since",
        "If-None-Match",
        "Keep-Alive",
        "Max-Forwards",
        "Range",
        "Sec-WebSocket-Key",
        "Server",
        "User-Agent",
        "X-Amz-Date",
        "amz-sdk-request",
        "x-amz-content-sha256",
        "x-amz-meta-a",
    ]
)
_NOT_PLAIN = st.sampled_from(
    ["Expect", "Host", "Proxy-Connection", "Sec-WebSocket-Key1", "TE", "Trailer", "Upgrade"]
)
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_VALUE = st.one_of(
    st.text(_PRINTABLE + "\t", max_size=20),
    st.text("".join(map(chr, range(256))), max_size=8),
    st.sampled_from(
        [
            "0",
            "1",
            "5",
            "05",
            "+5",
            "-5",
            "5,5",
            "5;5",
            "0x5",
            "5.0",
            "5_0",
            "\u0665",
            "18446744073709551615",
            "18446744073709551621",
            "999999999999999999",
            "chunked",
            "Chunked",
            "identity",
            "gzip,chunked",
            "chunked,gzip",
            "keep-alive",
            "close",
            "Keep-Alive",
            "upgrade",
            "keep-alive,upgrade",
            "close,keep-alive",
            "websocket",
            "h2c",
            "tcp",
            "100-continue",
            "trailers",
            "bytes=0-1",
            "\u06f5",
        ]
    ),
)


@st.composite
def plain_heads(draw: st.DrawFn) -> bytes:
    """Heads as clients send them, which are plain."""
    method = draw(st.sampled_from(["GET", "HEAD"]))
    printable = _PRINTABLE.replace(" ", "").replace("#", "")
    target = "/" + draw(st.text(printable, max_size=30))
    names = draw(st.lists(_PLAIN | _TOKEN, max_size=8, unique_by=str.lower))
    text = st.text(_PRINTABLE, min_size=1, max_size=30).map(str.strip).filter(bool)
    lines = [f"{name}: {draw(text)}\r\n" for name in names]
    lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(_HOSTS)))
    if draw(st.booleans()):
        lines.append("Connection: keep-alive\r\n")
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


_HOSTS = ["Host: x\r\n", "host: 127.0.0.1:9000\r\n", "HOST: bucket.example\r\n"]


@st.composite
def framed_messages(draw: st.DrawFn) -> bytes:
    """Messages whose end is certain."""
    method = draw(st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"]))
    version = draw(st.sampled_from(["1.0", "1.1"]))
    body = draw(st.binary(max_size=_BODY_BYTES))
    lines = [draw(st.sampled_from(_HOSTS))]
    if body or draw(st.booleans()):
        name = draw(st.sampled_from(["Content-Length: ", "content-length:", "Content-Length:  "]))
        zeros = draw(st.sampled_from(["", "0", "000"]))
        lines.append(f"{name}{zeros}{len(body)}{draw(st.sampled_from(['', ' ']))}\r\n")
    if draw(st.booleans()):
        lines.append(f"Connection: {draw(st.sampled_from(['keep-alive', 'close', 'Close']))}\r\n")
    lines.append("x-amz-meta-a: " + draw(st.text("a \té", max_size=4)) + "\r\n")
    lines = draw(st.permutations(lines))
    return f"{method} /a HTTP/{version}\r\n{''.join(lines)}\r\n".encode() + body


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Messages of all kinds, right and wrong, with something of a body."""
    begin = [draw(_METHOD), " ", draw(_TARGET), draw(_VERSION), "\r\n"]
    headers = [
        f"{draw(_NAME)}{draw(_COLON)}{draw(_VALUE)}{draw(_LINE_END)}"
        for _ in range(draw(st.integers(0, 4)))
    ]
    host = draw(_mostly("Host: x\r\n", ""))
    end = draw(_mostly("\r\n", "\n", "\r\r\n", ""))
    return "".join([*begin, host, *headers, end]).encode() + draw(st.binary(max_size=12))


def _mostly(usual: str, *others: str) -> st.SearchStrategy[str]:
    return st.sampled_from([usual] * (8 * len(others)) + list(others))


_METHOD = st.sampled_from(["GET", "PUT", "GET", "PUT", "HEAD", "POST", "DELETE", "OPTIONS"]) | (
    st.sampled_from(["PATCH", "TRACE", "CONNECT", "PURGE", "PRI", "SOURCE", "get"])
)
_TARGET = st.sampled_from(["/", "/a", "/a?b", "/%00", "//a"]) | st.sampled_from(
    ["/a#b", "*", "http://h/a", "http:", "h:80", "/\xe9", "", "a"]
)
_VERSION = _mostly(" HTTP/1.1", " HTTP/1.0", " HTTP/2.0", " HTTP/1.10", "", "  HTTP/1.1")
_NAME = _PLAIN | _PLAIN | _TOKEN | _FRAMING | _NOT_PLAIN
_COLON = _mostly(": ", ":", ":\t", ":  ", " : ", " ")
_LINE_END = _mostly("\r\n", "\n", "\r", " \r\n", "\t\r\n", "\r\n folded\r\n", "\0\r\n")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Plain heads and framed messages with a few bytes off."""
    data = bytearray(draw(plain_heads() | framed_messages()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(_PIECE)
    return bytes(data)


_PIECE = st.sampled_from([b"a", b"\r", b"\n", b"\0", b" ", b"\t", b":", b"\x80", b"\r\n", b"1"])


# Tests


@many
@given(plain_heads(), st.binary(max_size=8), st.binary(max_size=8))
def test_a_plain_head_is_taken_and_read_as_aiohttp_reads_it(
    head: bytes, before: bytes, after: bytes
) -> None:
    read = parse(before + head + after, len(before), _LIMIT_BYTES)
    assert read is not None
    assert read.stop == len(before) + len(head)
    assert same_everywhere(before + head + after, len(before))
    assert parse(head, 0, len(head) - 1) is None


@many
@given(framed_messages())
def test_a_framed_message_ends_where_aiohttp_ends_it(data: bytes) -> None:
    assert message_bytes(data, 0, _LIMIT_BYTES) == len(data)
    assert same_everywhere(data)


@settings(many, max_examples=1000)
@given(messages())
@example(b"CONNECT h:80 HTTP/1.1\r\nHost: x\r\n\r\n")
@example(b"PRI / HTTP/1.1\r\n\r\n")
@example(b"GET /a HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Key1: a\r\n\r\n")
@example(b"GET /a HTTP/1.1\r\nHost: x\r\nHTTP2-Settings: a\r\nConnection: keep-alive\r\n\r\n")
def test_whatever_is_sent_the_two_lanes_never_differ(data: bytes) -> None:
    event("certain" if same_everywhere(data) else "uncertain")


@settings(many, max_examples=600)
@given(mutated())
def test_a_few_bytes_off_never_make_the_two_lanes_differ(data: bytes) -> None:
    event("certain" if same_everywhere(data) else "uncertain")


@many
@given(st.binary(max_size=200) | st.text("GETHAD /HTP1.:\r\n \t0", max_size=80).map(str.encode))
def test_no_bytes_are_too_odd(data: bytes) -> None:
    same_everywhere(data)
    may_go_on(data, 0)


@pytest.mark.parametrize(
    "header",
    [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\ncontent-length: 6",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 5, 5",
        "Content-Length: 0x5",
        "Content-Length: 5_0",
        "Content-Length:",
        "Content-Length : 5",
        "Content-Length: 9999999999999999999",
        "Content-Length: 5\r\n 5",
        "Content-Length: 5\nx: y",
        "Content-Length: 5\0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "transfer-encoding:chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Connection: upgrade",
        "Connection: keep-alive, upgrade",
        "Upgrade: h2c",
    ],
)
def test_where_a_message_may_end_in_more_than_one_place_its_end_is_not_said(header: str) -> None:
    for method in ("GET", "PUT"):
        data = f"{method} /a HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
        assert parse(data, 0, _LIMIT_BYTES) is None
        assert message_bytes(data, 0, _LIMIT_BYTES) is None
        assert not same_everywhere(data)


@pytest.mark.parametrize(
    "head",
    [
        "GET /a HTTP/1.0\r\nHost: x",
        "PUT /a HTTP/1.1\r\nHost: x",
        "GET http://x/a HTTP/1.1\r\nHost: x",
        "GET  /a HTTP/1.1\r\nHost: x",
        "GET /a  HTTP/1.1\r\nHost: x",
        "GET /a#b HTTP/1.1\r\nHost: x",
        "GET /\xe9 HTTP/1.1\r\nHost: x",
        "get /a HTTP/1.1\r\nHost: x",
        "GET /a HTTP/1.1",
        "GET /a HTTP/1.1\r\nhosts: x",
        "GET /a HTTP/1.1\r\nHost: x\r\nHost: x",
        "GET /a HTTP/1.1\r\nHost: x\r\nRange: a\r\nrange: b",
        "GET /a HTTP/1.1\r\nHost: x\r\nx-amz-meta-a: \xe9",
        "GET /a HTTP/1.1\r\nHost: x\r\nx : y",
        "GET /a HTTP/1.1\r\nHost: x\r\nx:y",
        "GET /a HTTP/1.1\r\nHost: x\r\nx: y\x7f",
        "GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0",
        "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close",
        "GET /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue",
        "GET /a HTTP/1.1\r\nHost: x\r\nTE: trailers",
        "\r\nGET /a HTTP/1.1\r\nHost: x",
    ],
)
def test_what_is_off_by_a_byte_is_not_plain(head: str) -> None:
    data = f"{head}\r\n\r\n".encode("latin-1")
    assert parse(data, 0, _LIMIT_BYTES) is None
    same_everywhere(data)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_the_beginning_of_a_head_is_waited_for_wherever_it_is_cut(method: str) -> None:
    head = f"{method} /a HTTP/1.1\r\nHost: x\r\nx-amz-date: y\r\n\r\n".encode()
    for cut in range(1, len(head)):
        assert may_go_on(head[:cut], 0)
        assert may_go_on(b"before" + head[:cut], 6)
        assert parse(head[:cut], 0, _LIMIT_BYTES) is None
        assert message_bytes(head[:cut], 0, _LIMIT_BYTES) is None
    assert not may_go_on(head, 0)
    assert not may_go_on(b"X" + head[:9], 0)


@pytest.mark.parametrize(
    "unit",
    [
        b"content-length: 1" + b" " * 8 + b"x",
        b"x: " + b"\t " * 6,
        b"a: b\r\nconnection: " + b" " * 9,
    ],
    ids=["blanks in a length", "blanks", "blanks in a connection"],
)
def test_a_head_of_any_length_is_judged_in_linear_time(unit: bytes) -> None:
    def seconds(size: int) -> float:
        head = b"GET /a HTTP/1.1\r\n" + unit[:1] * 3 + unit[1:-1] + b" " * size + b"x\r\n\r\n"
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            parse(head, 0, 10 * size)
            message_bytes(head, 0, 10 * size)
            may_go_on(head[:-2], 0)
            best = min(best, time.process_time() - began)
        return best

    # Eight times the length took sixty-four times as long, and some seconds, when it was not.
    assert seconds(80_000) < 24 * max(seconds(10_000), 1e-4)


def test_a_head_longer_than_the_limit_has_no_certain_end() -> None:
    head = b"GET /a HTTP/1.1\r\nHost: x\r\nx: " + b"y" * 100 + b"\r\n\r\n"
    assert message_bytes(head, 0, len(head)) == len(head)
    assert message_bytes(head, 0, len(head) - 1) is None


@pytest.mark.parametrize("head", [b"GET /a HTTP/1.1\nHost: x\n\n", b"GET /a HTTP/1.1\r\nHost: x\n"])
def test_what_ends_its_lines_with_line_feeds_alone_is_not_waited_for(head: bytes) -> None:
    assert not may_go_on(head, 0)
