"""Bodies on their way: their framing, and what happens to one that breaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import IncompleteBody
from gateway.model.body import BytesBody
from gateway.model.checksums import ALGORITHMS, checksum
from gateway.tiers.origin_s3.upload import (
    BUFFERED_BYTES,
    UploadStream,
    chunked_length_bytes,
    payload,
)
from tests.tiers.test_origin_s3_writing import LARGE, TrailingBody


def decoded(framed: bytes) -> tuple[bytes, bytes]:
    """The data and the trailer of an aws-chunked body."""
    data = b""
    while True:
        size, _, framed = framed.partition(b"\r\n")
        if size == b"0":
            return data, framed
        data += framed[: int(size, 16)]
        framed = framed[int(size, 16) :].removeprefix(b"\r\n")


@given(size_bytes=st.integers(0, 700_000), algorithm=st.sampled_from(ALGORITHMS))
async def test_the_framed_length_is_known_beforehand(size_bytes: int, algorithm: str) -> None:
    data = LARGE[:size_bytes]
    stream = UploadStream(TrailingBody(data, algorithm), stall_seconds=1)
    framed = b"".join([piece async for piece in stream])
    assert len(framed) == chunked_length_bytes(size_bytes, algorithm)
    body, trailer = decoded(framed)
    assert body == data
    value = checksum(algorithm, data)
    assert trailer == f"x-amz-checksum-{algorithm.lower()}:{value}\r\n\r\n".encode()


async def test_a_small_body_is_bytes_with_all_its_checksums() -> None:
    upload = await payload(TrailingBody(b"small", "SHA1"), None, 1)
    assert upload.data == b"small"
    assert upload.headers["x-amz-checksum-sha1"] == checksum("SHA1", b"small")
    assert "content-encoding" not in upload.headers


class WrongLength(BytesBody):
    def __init__(self, data: bytes, length_bytes: int) -> None:
        super().__init__(data)
        self.length_bytes = length_bytes


@pytest.mark.parametrize("size_bytes", [10, BUFFERED_BYTES + 1])
async def test_a_body_of_another_length_than_it_says_breaks(size_bytes: int) -> None:
    body = WrongLength(bytes(size_bytes), size_bytes + 1)

    async def send() -> None:
        upload = await payload(body, None, 1)
        assert isinstance(upload.data, UploadStream)
        async for _ in upload.data:
            pass

    with pytest.raises(IncompleteBody):
        await send()


async def test_a_stream_is_sent_once() -> None:
    stream = UploadStream(BytesBody(LARGE), stall_seconds=1)
    assert stream.seek(0) == 0
    assert await anext(aiter(stream))
    with pytest.raises(OSError, match="sent once"):
        stream.seek(0)
    with pytest.raises(OSError, match="sent once"):
        aiter(stream)
