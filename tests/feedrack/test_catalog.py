"""A catalog says of each key what the pack's index does, and of nothing else."""

import pickle
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from feedrack.catalog import NOWHERE, Catalog, PackName, under
from feedrack.keys import Keys
from packer.format import Record

SHARDS = [("a" * 64, 1000), ("b" * 64, 500)]
KEY = st.text("ab/é", min_size=1, max_size=5)
RECORD = st.builds(
    Record,
    size_bytes=st.integers(0, 600),
    etag=st.just(b""),
    modified_ms=st.just(0),
    shard=st.sampled_from([None, 0, 1]),
    offset=st.integers(0, 600),
    checksum=st.integers(0, 2**64 - 1),
)


class MadeUp:
    """An index in memory."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = sorted((key.encode(), record) for key, record in records.items())

    def walk(self, start: bytes = b"") -> Iterator[tuple[bytes, Record]]:
        return (entry for entry in self._records if entry[0] >= start)


@given(st.sets(KEY), st.dictionaries(KEY, RECORD), st.sampled_from(["", "a", "a/", "é"]))
def test_a_catalog_has_the_places_of_the_index(
    listed: set[str], records: dict[str, Record], prefix: str
) -> None:
    packed = {key: record for key, record in records.items() if key.startswith(prefix)}
    keys = Keys(key.encode() for key in listed)
    catalog = Catalog(len(keys))
    found = catalog.take(keys, PackName(prefix, 2), SHARDS, MadeUp(packed))
    placed = 0
    for position, key in enumerate(keys):
        record = packed.get(key)
        whole = (
            record is not None
            and record.shard is not None
            and record.offset + record.size_bytes <= SHARDS[record.shard][1]
        )
        if not whole or record is None:
            assert catalog.shard[position] == NOWHERE
            continue
        placed += 1
        assert (
            catalog.shard[position],
            catalog.offset[position],
            catalog.size[position],
            catalog.checksum[position],
        ) == (record.shard, record.offset, record.size_bytes, record.checksum)
    assert found == placed
    restored = pickle.loads(pickle.dumps(catalog))
    assert (restored.shard, restored.packs, restored.shards) == (
        catalog.shard,
        [PackName(prefix, 2)],
        [sha256 for sha256, _ in SHARDS],
    )


def test_packs_beside_each_other_share_a_catalog() -> None:
    keys = Keys(key.encode() for key in ("a/1", "b/1", "c/1"))
    record = Record(5, b"", 0, shard=0, offset=7, checksum=1)
    catalog = Catalog(3)
    catalog.take(keys, PackName("a/", 2), SHARDS, MadeUp({"a/1": record}))
    catalog.take(keys, PackName("c/", 4), SHARDS[:1], MadeUp({"c/1": record}))
    assert list(catalog.shard) == [0, NOWHERE, 2]
    catalog.hide(keys, ["a/1", "none"])
    assert list(catalog.shard) == [NOWHERE, NOWHERE, 2]


@given(st.sets(KEY), KEY)
def test_keys_under_a_prefix_lie_together(listed: set[str], prefix: str) -> None:
    keys = Keys(key.encode() for key in listed)
    start, stop = under(keys, prefix.encode())
    assert keys[start:stop] == [key for key in keys if key.startswith(prefix)]
    assert under(keys, b"") == (0, len(keys))
