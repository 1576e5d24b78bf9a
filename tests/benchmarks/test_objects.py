"""Objects are the same bytes however they are asked for."""

from hashlib import sha256
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks import objects

SIZE_BYTES = 2 * objects.BLOCK_BYTES + 5


@given(offset=st.integers(0, SIZE_BYTES), size_bytes=st.integers(0, 5000))
def test_a_piece_is_what_lies_there(offset: int, size_bytes: int) -> None:
    size_bytes = min(size_bytes, SIZE_BYTES - offset)
    whole = b"".join(objects.parts(3, SIZE_BYTES))
    piece = whole[offset : offset + size_bytes]
    assert objects.piece(3, offset, size_bytes) == piece
    assert objects.sha256_hex(3, offset, size_bytes) == sha256(piece).hexdigest()


def test_no_block_is_like_another() -> None:
    blocks = [
        objects.piece(number, block * objects.BLOCK_BYTES, 64)
        for number in range(3)
        for block in range(3)
    ]
    assert len(set(blocks)) == 9


def test_files_are_the_objects_and_not_new(tmp_path: Path) -> None:
    objects.write_files(tmp_path, "some", 2, 5000)
    path = tmp_path / objects.key("some", 1)
    assert path.read_bytes() == objects.piece(1, 0, 5000)
    assert path.stat().st_mtime < path.stat().st_ctime - 3000
