"""Which chunks of an object version a node holds, as it stands in Redis. Pure.

The chunks of a version fall into stretches of 4,096, so that an entry stays small however large the
object is. An entry is a bitmap, or a list of numbers where that is shorter: a node is home to few
chunks of an object that many nodes share.
"""

import base64
import struct
from collections.abc import Iterator

STRETCH_CHUNKS = 4096

_BITMAP = b"\0"
_NUMBERS = b"\1"


def stretch_key(digest: bytes, number: int) -> bytes:
    """Under which stretch chunk `number` of the version with that digest is listed."""
    return digest + (number // STRETCH_CHUNKS).to_bytes(3, "big")


def stretch_name(key: bytes) -> str:
    """A stretch in the name of a key of Redis."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def stretch_named(name: str) -> bytes | None:
    """What `stretch_name` made the name of; None where it is not one."""
    try:
        key = base64.b64decode(name + "=" * (-len(name) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return key if len(key) == 19 else None


def first_chunk(key: bytes) -> int:
    """The number of a stretch's first chunk."""
    return int.from_bytes(key[16:], "big") * STRETCH_CHUNKS


def bit_of(number: int) -> int:
    """The bit of chunk `number` within its stretch."""
    return 1 << (number % STRETCH_CHUNKS)


def chunks_in(bits: int) -> Iterator[int]:
    """The places, from 0, of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def encode_bits(bits: int) -> bytes:
    """The shortest entry for these bits; empty where there are none."""
    if not bits:
        return b""
    bitmap_bytes = (bits.bit_length() + 7) // 8
    count = bits.bit_count()
    if 2 * count < bitmap_bytes:
        return _NUMBERS + struct.pack(f"<{count}H", *chunks_in(bits))
    return _BITMAP + bits.to_bytes(bitmap_bytes, "little")


def decode_bits(raw: bytes) -> int:
    """The bits of an entry; none of one that is not understood."""
    if raw[:1] == _BITMAP:
        # No more than a stretch has, whoever wrote it.
        return int.from_bytes(raw[1 : 1 + STRETCH_CHUNKS // 8], "little")
    if raw[:1] != _NUMBERS or len(raw) % 2 == 0:
        return 0
    bits = 0
    for place in struct.unpack(f"<{len(raw) // 2}H", raw[1:]):
        if place < STRETCH_CHUNKS:
            bits |= 1 << place
    return bits
