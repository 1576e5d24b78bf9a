"""aws-chunked bodies come out plain and verified, or not at all."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    IncompleteBody,
    InvalidChunkSizeError,
    MalformedTrailerError,
    S3Error,
    SignatureDoesNotMatch,
)
from gateway.s3.aws_chunked import MAX_TRAILER_BYTES, ChunkedDecoder
from tests.s3.signed_chunks import aws_example, signed_body, signer, unsigned_body

TRAILER = (("x-amz-checksum-crc32", "AAAAAA=="),)
NAMES = frozenset({"x-amz-checksum-crc32"})
CHUNKS = [b"a" * 8_192, b"b" * 9_000, b"c"]
PLAIN = b"".join(CHUNKS)


def signed(length: int = len(PLAIN), names: frozenset[str] | None = None) -> ChunkedDecoder:
    return ChunkedDecoder(length, signer=signer(), announced=names)


def unsigned(length: int = len(PLAIN), names: frozenset[str] = NAMES) -> ChunkedDecoder:
    return ChunkedDecoder(length, signer=None, announced=names)


def decode(decoder: ChunkedDecoder, *pieces: bytes) -> bytes:
    plain = b"".join(part for piece in pieces for part in decoder.feed(piece))
    decoder.finish()
    return plain


@pytest.mark.parametrize("trailer", [False, True])
def test_the_examples_of_aws_decode(trailer: bool) -> None:
    _, payload, wire = aws_example(trailer=trailer)
    names = frozenset({"x-amz-checksum-crc32c"}) if trailer else None
    decoder = ChunkedDecoder(66_560, signer=payload.chunks, announced=names)
    assert decode(decoder, wire) == b"a" * 66_560
    assert decoder.trailers == ({"x-amz-checksum-crc32c": "sOO8/Q=="} if trailer else {})


@pytest.mark.parametrize("kind", ["signed", "signed-trailer", "unsigned"])
@given(cuts=st.lists(st.integers(0, 18_500), max_size=12), last=st.binary(max_size=40))
def test_a_body_decodes_however_the_wire_cuts_it(kind: str, cuts: list[int], last: bytes) -> None:
    chunks = [*CHUNKS[:2], *([last] if last else [])]
    length = sum(map(len, chunks))
    if kind == "unsigned":
        wire, decoder = unsigned_body(chunks, TRAILER), unsigned(length)
    elif kind == "signed":
        wire, decoder = signed_body(chunks), signed(length)
    else:
        wire, decoder = signed_body(chunks, TRAILER), signed(length, NAMES)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[start:stop] for start, stop in pairwise(edges)]
    assert decode(decoder, *pieces) == b"".join(chunks)
    assert decoder.trailers == ({} if kind == "signed" else dict(TRAILER))


def test_a_body_decodes_byte_by_byte() -> None:
    wire = signed_body(CHUNKS, TRAILER)
    pieces = [wire[place : place + 1] for place in range(len(wire))]
    assert decode(signed(names=NAMES), *pieces) == PLAIN


def test_an_empty_body_is_its_last_chunk_alone() -> None:
    assert decode(signed(0), signed_body([])) == b""
    assert decode(unsigned(0, frozenset()), b"0\r\n\r\n") == b""


@pytest.mark.parametrize("extension", ["", f";chunk-signature={'0' * 64}"])
def test_a_chunk_passes_straight_through_however_large_it_is(extension: str) -> None:
    decoder = signed(5 * 1024**3) if extension else unsigned(5 * 1024**3)
    assert decoder.feed(f"{5 * 1024**3:x}{extension}\r\n".encode() + b"a" * 100) == [b"a" * 100]
    assert decoder.feed(b"b" * 50) == [b"b" * 50]


@pytest.mark.parametrize(("place", "passed_bytes"), [(200, 8_191), (9_000, 17_191)])
def test_what_was_changed_in_a_signed_chunk_is_told_at_its_last_byte(
    place: int, passed_bytes: int
) -> None:
    wire = bytearray(signed_body(CHUNKS))
    wire[place] ^= 1
    decoder, plain = signed(), bytearray()

    def run() -> None:
        for byte in wire:
            plain.extend(b"".join(decoder.feed(bytes((byte,)))))

    with pytest.raises(SignatureDoesNotMatch):
        run()
    assert len(plain) == passed_bytes


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_signed_body_can_be_changed(place: int, flip: int) -> None:
    wire = bytearray(signed_body([b"abc"], TRAILER))
    wire[place % len(wire)] ^= flip
    decoder = signed(3, NAMES)
    try:
        plain = decode(decoder, bytes(wire))
    except S3Error:
        return
    # All that may differ is what the canonical form drops: case of the size and of names, blanks.
    assert plain == b"abc"
    assert decoder.trailers == dict(TRAILER)


def test_a_body_signed_from_another_seed_is_refused() -> None:
    with pytest.raises(SignatureDoesNotMatch):
        decode(signed(), signed_body(CHUNKS, seed="0" * 64))


def test_a_chunk_below_8_kib_must_be_the_last() -> None:
    for wire, decoder in (
        (signed_body([b"a" * 8_191, b"b"]), signed(8_192)),
        (unsigned_body([b"a" * 8_191, b"b"], TRAILER), unsigned(8_192)),
    ):
        with pytest.raises(InvalidChunkSizeError) as caught:
            decode(decoder, wire)
        assert caught.value.fields == {"Chunk": "2", "BadChunkSize": "8191"}


@pytest.mark.parametrize("change", [-1, 1])
def test_the_total_must_be_the_decoded_length(change: int) -> None:
    for wire, decoder in (
        (signed_body(CHUNKS), signed(len(PLAIN) + change)),
        (unsigned_body(CHUNKS, TRAILER), unsigned(len(PLAIN) + change)),
    ):
        with pytest.raises(IncompleteBody) as caught:
            decode(decoder, wire)
        assert caught.value.fields["NumberBytesExpected"] == str(len(PLAIN) + change)


def test_an_absurd_size_is_refused_before_any_of_its_bytes() -> None:
    with pytest.raises(IncompleteBody):
        unsigned(100).feed(b"ffffffffffffffff\r\n")


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"5",
        b"5\r\nabc",
        b"5\r\nabcde",
        b"5\r\nabcde\r",
        b"5\r\nabcde\r\n",
        b"5\r\nabcde\r\n0\r\n",
        b"5\r\nabcde\r\n0\r\nx-amz-checksum-crc32:AAAAAA==",
        b"5\r\nabcde\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n",
        b"5\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcdef\r\n0\r\n\r\n",
        b"-5\r\n",
        b"0x5\r\n",
        b"+5\r\n",
        b"5_0\r\n",
        b"\r\n",
        b"5;chunk-signature=" + b"0" * 64 + b"\r\nabcde\r\n",
        b"5 \r\nabcde\r\n",
        b"00000000000000005\r\nabcde\r\n",
        b"1" * 300,
        b" " * 300 + b"\r\n",
    ],
)
def test_broken_framing_is_an_incomplete_body(wire: bytes) -> None:
    with pytest.raises(IncompleteBody):
        decode(unsigned(5, NAMES), wire)


def test_a_line_without_an_end_is_not_gathered_for_ever() -> None:
    decoder = unsigned(5)
    for _ in range(255):
        assert decoder.feed(b"0") == []
    with pytest.raises(IncompleteBody):
        decoder.feed(b"0")


def test_a_signed_chunk_without_a_signature_is_refused() -> None:
    with pytest.raises(IncompleteBody):
        decode(signed(5), unsigned_body([b"abcde"]))


def test_nothing_may_follow_a_body_without_a_trailer() -> None:
    for more in (b"x", b"\r\n", b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n"):
        with pytest.raises(IncompleteBody):
            decode(signed(), signed_body(CHUNKS) + more)


@pytest.mark.parametrize(
    "end",
    [
        b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\n\n",
        b"x-amz-checksum-crc32:AAAAAA==\n\r\n\r\n\r\n",
        b"X-Amz-Checksum-CRC32: AAAAAA== \r\n\r\n",
    ],
)
def test_a_trailer_may_end_its_lines_as_clients_do(end: bytes) -> None:
    decoder = unsigned(5)
    assert decode(decoder, b"5\r\nabcde\r\n0\r\n", end) == b"abcde"
    assert decoder.trailers == dict(TRAILER)


@pytest.mark.parametrize(
    "end",
    [
        b"\r\n",
        b"x-amz-checksum-crc32c:AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-sha1:AA==\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32\r\n\r\n",
        b":AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32:\xff\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:00\r\n\r\n",
        b"a" * (MAX_TRAILER_BYTES + 1),
    ],
)
def test_a_trailer_must_be_the_one_announced(end: bytes) -> None:
    with pytest.raises(MalformedTrailerError):
        decode(unsigned(5), b"5\r\nabcde\r\n0\r\n", end)


def test_a_trailer_that_was_not_announced_is_refused() -> None:
    with pytest.raises(MalformedTrailerError):
        decode(unsigned(5, frozenset()), unsigned_body([b"abcde"], TRAILER))


def test_a_signed_trailer_must_be_signed_and_unchanged() -> None:
    wire = signed_body([b"abcde"], TRAILER)
    with pytest.raises(SignatureDoesNotMatch):
        decode(signed(5, NAMES), wire.replace(b"AAAAAA==", b"AAAAAB=="))
    start = wire.index(b"x-amz-trailer-signature")
    with pytest.raises(MalformedTrailerError):
        decode(signed(5, NAMES), wire[:start] + b"\r\n")
    with pytest.raises(MalformedTrailerError):
        # A line after the signature would be one that nobody signed.
        decode(signed(5, NAMES), wire[:-2] + b"x-amz-checksum-sha1:AA==\r\n\r\n")


@given(st.binary(max_size=300), st.booleans(), st.sampled_from([None, frozenset[str](), NAMES]))
def test_any_bytes_decode_or_raise_an_s3_error(
    raw: bytes, has_signer: bool, names: frozenset[str] | None
) -> None:
    for wire in (raw, b"5\r\nabcde\r\n0\r\n" + raw):
        decoder = ChunkedDecoder(5, signer=signer() if has_signer else None, announced=names)
        try:
            assert decode(decoder, wire) == b"abcde"
        except S3Error:
            continue
