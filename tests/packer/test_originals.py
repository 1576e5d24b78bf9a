"""Deleting originals while gateways write: what was acknowledged is kept."""

from pathlib import Path
from typing import Literal

import pytest

from packer.format import Override, OverrideBatch, Place, encode_overrides
from packer.originals import delete_originals
from packer.pack import Options, pack
from packer.progress import Silent
from packer.stores.choice import Dataset
from packer.stores.protocol import Deletion, ObjectMissing
from tests.packer.memory import Disturbed, MemoryStore

PLACE = Place("p/")
Op = Literal["put", "delete", "unsure"]


def packed(folder: Path) -> MemoryStore:
    store = MemoryStore()
    store.put("p/a", b"the bytes", headers={"content-type": "x/a"})
    store.put("p/b", b"others")
    options = Options(dataset=Dataset("memory", "p/"), folder=folder, settle_seconds=0.0, jobs=1)
    pack(store, options, Silent())
    return store


def appended(store: MemoryStore, *records: tuple[str, Op]) -> None:
    """What gateways logged of p/a: (node, op)."""
    etag = store.put("p/probe", b"the bytes")
    store.delete([Deletion("p/probe")])
    for number, (node, op) in enumerate(records, start=1):
        override = Override(op=op, key="p/a")
        if op == "put":
            override = Override(
                op="put", key="p/a", etag=etag, size_bytes=9, headers={"content-type": "x/new"}
            )
        store.put(
            PLACE.override(number), encode_overrides(OverrideBatch(node=node, records=(override,)))
        )


@pytest.mark.parametrize(
    ("records", "left"),
    [
        # Twice at once, in the packed bytes: who was last nobody knows, and both were these.
        ([("n1", "unsure")], "x/a"),
        # Deleted by one node and written again by another.
        ([("n2", "delete"), ("n1", "put")], "x/new"),
        ([("n1", "put"), ("n2", "delete")], None),
    ],
)
def test_an_object_written_again_meanwhile_in_the_same_bytes_is_there_afterwards(
    tmp_path: Path, records: list[tuple[str, Op]], left: str | None
) -> None:
    store = packed(tmp_path)
    logged = False

    def disturb() -> None:
        # The log has been read by the time originals are listed; the writes come after that.
        nonlocal logged
        if disturbed.listed and not logged:
            logged = True
            appended(store, *records)

    class Watched(Disturbed):
        listed = False

        def __getattr__(self, name: str) -> object:
            if name == "delete":
                self.listed = True
            return super().__getattr__(name)

    disturbed = Watched(store, disturb, 10**9)
    delete_originals(disturbed, PLACE, tmp_path, Silent())  # type: ignore[arg-type]
    assert logged
    with pytest.raises(ObjectMissing):
        store.get("p/b")
    if left is None:
        with pytest.raises(ObjectMissing):
            store.get("p/a")
    else:
        assert store.get("p/a").data == b"the bytes"
        assert store.get("p/a").headers["content-type"] == left
