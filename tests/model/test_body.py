"""Bytes in memory, handed out as an upload's body."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.model.body import Body, BytesBody


async def read_all(body: Body, limit_bytes: int) -> list[bytes]:
    blocks = []
    while block := await body.read(limit_bytes):
        blocks.append(block)
    return blocks


@given(st.binary(max_size=200), st.integers(1, 64))
async def test_the_blocks_are_the_bytes_and_none_is_longer_than_asked(
    data: bytes, limit_bytes: int
) -> None:
    body = BytesBody(data)
    blocks = await read_all(body, limit_bytes)
    assert b"".join(blocks) == data
    assert body.length_bytes == len(data)
    assert all(1 <= len(block) <= limit_bytes for block in blocks)


async def test_the_end_stays_the_end() -> None:
    body = BytesBody(b"abc")
    assert await body.read() == b"abc"
    assert await body.read() == b""
    assert await body.read() == b""


async def test_what_was_announced_is_told_from_the_start_and_holds_at_the_end() -> None:
    given_checksums = {"CRC32": "y/Q5Jg=="}
    body: Body = BytesBody(
        b"123456789", checksums=given_checksums, content_md5="JfnnlDI7RTiF9RgfG2JNCw=="
    )
    given_checksums.clear()
    assert body.announced_checksums == {"CRC32": "y/Q5Jg=="}
    assert body.content_md5 == "JfnnlDI7RTiF9RgfG2JNCw=="
    assert body.trailing_algorithms == ()
    await body.read()
    assert body.checksums == {"CRC32": "y/Q5Jg=="}


async def test_a_body_announces_nothing_unless_told() -> None:
    body: Body = BytesBody(b"")
    assert body.announced_checksums == {}
    assert body.checksums == {}
    assert body.content_md5 is None
    assert await body.read() == b""
