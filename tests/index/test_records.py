"""Records come back as they went in, name what they are of, and refuse what they are not of."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.index.records import (
    ChunkRecord,
    ExtentEntry,
    ObjectRecord,
    SmallRecord,
    block_sums,
    chunk_key,
    decode_chunk,
    decode_object,
    decode_small,
    encode,
    extent_key,
    find,
    is_of,
    name_of,
    object_key,
    pack_entries,
    pack_sums,
    unpack_entries,
    version_of,
    with_info,
)
from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, Span

# Any text a client may send as a key, lone surrogates included; more than LMDB's key holds.
keys = st.text(st.characters(), min_size=1, max_size=600)
version_ids = st.none() | st.text(st.characters(), max_size=20)
refs = st.builds(
    ObjectRef, st.sampled_from(["main", "other"]), st.sampled_from(["b", "c"]), keys, version_ids
)
etags = st.text(st.characters(), max_size=40)
versions = st.builds(ObjectVersion, refs, etags, st.integers(0, 2**50))
sums = st.lists(st.integers(0, 2**64 - 1), max_size=20)


def some_info(etag: str = "e", size_bytes: int = 1) -> ObjectInfo:
    return ObjectInfo(etag=etag, size_bytes=size_bytes, last_modified_ms=1)


@given(version=versions, size_bytes=st.integers(0, 2**40), sums=sums)
def test_a_chunk_record_comes_back(
    version: ObjectVersion, size_bytes: int, sums: list[int]
) -> None:
    record = ChunkRecord(name_of(version), size_bytes, pack_sums(sums))
    again = decode_chunk(encode(record))
    assert again == record
    for first in range(len(sums)):
        for count in range(len(sums) - first + 1):
            assert list(block_sums(again.sums, first, count)) == sums[first : first + count]
    for first, count in ((-1, 1), (len(sums), 1), (0, len(sums) + 1)):
        with pytest.raises(IndexError):
            block_sums(again.sums, first, count)


@given(version=versions, numbers=st.lists(st.integers(0, 2**32), min_size=5, max_size=5))
def test_a_small_record_comes_back(version: ObjectVersion, numbers: list[int]) -> None:
    shard, extent, ordinal, offset, size_bytes = numbers
    record = SmallRecord(name_of(version), shard, extent, ordinal, offset, size_bytes, 2**64 - 1)
    assert decode_small(encode(record)) == record


@given(garbage=st.binary(max_size=300))
def test_garbage_is_no_record(garbage: bytes) -> None:
    for decode in (decode_chunk, decode_small, decode_object):
        try:
            record: ChunkRecord | SmallRecord | ObjectRecord = decode(garbage)
        except msgspec.MsgspecError:
            continue
        assert decode(encode(record)) == record


@given(first=versions, second=versions)
def test_a_record_is_of_its_own_version_only(first: ObjectVersion, second: ObjectVersion) -> None:
    record = ChunkRecord(name_of(first), 10, b"")
    assert is_of(record, Span(first, 0, 0, 10))
    assert not is_of(record, Span(first, 0, 0, 11))
    assert is_of(record, Span(second, 0, 0, 10)) == (first == second)


@given(first=refs, second=refs)
def test_keys_of_different_objects_are_filed_apart(first: ObjectRef, second: ObjectRef) -> None:
    one, other = ((ref.origin, ref.bucket, ref.key) for ref in (first, second))
    assert (object_key(first) == object_key(second)) == (one == other)


def test_names_that_run_together_are_filed_apart() -> None:
    assert object_key(ObjectRef("a", "bc", "d")) != object_key(ObjectRef("ab", "c", "d"))
    assert object_key(ObjectRef("a", "b", "cd")) != object_key(ObjectRef("a", "bc", "d"))


@given(number=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_chunks_and_extents_are_filed_in_their_order(number: int, other: int) -> None:
    digest = bytes(16)
    assert (chunk_key(digest, number) < chunk_key(digest, other)) == (number < other)
    assert (extent_key(number, 7) < extent_key(other, 7)) == (number < other)
    assert (extent_key(7, number) < extent_key(7, other)) == (number < other)


@given(ref=refs, ids=st.lists(version_ids, min_size=1, max_size=10))
def test_every_version_id_of_a_key_is_found_with_its_latest(
    ref: ObjectRef, ids: list[str | None]
) -> None:
    record: ObjectRecord | None = None
    latest: dict[str | None, ObjectInfo] = {}
    for number, version_id in enumerate(ids):
        of = ObjectRef(ref.origin, ref.bucket, ref.key, version_id)
        latest[version_id] = some_info(f"e{number}", number)
        record = with_info(record, of, latest[version_id])
    assert record is not None
    record = decode_object(encode(record))
    for version_id, info in latest.items():
        of = ObjectRef(ref.origin, ref.bucket, ref.key, version_id)
        assert find(record, of) == info
    assert find(record, ObjectRef(ref.origin, ref.bucket, ref.key + "x")) is None
    assert {version_of(ref, remembered) for remembered in record.versions} == {
        ObjectVersion(
            ObjectRef(ref.origin, ref.bucket, ref.key, version_id), info.etag, info.size_bytes
        )
        for version_id, info in latest.items()
    }


def test_beyond_sixteen_versions_the_oldest_are_forgotten() -> None:
    record: ObjectRecord | None = None
    refs = [ObjectRef("main", "b", "k", f"v{number}") for number in range(20)]
    for ref in refs:
        record = with_info(record, ref, some_info())
    assert record is not None
    assert [find(record, ref) is not None for ref in refs] == [False] * 4 + [True] * 16


def test_a_header_that_is_not_text_cannot_be_encoded() -> None:
    ref = ObjectRef("main", "b", "k")
    odd = ObjectInfo(etag="e", size_bytes=1, last_modified_ms=1, headers={"x": "\udcff"})
    with pytest.raises(UnicodeEncodeError):
        encode(with_info(None, ref, odd))


entries = st.lists(
    st.builds(
        ExtentEntry,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    max_size=10,
)


@given(entries=entries, tail=st.binary(min_size=1, max_size=23))
def test_the_list_of_an_extent_comes_back_or_is_empty(
    entries: list[ExtentEntry], tail: bytes
) -> None:
    raw = pack_entries(entries)
    assert unpack_entries(raw) == entries
    assert unpack_entries(raw + tail) == []
