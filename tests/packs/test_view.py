"""What a pack and its log say of a key together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tiers.packed.view import PackView, Unsure
from packer.format import (
    Index,
    IndexFile,
    IndexWriter,
    Manifest,
    Override,
    OverrideBatch,
    Overrides,
    Record,
    ShardRef,
    etag_bytes,
)

SHA = "0" * 64
MD5 = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def view(tmp_path: Path) -> Iterator[PackView]:
    writer = IndexWriter(tmp_path / "index")
    summed = {"x-amz-checksum-sha256": "s", "x-amz-checksum-type": "COMPOSITE"}
    packed = Record(3, etag_bytes(MD5), 7, 0, 8192, 99, {"a": "b"}, 1, summed, (("name", "value"),))
    writer.add(b"p/a", packed)
    writer.add(b"p/plain", Record(5, etag_bytes("e-2"), 8))
    writer.close([ShardRef(SHA, 65_536)])
    manifest = Manifest(
        state="whole", generation=1, pack_id="i", bucket="b", prefix="p/", tool="t", created="c",
        index=IndexFile(sha256=SHA, size_bytes=1),
    )  # fmt: skip
    with Index(tmp_path / "index") as index:
        yield PackView("main", "b", manifest, index, Overrides())


def write(view: PackView, op: Any, *, node: str = "n", key: str = "p/a", **facts: Any) -> None:
    record = Override(op=op, key=key, **facts)
    batch = OverrideBatch(node=node, records=(record,))
    view.add(view.overrides.through + 1, batch)


def test_a_packed_key_is_all_that_its_record_says(view: PackView) -> None:
    packed = view.packed("p/a")
    assert packed is not None
    assert (packed.info.etag, packed.info.size_bytes, packed.info.last_modified_ms) == (MD5, 3, 7)
    assert packed.info.headers == {"a": "b", "x-amz-tagging-count": "1"}
    assert packed.info.checksums == {"SHA256": "s"}
    assert packed.info.checksum_type == "COMPOSITE"
    assert packed.tags == (("name", "value"),)
    assert (packed.at.offset, packed.at.size_bytes, packed.at.checksum) == (8192, 3, 99)
    assert packed.at.shard.size_bytes == 65_536
    assert packed.at.shard.version.ref.key.endswith(f"{SHA}.lmdb")


def test_of_plain_and_unknown_keys_the_origin_is_asked(view: PackView) -> None:
    assert view.packed("p/plain") is None
    assert view.packed("p/unknown") is None
    assert [key for key, _ in view.walk(b"")] == [b"p/a", b"p/plain"]


@pytest.mark.parametrize("op", ["put", "delete", "unsure"])
def test_after_any_other_write_the_pack_does_not_speak(view: PackView, op: str) -> None:
    assert view.packed("p/a") is not None
    write(view, op, etag="other")
    assert view.packed("p/a") is None
    assert view.left("p/a") is None


def test_the_same_bytes_are_the_packs_with_what_was_said_of_them_last(view: PackView) -> None:
    write(view, "put", etag=MD5, size_bytes=3, modified_ms=70, headers={"c": "d"})
    packed = view.packed("p/a")
    assert packed is not None
    assert packed == view.left("p/a")
    assert packed.info.headers == {"c": "d"}
    assert packed.info.last_modified_ms == 70
    assert packed.tags == ()
    assert packed.at.offset == 8192


@pytest.mark.parametrize(
    ("first", "last", "speaks"),
    [
        ("put", "put", True),
        ("delete", "put", False),
        ("unsure", "put", False),
        ("put", "delete", False),
    ],
)
def test_what_two_nodes_wrote_is_the_packs_only_where_the_origin_has_nothing(
    view: PackView, first: str, last: str, speaks: bool
) -> None:
    write(view, first, node="one", etag=MD5)
    write(view, last, node="other", etag=MD5)
    assert view.packed("p/a") is None
    assert (view.left("p/a") is not None) is speaks
    [(_, listed), *_] = view.walk(b"")
    assert listed == Unsure("p/a")


def test_a_walk_has_what_was_written_and_not_what_was_deleted(view: PackView) -> None:
    write(view, "delete")
    write(view, "put", key="p/b", etag="e", size_bytes=2)
    write(view, "unsure", key="p/c")
    write(view, "put", key="p/b", etag="f", size_bytes=4)
    walked = list(view.walk(b""))
    assert [key for key, _ in walked] == [b"p/b", b"p/c", b"p/plain"]
    assert walked[0][1].size_bytes == 4  # type: ignore[union-attr]
    assert walked[1][1] == Unsure("p/c")
    assert [key for key, _ in view.walk(b"p/c")] == [b"p/c", b"p/plain"]
