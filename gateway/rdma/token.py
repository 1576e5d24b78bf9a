"""The token: which memory of a client's one request may touch. Pure.

    frdma1:SESSION:SEQUENCE:ADDRESS:SIZE:RKEY

See docs/rdma.md. The header's name is what S3 clients with NVIDIA's cuObject send; theirs describes
a transport (DC) that only one maker's devices have, and is told apart here to be declined.
"""

import re
from typing import NamedTuple

TOKEN_HEADER = "x-amz-rdma-token"  # noqa: S105 - a header's name
MAX_TOKEN_CHARACTERS = 128
MAX_MEMORY_BYTES = 64 * 1024**3
SESSION_DIGITS = 32

_VERSION = "frdma1"
_SPACE = 1 << 64
_TOKEN = re.compile(
    rf"{_VERSION}:([0-9a-f]{{{SESSION_DIGITS}}}):([0-9a-f]{{1,16}}):([0-9a-f]{{1,16}})"
    r":([0-9a-f]{1,16}):([0-9a-f]{1,8})",
    re.ASCII,
)
# addr:size:rkey:lid:dctn:gid_present:gid
_DC_TOKEN = re.compile(r"(?:(?:0x)?[0-9a-f]{1,32}:){6}(?:0x)?[0-9a-f:]{1,64}", re.ASCII | re.I)


class BadToken(ValueError):  # noqa: N818 - named as the other refusals are
    """What was sent as a token is none; the message says what is off, and repeats none of it."""


class Token(NamedTuple):
    """Memory of `size_bytes` from `address` on, in the session's client, under its key `rkey`."""

    session: str
    sequence: int
    address: int
    size_bytes: int
    rkey: int


def parse_token(text: str) -> Token | None:
    """The token that a header's value is; None for one of another transport. BadToken."""
    if len(text) > MAX_TOKEN_CHARACTERS:
        raise BadToken(f"it is longer than {MAX_TOKEN_CHARACTERS} characters")
    found = _TOKEN.fullmatch(text)
    if found is None:
        if _DC_TOKEN.fullmatch(text) is not None:
            return None
        raise BadToken(f"it is not of the form {_VERSION}:SESSION:SEQUENCE:ADDRESS:SIZE:RKEY")
    sequence, address, size_bytes, rkey = (int(digits, 16) for digits in found.groups()[1:])
    if size_bytes > MAX_MEMORY_BYTES:
        raise BadToken(f"the memory is larger than {MAX_MEMORY_BYTES} bytes")
    if address + size_bytes > _SPACE:
        raise BadToken("the memory ends beyond the last address")
    return Token(found[1], sequence, address, size_bytes, rkey)


def render_token(token: Token) -> str:
    """The header's value. ValueError where `parse_token` would not give the token back."""
    text = (
        f"{_VERSION}:{token.session}:{token.sequence:x}:{token.address:x}"
        f":{token.size_bytes:x}:{token.rkey:x}"
    )
    if parse_token(text) != token:
        raise ValueError("not a token")
    return text


class UsedNumbers:
    """The sequence numbers that a session has used: each is good once, in any order within
    `width` of the highest."""

    __slots__ = ("_bits", "_highest", "_width")

    def __init__(self, width: int = 1024) -> None:
        self._width = width
        self._highest = -1
        # Bit n stands for the highest less n.
        self._bits = 0

    def use(self, number: int) -> bool:
        """Whether the number was good: not used before, and not so old that nobody knows."""
        ahead = number - self._highest
        if ahead > 0:
            # What is shifted beyond the width is old, whatever it was.
            kept = self._bits << ahead if ahead < self._width else 0
            self._bits = (kept | 1) & ((1 << self._width) - 1)
            self._highest = number
            return True
        if -ahead >= self._width:
            return False
        bit = 1 << -ahead
        if self._bits & bit:
            return False
        self._bits |= bit
        return True
