"""An index gives back what was put in, in the order of a listing, whatever the keys."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from packer.format import Index, IndexDamaged, IndexWriter, Record, ShardRef, etag_bytes, etag_text
from packer.format.records import HEAD_BYTES

any_index = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HEAD = b"h" * HEAD_BYTES
# Around the length at which keys begin to share values, and with common beginnings.
keys = st.one_of(
    st.text(min_size=1, max_size=20).map(str.encode),
    st.text("ab/", min_size=1, max_size=8).map(str.encode),
    st.binary(max_size=6).map(lambda rest: HEAD[:-2] + rest),
    st.binary(max_size=1024 - HEAD_BYTES).map(lambda rest: HEAD + rest),
).filter(lambda key: 0 < len(key) <= 1024)
records = st.builds(
    Record,
    size_bytes=st.integers(0, 2**42),
    etag=st.one_of(st.just("d41d8cd98f00b204e9800998ecf8427e"), st.text(max_size=9)).map(
        etag_bytes
    ),
    modified_ms=st.integers(0, 2**45),
    shard=st.none() | st.integers(0, 500),
    offset=st.integers(0, 2**36),
    checksum=st.integers(0, 2**64 - 1),
    headers=st.dictionaries(st.sampled_from(["content-type", "x-amz-meta-a"]), st.text(max_size=5)),
    generation=st.integers(0, 99),
    tags=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple),
    made=st.booleans(),
)


def written(path: Path, entries: dict[bytes, Record]) -> Index:
    path.unlink(missing_ok=True)
    writer = IndexWriter(path)
    for key in sorted(entries):
        writer.add(key, entries[key])
    writer.close([ShardRef("a" * 64, 5)])
    return Index(path)


@given(entries=st.dictionaries(keys, records, max_size=40), start=keys)
@any_index
def test_every_key_is_found_and_walked_in_order(
    tmp_path: Path, entries: dict[bytes, Record], start: bytes
) -> None:
    with written(tmp_path / "index", entries) as index:
        assert list(index.walk()) == sorted(entries.items())
        assert list(index.walk(start)) == [e for e in sorted(entries.items()) if e[0] >= start]
        assert {key: index.get(key) for key in entries} == entries
        if start not in entries:
            assert index.get(start) is None
        assert index.shards == [ShardRef("a" * 64, 5)]


def test_many_long_keys_that_begin_alike_are_found(tmp_path: Path) -> None:
    entries = {
        HEAD + b"%06d" % number + b"x" * 300: Record(number, b"t", 0) for number in range(3000)
    }
    with written(tmp_path / "index", entries) as index:
        assert [key for key, _ in index.walk()] == sorted(entries)
        for key, record in entries.items():
            assert index.get(key) == record
        middle = HEAD + b"001500"
        assert [record.size_bytes for _, record in index.walk(middle)] == list(range(1500, 3000))
        assert index.get(middle) is None
        assert index.get(HEAD) is None


def test_keys_come_in_order_each_once(tmp_path: Path) -> None:
    writer = IndexWriter(tmp_path / "index")
    writer.add(b"b", Record(1, b"t", 0))
    for key in (b"b", b"a"):
        with pytest.raises(ValueError, match="order"):
            writer.add(key, Record(1, b"t", 0))
    writer.abandon()


def test_more_sets_of_headers_than_are_shared_are_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.format.index.SHARED_HEADERS", 2)
    entries = {b"%d" % n: Record(1, b"t", 0, headers={"x-amz-meta-n": str(n)}) for n in range(6)}
    with written(tmp_path / "index", entries) as index:
        assert dict(index.walk()) == entries


@given(etag=st.text(max_size=40) | st.from_regex(r"[0-9a-f]{32}(-[0-9]{1,5})?", fullmatch=True))
@example(etag="D41D8CD98F00B204E9800998ECF8427E")
@example(etag="d41d8cd98f00b204e9800998ecf8427e-٣")
@example(etag="d41d8cd98f00b204e9800998ecf8427e\n")
def test_etags_come_back(etag: str) -> None:
    assert etag_text(etag_bytes(etag)) == etag


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 5000, 20_000])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "index"
    path.write_bytes(os.urandom(size_bytes))
    with pytest.raises(IndexDamaged):
        Index(path)


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    import lmdb

    path = tmp_path / "index"
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"\x00format", b"\x02")
    with pytest.raises(IndexDamaged):
        Index(path)
