"""The plan: what becomes of a key, decided from what is known of it and nothing else."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format import Override, Record, ShardFile, etag_bytes
from packer.format.overrides import Stand
from packer.ordering import ordered, shuffle_key
from packer.plan import (
    Scope,
    Source,
    Task,
    cut,
    decide,
    same,
    settle,
    still_made,
    valid_order,
    worn_out,
)
from packer.runs import Sorter, join
from packer.stores.protocol import Listed
from packer.targets import odd_path, path_of, sample_of

SCOPE = Scope(largest_bytes=100)
LISTED = Listed("a", 10, "e", 1000)
PACKED = Record(10, etag_bytes("e"), 1000, shard=3, generation=2)
CHANGED = msgspec.structs.replace(LISTED, etag="f")
DELETED = Stand(Override(op="delete", key="a"), True)


def doing(listed: Listed | None, old: Record | None, *done: Record, gone_through: int = 0) -> str:
    return decide(b"a", listed, old, done, None, SCOPE._replace(gone_through=gone_through)).doing


@pytest.mark.parametrize(
    ("listed", "old", "expected"),
    [
        (LISTED, None, "read"),
        (LISTED, PACKED, "keep"),
        (CHANGED, PACKED, "read"),
        (msgspec.structs.replace(LISTED, modified_ms=1001), PACKED, "read"),
        (LISTED, msgspec.structs.replace(PACKED, shard=None), "read"),
        (msgspec.structs.replace(LISTED, size_bytes=101), None, "plain"),
        (msgspec.structs.replace(LISTED, storage_class="GLACIER"), None, "plain"),
        (None, PACKED, "gone"),
    ],
)
def test_a_key_is_read_kept_left_or_forgotten(
    listed: Listed | None, old: Record | None, expected: str
) -> None:
    assert doing(listed, old) == expected


def test_a_key_whose_original_may_be_gone_stays_though_it_is_not_listed() -> None:
    assert doing(None, PACKED, gone_through=2) == "keep"
    assert doing(None, PACKED, gone_through=1) == "gone"
    assert doing(None, msgspec.structs.replace(PACKED, made=True)) == "keep"
    deleted = decide(b"a", None, PACKED, (), DELETED, SCOPE._replace(gone_through=2))
    assert deleted.doing == "gone"


def test_what_an_interrupted_pack_did_is_done_if_it_is_the_same_version() -> None:
    fresh = msgspec.structs.replace(PACKED, shard=None)
    assert doing(LISTED, None, fresh) == "done"
    assert doing(CHANGED, None, fresh) == "read"


def test_the_index_believes_the_second_listing() -> None:
    assert settle(LISTED, [PACKED], None, SCOPE) == PACKED
    assert settle(CHANGED, [PACKED], None, SCOPE) == Record(10, etag_bytes("f"), 1000)
    assert settle(None, [PACKED], None, SCOPE) is None
    assert settle(None, [PACKED], None, SCOPE._replace(gone_through=2)) == PACKED
    # What the listing shows is there, whatever the log said before.
    assert settle(LISTED, [PACKED], DELETED, SCOPE) == PACKED


def test_members_of_an_older_version_of_a_file_are_not_made_any_more() -> None:
    made = msgspec.structs.replace(PACKED, made=True)
    this, other = Source(1000, unchanged=True), Source(2000, unchanged=True)
    assert still_made("x/m", [], [made, PACKED], {"x": this}) == [made, PACKED]
    assert still_made("x/m", [made], [made, PACKED], {"x": other}) == [PACKED]
    assert still_made("x/m", [made], [made], {"y": other}) == [made, made]


def test_a_file_that_was_replaced_within_a_second_is_another_version() -> None:
    made = msgspec.structs.replace(PACKED, made=True)
    changed = Source(1000, unchanged=False)
    assert still_made("x/m", [], [made, PACKED], {"x": changed}) == [PACKED]
    assert still_made("x/m", [made], [PACKED], {"x": changed}) == [made, PACKED]


@given(sizes=st.lists(st.integers(0, 50)), limit=st.integers(1, 100))
def test_shards_hold_whole_objects_in_order_up_to_their_size(sizes: list[int], limit: int) -> None:
    counts = list(cut(sizes, limit))
    assert sum(counts) == len(sizes)
    position = 0
    for count in counts:
        held = sizes[position : position + count]
        assert count == 1 or sum(held) <= limit
        following = sizes[position + count : position + count + 1]
        assert not following or sum(held) + following[0] > limit
        position += count


def test_shards_of_which_little_lives_are_worn_out() -> None:
    shard = ShardFile(sha256="a" * 64, size_bytes=1, objects=1, object_bytes=100)
    assert worn_out([shard] * 3, {0: 75, 1: 74}) == {1, 2}
    empty = msgspec.structs.replace(shard, object_bytes=0)
    assert worn_out([empty, empty], {0: 0}) == {1}


@pytest.mark.parametrize("order", ["lexical", "shuffled:7", "shuffled:-1", "file:a b"])
def test_orders_that_there_are(order: str) -> None:
    assert valid_order(order)


@pytest.mark.parametrize("order", ["", "lexical2", "shuffled:", "shuffled:x", "file:", "random"])
def test_orders_that_there_are_not(order: str) -> None:
    assert not valid_order(order)


def tasks(*keys: str) -> list[Task]:
    return [Task(key, 1, "e", 1) for key in keys]


def names(found: object) -> list[str]:
    return [task.key for task in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_an_order_is_the_same_however_it_is_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("packer.runs._SORTED_AT_ONCE", at_once)
    keys = [f"k{number:02}" for number in range(20)]
    order = tmp_path / "order"
    order.write_text("k05\nk01\r\nnone\n\nk03\nk01")
    (tmp_path / "a").mkdir()
    assert names(ordered(tasks(*keys), "lexical", tmp_path)) == keys
    shuffled = names(ordered(tasks(*keys), "shuffled:1", tmp_path / "a"))
    assert shuffled == sorted(keys, key=lambda key: shuffle_key("1", key)) != keys
    by_file = names(ordered(tasks(*keys), f"file:{order}", tmp_path))
    rest = [key for key in keys if key not in ("k05", "k01", "k03")]
    assert by_file == ["k05", "k01", "k03", *rest]


@given(
    entries=st.lists(st.tuples(st.binary(max_size=3), st.integers()), max_size=50),
    at_once=st.integers(1, 60),
)
def test_a_sorter_sorts_and_keeps_arrivals_in_order(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, int]], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.runs._SORTED_AT_ONCE", at_once)
        sorter: Sorter[int] = Sorter(tmp_path_factory.mktemp("sort"), "s", int)
        for key, value in entries:
            sorter.add(key, value % 2**60)
        found = list(sorter)
    assert found == sorted(((k, v % 2**60) for k, v in entries), key=lambda entry: entry[0])


@given(
    streams=st.lists(
        st.lists(st.tuples(st.binary(max_size=2), st.integers()), max_size=8), max_size=3
    )
)
def test_streams_are_joined_by_key(streams: list[list[tuple[bytes, int]]]) -> None:
    ordered_streams = [sorted(stream) for stream in streams]
    found = list(join(*ordered_streams))
    assert [key for key, _ in found] == sorted({k for stream in streams for k, _ in stream})
    for key, values in found:
        assert values == [[v for k, v in stream if k == key] for stream in ordered_streams]


@given(key=st.text(st.characters(exclude_categories=["Cs"]), max_size=400))
def test_every_key_has_a_path_below_the_directory(key: str) -> None:
    for path in (path_of(key), odd_path(key)):
        parts = path.split("/")
        assert all(part not in ("", ".", "..") and "\0" not in part for part in parts)
        assert all(len(part.encode()) <= 255 for part in parts)


@given(keys=st.lists(st.text("ab./%+", min_size=1, max_size=500), min_size=2, unique=True))
def test_odd_paths_differ_and_none_is_anothers_folder(keys: list[str]) -> None:
    paths = [odd_path(key) for key in keys]
    assert len(set(paths)) == len(paths)
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    assert not folders & set(paths)


def test_a_sample_is_a_name_up_to_its_first_dot() -> None:
    assert sample_of("a.b/c.seg.png") == "a.b/c"
    assert sample_of("c") == "c"


def test_versions_are_told_apart_by_all_that_is_known() -> None:
    assert same(PACKED, LISTED)
    assert not same(msgspec.structs.replace(PACKED, size_bytes=11), LISTED)
