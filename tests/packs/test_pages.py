"""Pages of listings over a pack are those that S3 would make of what the pack and its log hold."""

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.tiers.packed.listing import merged, piece
from gateway.tiers.packed.view import PackView
from packer.format import (
    Index,
    IndexWriter,
    Manifest,
    Override,
    OverrideBatch,
    Overrides,
    Record,
    ShardRef,
)

MANIFEST = Manifest(
    state="whole",
    generation=2,
    pack_id="id",
    bucket="b",
    prefix="",
    tool="test",
    created="2026-01-01T00:00:00.000+00:00",
)


def as_s3_lists(names: set[str], prefix: str, delimiter: str, after: str) -> list[tuple[str, bool]]:
    """What ListObjectsV2 says, from its documentation: (name, whether it is a common prefix)."""
    found: list[tuple[str, bool]] = []
    for name in sorted(names, key=str.encode):
        if not name.startswith(prefix):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        item = (name, False) if at < 0 else (name[: at + len(delimiter)], True)
        if item[0].encode() > after.encode() and item not in found:
            found.append(item)
    return found


short = st.text("ab/é", min_size=1, max_size=6)


@given(
    names=st.sets(short, max_size=30),
    put=st.sets(short, max_size=6),
    deleted=st.sets(short, max_size=6),
    prefix=st.just("") | short,
    delimiter=st.sampled_from(["", "/", "b", "ab"]),
    after=st.just("") | short,
    limit=st.integers(1, 5),
)
@example({"a/b", "a/c", "b"}, set(), set(), "", "/", "a/b", 1)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pages_say_what_s3_would(
    tmp_path: Path,
    names: set[str],
    put: set[str],
    deleted: set[str],
    prefix: str,
    delimiter: str,
    after: str,
    limit: int,
) -> None:
    path = tmp_path / "index"
    path.unlink(missing_ok=True)
    writer = IndexWriter(path)
    for name in sorted(names, key=str.encode):
        writer.add(name.encode(), Record(1, b"t", 0, 0))
    writer.close([ShardRef("a" * 64, 5)])
    records = [Override(op="put", key=key, etag="e", size_bytes=2) for key in sorted(put)]
    records += [Override(op="delete", key=key) for key in sorted(deleted)]
    with Index(path) as index:
        view = PackView("origin", "b", MANIFEST, index, Overrides())
        view.add(1, OverrideBatch(node="n", records=tuple(records)))
        found: list[tuple[str, bool]] = []
        position: str | None = after
        while position is not None:
            page = merged([piece(view, prefix, delimiter, position, limit, {})], limit)
            assert len(page.objects) + len(page.common_prefixes) <= limit
            found += [(entry.key, False) for entry in page.objects]
            found += [(common, True) for common in page.common_prefixes]
            position = page.next_after
    here = (names | put) - deleted
    assert sorted(found) == sorted(as_s3_lists(here, prefix, delimiter, after))
