"""The checksum over every value of the index: what the disk has changed is absent, not wrong."""

import xxhash

SEAL_BYTES = 8

_digest = xxhash.xxh3_64_digest


def sealed(key: bytes, value: bytes) -> bytes:
    """A value as it lies in the file, under a checksum of itself and its key."""
    return _digest(key + value) + value


def unsealed(key: bytes, raw: bytes) -> bytes | None:
    """The value that was sealed under that key; None where a bit of either has changed."""
    value = raw[SEAL_BYTES:]
    return value if raw[:SEAL_BYTES] == _digest(key + value) else None
