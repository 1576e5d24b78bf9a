"""The objects that are read and written: bytes that anybody can make again from a number.

Each block of 1 MiB begins with the object's number and its own, so that neither a chunk in the
wrong place nor another object's chunk can pass for the right one.
"""

import os
import random
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

BLOCK_BYTES = 1024**2
_BASE = random.Random(2).randbytes(BLOCK_BYTES)
_STAMP = struct.Struct(">QQ")
_REST = memoryview(_BASE)[_STAMP.size :]
# A file that changed a moment ago may change again: caches are right to be wary of it.
_AGE_SECONDS = 3600


def key(prefix: str, number: int) -> str:
    return f"{prefix}/{number:06d}"


def parts(number: int, size_bytes: int, first_block: int = 0) -> Iterator[bytes | memoryview]:
    """`size_bytes` of object `number` from a block on, in parts that cost no copy of the block."""
    for start in range(0, size_bytes, BLOCK_BYTES):
        stamp = _STAMP.pack(number, first_block + start // BLOCK_BYTES)
        left_bytes = size_bytes - start
        yield stamp[:left_bytes]
        if left_bytes > len(stamp):
            yield _REST[: left_bytes - len(stamp)]


def piece(number: int, offset: int, size_bytes: int) -> bytes:
    """`size_bytes` of object `number` from `offset` on."""
    block, skipped = divmod(offset, BLOCK_BYTES)
    return b"".join(parts(number, skipped + size_bytes, block))[skipped:]


@lru_cache(maxsize=65_536)
def sha256_hex(number: int, offset: int, size_bytes: int) -> str:
    block, skipped = divmod(offset, BLOCK_BYTES)
    digest = sha256()
    for part in parts(number, skipped + size_bytes, block):
        digest.update(memoryview(part)[skipped:])
        skipped = max(0, skipped - len(part))
    return digest.hexdigest()


def write_files(folder: Path, prefix: str, count: int, size_bytes: int) -> None:
    """Objects 0 to `count` - 1 as files under `folder`, an hour old."""
    changed = time.time() - _AGE_SECONDS
    for number in range(count):
        path = folder / key(prefix, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(parts(number, size_bytes))
        os.utime(path, (changed, changed))
