"""Listings of a folder: the order of keys, whatever the folders; bounded, and never stale."""

import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.model.objects import ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin, walk
from gateway.tiers.origin_directory.folders import Folder
from gateway.tiers.origin_directory.paths import names_of
from tests.tiers.origin_contract import ANY, listed, page, put

LONG_AGO_NS = 1_600_000_000 * 1_000_000_000

# What sorts around a slash, what is escaped, what is cut into pieces, what is not ASCII.
PIECES = st.sampled_from(
    ["", ".", "..", "a", "a-", "a.", "a0", "a\0", "a\x01", "A", "%", "ä", "\uff5e", "\U0001f4be",
     ".feedrack~o", ".feedrack~state", ".nfs0", "k" * 255, "k" * 256, "k" * 300 + "é"]
)  # fmt: skip
KEYS = st.lists(PIECES, min_size=1, max_size=3).map("/".join).filter(bool)


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[DirectoryOrigin]:
    origin = DirectoryOrigin("nas", tmp_path, Metrics())
    await origin.start()
    yield origin
    await origin.close()


def plant(bucket: Path, keys: set[str]) -> None:
    """Files where the objects of these keys lie, as others might have put them there."""
    bucket.mkdir()
    for key in sorted(keys, key=len, reverse=True):
        path = bucket.joinpath(*names_of(key))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path /= ".feedrack~o"
        path.write_bytes(b"")


def expected(
    keys: set[str], *, prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000
) -> tuple[list[str], list[str], bool]:
    """The keys, the common prefixes and whether more follow, as S3 says."""
    names: list[str] = []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        place = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if place < 0 else key[: place + len(delimiter)]
        if (place < 0 or name != after) and name not in names[-1:]:
            names.append(name)
    shown = names[:limit]
    # A key that ends with the delimiter is folded like all keys below it.
    prefixes = [name for name in shown if delimiter and name.find(delimiter, len(prefix)) >= 0]
    return [name for name in shown if name not in prefixes], prefixes, len(names) > limit


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=st.sets(KEYS, max_size=12),
    prefix=KEYS,
    cut=st.integers(0, 8),
    after=st.one_of(st.just(""), KEYS),
    delimiter=st.sampled_from(["", "/", "a", "-", "é", "\0"]),
    limit=st.sampled_from([1, 2, 1000]),
)
@example(keys={"a", "a/b", "a-", "a0"}, prefix="", cut=0, after="a/b", delimiter="", limit=1)
@example(keys={"a/", "a//", "a/b"}, prefix="a/", cut=2, after="a/", delimiter="/", limit=1)
async def test_a_page_is_what_sorting_all_keys_gives(
    tmp_path_factory: pytest.TempPathFactory,
    keys: set[str],
    prefix: str,
    cut: int,
    after: str,
    delimiter: str,
    limit: int,
) -> None:
    root = tmp_path_factory.mktemp("root")
    plant(root / "bucket", keys)
    prefix = prefix[:cut]
    origin = DirectoryOrigin("nas", root, Metrics())
    await origin.start()
    try:
        found = await page(
            origin, "bucket", prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )
        objects = [entry.key for entry in found.objects]
        assert (objects, list(found.common_prefixes), found.next_after is not None) == expected(
            keys, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )
        assert await listed(origin, "bucket", limit=limit) == sorted(keys, key=str.encode)
    finally:
        await origin.close()


@given(
    st.sets(st.sampled_from(["a", "a-", "a.", "a0", "b", "b\x01", "c", "d"])),
    st.sets(st.sampled_from(["A", "aa", "b-", "e", "f"])),
    st.integers(1, 5),
    st.sampled_from([b"", b"a", b"a/", b"b", b"z"]),
)
@settings(deadline=None)
def test_windows_of_a_folder_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    files: set[str],
    folders: set[str],
    limit: int,
    start: bytes,
) -> None:
    root = tmp_path_factory.mktemp("folder")
    for name in files:
        (root / name).touch()
    for name in folders:
        (root / name).mkdir()
    wanted = sorted(
        name
        for name in {name.encode() for name in files | folders}
        | {name.encode() + b"/" for name in folders}
        if name >= start
    )
    found: list[bytes] = []
    with Folder.at(root) as folder:
        while True:
            entries = walk._read(folder, start, limit)
            assert len(entries.names) <= limit
            assert entries.folders == {name for name in entries.names if name.decode() in folders}
            found += entries.names
            if entries.is_last:
                break
            start = entries.names[-1] + b"\0"
    assert found == wanted


def rest(folder: Path) -> None:
    """Makes the folder one that nobody has written to for long."""
    os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))


async def test_a_long_key_is_listed_at_once_in_a_large_folder_at_rest(
    origin: DirectoryOrigin, tmp_path: Path
) -> None:
    # Long keys share a folder of pieces, whose changes do not touch the folder that is listed.
    keys = {f"{number:04d}" for number in range(1100)}
    plant(tmp_path / "bucket", keys)
    await put(origin, ObjectRef("nas", "bucket", "k" * 299 + "1"), b"")
    rest(tmp_path / "bucket")
    assert len(await listed(origin, "bucket")) == 1101
    rest(tmp_path / "bucket")
    await put(origin, ObjectRef("nas", "bucket", "k" * 299 + "2"), b"")
    assert (tmp_path / "bucket").stat().st_mtime_ns == LONG_AGO_NS
    assert (await listed(origin, "bucket"))[-2:] == ["k" * 299 + "1", "k" * 299 + "2"]


async def test_pages_of_a_large_folder_at_rest_read_it_once(
    origin: DirectoryOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {f"{number:04d}" for number in range(1500)}
    plant(tmp_path / "bucket", keys)
    rest(tmp_path / "bucket")
    scans = 0
    read = walk._read

    def counted(folder: Folder, start: bytes, limit: int) -> walk.Entries:
        nonlocal scans
        scans += 1
        return read(folder, start, limit)

    monkeypatch.setattr(walk, "_read", counted)
    assert await listed(origin, "bucket", limit=100) == sorted(keys)
    assert scans == 1
    # And once more when something has changed.
    await origin.delete(ObjectRef("nas", "bucket", "0000"), ANY)
    assert (await listed(origin, "bucket", limit=1000))[0] == "0001"
    assert scans > 1


async def test_a_narrow_prefix_does_not_look_past_its_end(
    origin: DirectoryOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "bucket", {f"{number:04d}" for number in range(2000)})
    rest(tmp_path / "bucket")
    looked: list[bytes] = []
    wants = walk.Walk._wants

    def counted(self: walk.Walk, key: bytes) -> bool:
        looked.append(key)
        return wants(self, key)

    monkeypatch.setattr(walk.Walk, "_wants", counted)
    found = await page(origin, "bucket", prefix="012")
    assert len(found.objects) == 10
    assert len(looked) == 10


@pytest.mark.parametrize("is_at_rest", [True, False])
async def test_a_page_of_a_huge_folder_takes_bounded_memory(
    origin: DirectoryOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_rest: bool
) -> None:
    monkeypatch.setattr(walk, "_WIDE_ENTRIES", 2000)
    monkeypatch.setattr(walk, "_NARROW_ENTRIES", 500)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for number in range(20_000):
        (bucket / f"{number:05d}-{'x' * 100}").touch()
    if is_at_rest:
        rest(bucket)
    tracemalloc.start()
    try:
        found = await page(origin, "bucket", after="1", limit=10)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [entry.key[:5] for entry in found.objects] == [f"{10000 + n}" for n in range(10)]
    # All the names alone are 20,000 times more than 130 bytes.
    assert peak_bytes < 1_500_000
