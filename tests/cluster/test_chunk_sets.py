"""Entries of the directory say which chunks are held, in as few bytes as it takes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.chunk_sets import (
    STRETCH_CHUNKS,
    bit_of,
    chunks_in,
    decode_bits,
    encode_bits,
    first_chunk,
    stretch_key,
    stretch_name,
    stretch_named,
)

places = st.sets(st.integers(0, STRETCH_CHUNKS - 1))
numbers = st.integers(0, 2**32 - 1)


def bits_of(chunks: set[int]) -> int:
    return sum(1 << chunk for chunk in chunks)


@given(places)
def test_what_was_encoded_is_decoded(chunks: set[int]) -> None:
    bits = bits_of(chunks)

    assert decode_bits(encode_bits(bits)) == bits
    assert set(chunks_in(bits)) == chunks


@given(places)
def test_an_entry_is_no_longer_than_a_bitmap_or_a_list(chunks: set[int]) -> None:
    size_bytes = len(encode_bits(bits_of(chunks)))

    assert size_bytes <= 1 + STRETCH_CHUNKS // 8
    assert size_bytes <= 1 + 2 * len(chunks)


@given(st.binary(max_size=700))
def test_whatever_stands_in_redis_decodes_to_chunks_of_a_stretch(raw: bytes) -> None:
    assert 0 <= decode_bits(raw) < 1 << STRETCH_CHUNKS


@given(st.binary(min_size=16, max_size=16), numbers)
def test_a_chunk_is_found_in_its_stretch(digest: bytes, number: int) -> None:
    key = stretch_key(digest, number)
    place = next(chunks_in(bit_of(number)))

    assert first_chunk(key) + place == number
    assert stretch_named(stretch_name(key)) == key


@given(st.text(max_size=40))
def test_a_name_that_is_no_stretch_is_none(name: str) -> None:
    key = stretch_named(name) if name.isascii() else None

    assert key is None or len(key) == 19


def test_nothing_held_is_no_entry() -> None:
    assert encode_bits(0) == b""
    assert decode_bits(b"") == 0
