"""Tokens: what is one, what is refused and why, and how often one is good."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.rdma.token import (
    MAX_MEMORY_BYTES,
    MAX_TOKEN_CHARACTERS,
    BadToken,
    Token,
    UsedNumbers,
    parse_token,
    render_token,
)

SESSION = "0123456789abcdef" * 2


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    size = draw(st.integers(0, MAX_MEMORY_BYTES))
    return Token(
        draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 2**64 - size)) if size else draw(st.integers(0, 2**64 - 1)),
        size,
        draw(st.integers(0, 2**32 - 1)),
    )


@given(tokens())
@example(Token(SESSION, 2**64 - 1, 2**64 - MAX_MEMORY_BYTES, MAX_MEMORY_BYTES, 2**32 - 1))
def test_a_token_comes_back_as_it_went(token: Token) -> None:
    text = render_token(token)
    assert len(text) <= MAX_TOKEN_CHARACTERS
    assert parse_token(text) == token


@given(st.one_of(st.text(max_size=200), st.from_regex(r"frdma1(:[0-9a-fA-F]{0,33}){0,7}")))
def test_whatever_is_sent_is_a_token_or_refused(text: str) -> None:
    token, said = None, ""
    try:
        token = parse_token(text)
    except BadToken as error:
        said = str(error)
    # Of what was sent, nothing is repeated.
    assert len(said) < 100
    assert token is None or token.address + token.size_bytes <= 2**64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "frdma1",
        f"frdma2:{SESSION}:0:0:0:0",
        f"frdma1:{SESSION.upper()}:0:0:0:0",
        f"frdma1:{SESSION}:0:0:0:0\n",
        f" frdma1:{SESSION}:0:0:0:0",
        f"frdma1:{SESSION}:0:0:0:0:0",
        f"frdma1:{SESSION}:-1:0:0:0",
        f"frdma1:{SESSION}:0x1:0:0:0",
        f"frdma1:{SESSION}:\u0661:0:0:0",
        f"frdma1:{SESSION[1:]}:0:0:0:0",
        f"frdma1:{SESSION}:0:0:0:123456789",
        f"frdma1:{SESSION}:0:ffffffffffffffff:2:0",
        f"frdma1:{SESSION}:0:0:{MAX_MEMORY_BYTES + 1:x}:0",
    ],
)
def test_what_is_off_by_a_little_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        parse_token(text)


@pytest.mark.parametrize(
    "text",
    [
        "7f0000001000:100000:1f2e:0001:0000a1b2:1:fe80000000000000526b4bfffe4d1a2b",
        "0x7f00:0x10:0x1:0x0:0x1:0x1:0xfe80",
        "7f00:10:1:0:1:1:fe80::1",
    ],
)
def test_a_token_of_another_transport_is_told_apart(text: str) -> None:
    assert parse_token(text) is None


def test_what_is_no_token_is_not_rendered() -> None:
    for token in (
        Token("short", 0, 0, 0, 0),
        Token(SESSION, -1, 0, 0, 0),
        Token(SESSION, 0, 2**64, 1, 0),
        Token(SESSION, 0, 0, 0, 2**32),
    ):
        with pytest.raises(ValueError, match=r".+"):
            render_token(token)


@given(st.lists(st.integers(0, 5000), max_size=300), st.integers(1, 64))
def test_a_number_is_good_once_and_only_near_the_highest(numbers: list[int], width: int) -> None:
    used = UsedNumbers(width)
    seen: set[int] = set()
    for number in numbers:
        expected = number not in seen and (not seen or number > max(seen) - width)
        assert used.use(number) is expected
        if expected:
            seen.add(number)


def test_numbers_far_apart_cost_nothing() -> None:
    used = UsedNumbers()
    assert used.use(0)
    assert used.use(2**64 - 1)
    assert not used.use(0)
    assert not used.use(2**64 - 1)
    assert used.use(2**64 - 1024)
    assert not used.use(2**64 - 1025)
