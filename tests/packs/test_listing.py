"""Pages of a packed bucket are those of a plain one that holds the same keys."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import NoSuchKey
from gateway.model.objects import ListPage, ObjectEntry, ObjectInfo, ObjectRef
from gateway.tiers.packed.elsewhere import Elsewhere
from gateway.tiers.packed.listing import LAST, Piece, merged, skipped
from gateway.tiers.packed.log import Flights
from gateway.tiers.packed.origin import PackedOrigin
from gateway.tiers.packed.view import PackView
from packer.format import (
    Index,
    IndexFile,
    IndexWriter,
    Manifest,
    Override,
    OverrideBatch,
    Overrides,
    Record,
    ShardFile,
    ShardRef,
)

SHA = "0" * 64
PREFIXES = ["", "p/", "p", "é", "p/\U0010ffff"]


class Plain:
    """A bucket of keys and sizes, listed as the protocol of origins says."""

    name = "main"

    def __init__(self, objects: dict[str, int]) -> None:
        self.objects = objects
        self.questions = 0

    async def list_objects(
        self, _bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        self.questions += 1
        assert self.questions < 1000, "a listing without end"
        rows: dict[str, ObjectEntry | None] = {}
        for key in sorted(self.objects, key=str.encode):
            if not key.startswith(prefix):
                continue
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if at < 0 else key[: at + len(delimiter)]
            if name.encode() > after.encode():
                rows.setdefault(name, _entry(key, self.objects[key]) if at < 0 else None)
        names = list(rows)
        page = names[:limit]
        return ListPage(
            objects=tuple(entry for name in page if (entry := rows[name]) is not None),
            common_prefixes=tuple(name for name in page if rows[name] is None),
            next_after=page[-1] if len(names) > limit else None,
        )

    async def head_bucket(self, _bucket: str) -> None:
        pass

    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        if ref.key not in self.objects:
            raise NoSuchKey
        size = self.objects[ref.key]
        return ObjectInfo(etag=f"e{size}", size_bytes=size, last_modified_ms=1, headers={})


def _entry(key: str, size: int) -> ObjectEntry:
    return ObjectEntry(key=key, etag=f"e{size}", size_bytes=size, last_modified_ms=1)


class Knowing(PackedOrigin):
    """Sees through one pack, which is known."""

    def __init__(self, plain: Plain, view: PackView) -> None:
        self._origin: Any = plain
        self.pack = OnePack(view)
        self.elsewhere = Elsewhere()
        self._flights = Flights()

    def _packs(self, _bucket: str) -> Any:
        return self.pack

    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        info: ObjectInfo = await self._origin.head(ref, checksums=checksums)
        return info


class OnePack:
    """The packs of a bucket that has one, and that one."""

    def __init__(self, view: PackView) -> None:
        self.view = view
        self.prefix = view.manifest.prefix

    async def known(self) -> None:
        pass

    def under(self, prefix: str) -> "list[OnePack]":
        own = self.prefix
        return [self] if own.startswith(prefix) or prefix.startswith(own) else []


# A few letters, so that keys begin alike and delimiters meet; and long ones, which share values.
NAMES = st.one_of(
    st.text(alphabet="p/aé.\U0010ffff", max_size=8),
    st.text(alphabet="/a", max_size=3).map(lambda rest: "p/" + "l" * 505 + rest),
    st.sampled_from([".feedrack/x", ".feedrack0", "p/", "p0", "p", "o"]),
)
KEYS = st.lists(NAMES.filter(bool), max_size=14, unique=True)
WRITES = st.lists(
    st.tuples(NAMES.filter(bool), st.sampled_from(["put", "delete", "unsure", "unsure delete"])),
    max_size=8,
)


def packed(folder: Path, keys: Sequence[str], own: str, writes: Sequence[tuple[str, str]]) -> Any:
    """A packed bucket, and the plain one that it looks like."""
    truth = {key: size for size, key in enumerate(keys, start=1)}
    inside = {key: size for key, size in truth.items() if key.startswith(own) and _ours(key)}
    behind = {key: size for key, size in truth.items() if key not in inside}
    path = folder / "index.lmdb"
    writer = IndexWriter(path)
    for key in sorted(inside, key=str.encode):
        record = Record(inside[key], b"te%d" % inside[key], 1, shard=0, offset=8192)
        writer.add(key.encode(), record)
    writer.close([ShardRef(SHA, 65_536)])
    overrides = Overrides()
    for number, (name, what) in enumerate(writes, start=1):
        if not name.startswith(own) or not _ours(name):
            continue
        size = 100 + number
        if what in ("put", "unsure"):
            truth[name] = behind[name] = size
        else:
            truth.pop(name, None)
            behind.pop(name, None)
        op: Any = "unsure" if what.startswith("unsure") else what
        written = Override(op=op, key=name)
        if op == "put":
            written = Override(op=op, key=name, etag=f"e{size}", size_bytes=size, modified_ms=1)
        overrides.add(overrides.through + 1, OverrideBatch(node="n", records=(written,)))
    manifest = Manifest(
        state="whole",
        generation=2,
        pack_id="i",
        bucket="b",
        prefix=own,
        tool="t",
        created="c",
        shards=(ShardFile(sha256=SHA, size_bytes=65_536, objects=1, object_bytes=1),),
        index=IndexFile(sha256=SHA, size_bytes=1),
    )
    index = Index(path)
    view = PackView("main", "b", manifest, index, overrides)
    shown = {key: size for key, size in truth.items() if _ours(key)}
    return index, Knowing(Plain(behind), view), Plain(shown)


def _ours(key: str) -> bool:
    return not key.startswith(".feedrack/")


async def rows(origin: Any, prefix: str, delimiter: str, after: str, limit: int) -> list[Any]:
    """All rows of a listing from `after` on, page by page."""
    found: list[Any] = []
    more: str | None = after
    while more is not None:
        page = await origin.list_objects(
            "b", prefix=prefix, delimiter=delimiter, after=more, limit=limit
        )
        here = [(entry.key, entry.size_bytes) for entry in page.objects]
        here += [(name, None) for name in page.common_prefixes]
        assert len(here) <= limit
        assert here or page.next_after is None
        found += sorted(here, key=lambda row: row[0].encode())
        more = page.next_after
    return found


@settings(max_examples=200)
@given(
    keys=KEYS,
    own=st.sampled_from(PREFIXES),
    writes=WRITES,
    prefix=st.sampled_from(["", "p", "p/", "p/a", "é", ".", "p/" + "l" * 505, "p/\U0010ffff"]),
    delimiter=st.sampled_from(["", "/", "a", "/a", "é", "e", "ll", "\U0010ffff"]),
    after=st.just("") | NAMES,
    limit=st.sampled_from([1, 2, 3, 1000]),
)
@example(
    keys=["p/\U0010ffffa", "p/\U0010ffffb", "p0"],
    own="p/",
    writes=[],
    prefix="",
    delimiter="",
    after="p/\U0010ffffa",
    limit=1,
)
def test_pages_are_those_of_a_plain_bucket(
    keys: list[str],
    own: str,
    writes: list[tuple[str, str]],
    prefix: str,
    delimiter: str,
    after: str,
    limit: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index, seen, plain = packed(Path(folder), keys, own, writes)
        with index:
            found = asyncio.run(rows(seen, prefix, delimiter, after, limit))
            assert found == asyncio.run(rows(plain, prefix, delimiter, after, limit))


def test_a_page_asks_the_origin_of_no_more_keys_than_fit_it(tmp_path: Path) -> None:
    keys = [f"p/{number:03}" for number in range(300)]
    index, seen, _ = packed(tmp_path, keys, "p/", [(key, "unsure") for key in keys])
    asked: list[str] = []
    inner = seen.head

    async def head(ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        asked.append(ref.key)
        info: ObjectInfo = await inner(ref, checksums=checksums)
        return info

    seen.head = head
    with index:
        page = asyncio.run(seen.list_objects("b", prefix="p/", delimiter="", after="", limit=10))
    assert [entry.key for entry in page.objects] == keys[:10]
    assert len(asked) <= 20


def test_a_page_ends_where_the_first_of_its_lists_does() -> None:
    one = Piece(objects=(_entry("a", 1),), until="a")
    other = Piece(objects=(_entry("b", 1),), prefixes=("a/",))
    page = merged([one, other], 10)
    assert [entry.key for entry in page.objects] == ["a"]
    assert page.next_after == "a"


@pytest.mark.parametrize("after", ["p/", "p/a", "p/" + LAST, "p/" + LAST + "a"])
def test_the_origins_listing_goes_on_beyond_what_is_hidden_and_never_back(after: str) -> None:
    assert skipped(after, ["p/"]).encode() >= max(after, "p/" + LAST).encode()
    assert skipped("q", ["p/"]) == "q"


def test_what_is_being_written_is_listed_as_the_origin_has_it(tmp_path: Path) -> None:
    index, seen, _ = packed(tmp_path, ["p/a", "p/b"], "p/", [])
    seen._origin.objects = {"p/a": 1, "p/new": 7}

    def listed() -> list[str]:
        page = asyncio.run(seen.list_objects("b", prefix="p/", delimiter="", after="", limit=10))
        return [entry.key for entry in page.objects]

    with index:
        for key in ("p/b", "p/new"):
            seen.elsewhere.begin("b", key)
        assert listed() == ["p/a", "p/new"]
        for key in ("p/b", "p/new"):
            seen.elsewhere.end("b", key)
        assert listed() == ["p/a", "p/b"]
