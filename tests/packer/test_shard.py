"""Shards: where the walk over the pages says a value lies, LMDB's own answer lies; and whatever a
file holds, the walk ends in a clear error or in places within the file."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packer.format import (
    EXTENT_BYTES,
    MIN_EXTENT_BYTES,
    ExtentBuilder,
    Located,
    ShardError,
    ShardWriter,
    extent_key,
    file_bytes,
    locate,
)

PAGE_BYTES = 4096
any_shard = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Sizes around the limit between a leaf and pages of its own, and around whole pages.
value_sizes = st.one_of(
    st.integers(0, 3000),
    st.integers(PAGE_BYTES - 60, PAGE_BYTES + 60),
    st.integers(0, 5).map(lambda pages: max(0, pages * PAGE_BYTES - 16)),
    st.just(70_000),
)


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def made(path: Path, values: dict[bytes, bytes]) -> Path:
    """A file as LMDB writes it, whatever the keys and sizes."""
    path.unlink(missing_ok=True)
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=64 * 1024**2) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key, value)
    return path


def read(path: Path, located: Located) -> bytes:
    with path.open("rb") as file:
        file.seek(located.offset)
        return file.read(located.length_bytes)


def as_lmdb_says(path: Path) -> list[tuple[bytes, bytes]]:
    with (
        lmdb.open(str(path), subdir=False, lock=False, readonly=True) as environment,
        environment.begin() as transaction,
        transaction.cursor() as cursor,
    ):
        return list(cursor)


def as_we_find(path: Path) -> list[tuple[bytes, bytes]]:
    return [(located.key, read(path, located)) for located in locate(path)]


@any_shard
@given(
    sizes=st.dictionaries(st.binary(min_size=1, max_size=511), value_sizes, max_size=60),
    seed=st.integers(0, 2**32),
)
def test_the_walk_finds_what_lmdb_finds(tmp_path: Path, sizes: dict[bytes, int], seed: int) -> None:
    values = {
        key: bytes_of(seed + number, size) for number, (key, size) in enumerate(sizes.items())
    }
    path = made(tmp_path / "any.lmdb", values)
    assert as_we_find(path) == as_lmdb_says(path) == sorted(values.items())


@pytest.mark.parametrize("key_bytes", [8, 400])
def test_trees_of_several_levels_are_walked_in_order(tmp_path: Path, key_bytes: int) -> None:
    values = {
        number.to_bytes(4, "big").rjust(key_bytes, b"k"): bytes_of(number, 10 + number % 50)
        for number in range(5000)
    }
    path = made(tmp_path / "deep.lmdb", values)
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True) as environment:
        assert environment.stat()["depth"] == (2 if key_bytes == 8 else 4)
    assert as_we_find(path) == sorted(values.items())


@any_shard
@given(
    first=st.dictionaries(st.binary(min_size=1, max_size=40), value_sizes, min_size=1, max_size=30),
    second=st.dictionaries(st.binary(min_size=1, max_size=40), value_sizes, max_size=30),
    deleted=st.integers(0, 30),
)
def test_only_the_last_commit_counts(
    tmp_path: Path, first: dict[bytes, int], second: dict[bytes, int], deleted: int
) -> None:
    path = made(tmp_path / "rewritten.lmdb", {key: bytes_of(1, first[key]) for key in first})
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=64 * 1024**2) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key in sorted(first)[:deleted]:
            transaction.delete(key)
        for key, size in second.items():
            transaction.put(key, bytes_of(2, size))
    assert as_we_find(path) == as_lmdb_says(path)


def test_a_shard_of_many_extents_holds_each_where_the_commit_said(tmp_path: Path) -> None:
    path = tmp_path / "1.lmdb"
    extents = [bytes_of(number, MIN_EXTENT_BYTES + 777 * (number % 40)) for number in range(700)]
    said: list[Located] = []
    with ShardWriter(path, 64 * 1024**2) as writer:
        for number, extent in enumerate(extents):
            assert writer.append(extent) == number
            if number % 3 == 0:
                said += writer.commit()
        said += writer.commit()
        assert writer.extents == len(extents)
        # Read while the shard still grows, as the cache does.
        assert [read(path, located) for located in said] == extents
        assert writer.file_bytes == path.stat().st_size
    assert locate(path) == said
    assert [located.key for located in said] == [extent_key(n) for n in range(len(extents))]
    assert as_lmdb_says(path) == [(extent_key(n), extent) for n, extent in enumerate(extents)]


@given(sizes=st.lists(st.integers(MIN_EXTENT_BYTES, 300_000), min_size=1, max_size=20))
@any_shard
def test_a_commit_makes_the_file_grow_no_further_than_foretold(
    tmp_path: Path, sizes: list[int]
) -> None:
    path = tmp_path / "1.lmdb"
    path.unlink(missing_ok=True)
    with ShardWriter(path, 64 * 1024**2) as writer:
        before = 0
        for size in sizes:
            writer.append(bytes(size))
            writer.commit()
            assert writer.file_bytes - before <= file_bytes(size)
            before = writer.file_bytes


def test_what_was_not_committed_is_not_in_the_shard(tmp_path: Path) -> None:
    path = tmp_path / "1.lmdb"
    with ShardWriter(path, 1024**2) as writer:
        writer.append(b"a" * 5000)
        writer.commit()
        writer.append(b"b" * 5000)
        assert writer.extents == 1
    writer.close()
    assert [value for _, value in as_we_find(path)] == [b"a" * 5000]


def test_a_commit_that_does_not_fit_leaves_the_shard_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "1.lmdb"
    with ShardWriter(path, 1024**2) as writer:
        writer.append(b"a" * 5000)
        (first,) = writer.commit()
        with pytest.raises(lmdb.MapFullError):
            writer.append(bytes(5 * EXTENT_BYTES))
    assert locate(path) == [first]


def test_values_that_might_move_are_refused(tmp_path: Path) -> None:
    with (
        ShardWriter(tmp_path / "1.lmdb", 1024**2) as writer,
        pytest.raises(ValueError, match="4080"),
    ):
        writer.append(bytes(MIN_EXTENT_BYTES - 1))


@given(sizes=st.lists(st.integers(0, 3000), max_size=30), target=st.integers(1, 10_000))
def test_an_extent_holds_its_objects_back_to_back(sizes: list[int], target: int) -> None:
    builder = ExtentBuilder(target)
    pieces = []
    for number, size in enumerate(sizes):
        if builder.fits(size):
            data = bytes_of(number, size)
            pieces.append((builder.add(data), data))
    value = builder.value()
    assert len(builder) == len(pieces)
    assert all(value[offset : offset + len(data)] == data for offset, data in pieces)
    assert sum(len(data) for _, data in pieces) == builder.size_bytes
    assert builder.size_bytes <= max(target, max(sizes, default=0))
    assert len(value) == max(builder.size_bytes, MIN_EXTENT_BYTES)


def valid_file(path: Path) -> bytes:
    values = {
        extent_key(number): bytes_of(number, 100 if number % 2 else 9000) for number in range(200)
    }
    return made(path, values).read_bytes()


def within(path: Path) -> None:
    """The file is refused, or every place found lies within it."""
    size = path.stat().st_size
    try:
        found = locate(path)
    except ShardError:
        return
    assert all(0 <= place.offset <= place.offset + place.length_bytes <= size for place in found)


@any_shard
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_refused_or_found_within(tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.lmdb"
    whole = valid_file(path)
    path.write_bytes(whole[: int(len(whole) * share)])
    within(path)


@pytest.mark.parametrize("size_bytes", [0, 1, 16, 100, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES])
def test_a_file_without_its_tree_is_refused(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "cut.lmdb"
    path.write_bytes(valid_file(path)[:size_bytes])
    with pytest.raises(ShardError):
        locate(path)


@any_shard
@given(garbage=st.binary(max_size=20_000))
def test_garbage_is_refused(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "garbage.lmdb"
    path.write_bytes(garbage)
    with pytest.raises(ShardError):
        locate(path)


@settings(any_shard, max_examples=300)
@given(data=st.data())
def test_a_damaged_tree_never_leads_out_of_the_file(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "damaged.lmdb"
    if not path.exists():
        valid_file(path)
        path.rename(tmp_path / "whole")
    raw = bytearray((tmp_path / "whole").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Heads of pages and of metas, where a flipped bit means something else.
        page = data.draw(st.integers(0, len(raw) // PAGE_BYTES - 1))
        at = page * PAGE_BYTES + data.draw(st.integers(0, 170))
        raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    within(path)


def test_a_tree_that_turns_back_on_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cycle.lmdb"
    made(path, {number.to_bytes(4, "big"): bytes(100) for number in range(2000)})
    raw = bytearray(path.read_bytes())
    branches = [
        start
        for start in range(2 * PAGE_BYTES, len(raw), PAGE_BYTES)
        if struct.unpack_from("<H", raw, start + 10)[0] & 1
    ]
    assert branches
    for start in branches:
        number = struct.unpack_from("<Q", raw, start)[0]
        lower = struct.unpack_from("<H", raw, start + 12)[0]
        for pointer in range(16, lower, 2):
            node = start + struct.unpack_from("<H", raw, start + pointer)[0]
            struct.pack_into("<HHH", raw, node, number & 0xFFFF, number >> 16, 0)
    path.write_bytes(raw)
    with pytest.raises(ShardError):
        locate(path)


def test_a_shard_cut_short_under_its_reader_does_not_kill_it(tmp_path: Path) -> None:
    path = tmp_path / "cut.lmdb"
    whole = valid_file(path)
    script = (
        "import sys; from pathlib import Path; from packer.format import ShardError, locate\n"
        "path, size = Path(sys.argv[1]), int(sys.argv[2])\n"
        "raw = path.read_bytes()\n"
        "for end in range(0, size, 997):\n"
        "    path.write_bytes(raw[:end])\n"
        "    try: locate(path)\n"
        "    except ShardError: pass\n"
        "print('alive')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(len(whole))], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_missing_shard_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locate(tmp_path / "none.lmdb")
