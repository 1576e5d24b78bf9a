"""`packer verify`: every shard fetched whole, every object checked against the index."""

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import xxhash
from msgspec import Struct, field

from packer.catalog import PackDamaged, fetch_file, fetch_index, load_pack
from packer.format import Index, Manifest, Place, Record, ShardError, locate
from packer.progress import Watcher
from packer.runs import Sorter
from packer.stores.protocol import Store

_REPORTED = 1000


class Verified(Struct):
    """What was looked at, and what is wrong."""

    pack: str
    generation: int
    objects: int = 0
    size_bytes: int = 0
    shards: int = 0
    damaged_count: int = 0
    damaged: list[str] = field(default_factory=list)

    def wrong(self, what: str, count: int = 1) -> None:
        """Notes damage."""
        self.damaged_count += count
        if len(self.damaged) < _REPORTED:
            self.damaged.append(what)


class Entry(Struct, frozen=True, gc=False):
    """An object of a pack, on its way from the order of keys to that of shards."""

    key: bytes
    record: Record


def by_shard(index: Index, folder: Path) -> Iterator[tuple[int, Iterator[Entry]]]:
    """The packed objects, shard by shard, in the order in which they lie."""
    sorter: Sorter[Entry] = Sorter(folder, "by-shard", Entry)
    for key, record in index.walk():
        if record.shard is not None:
            place = record.shard.to_bytes(4, "big") + record.offset.to_bytes(8, "big")
            sorter.add(place, Entry(key, record))
    for shard, entries in groupby(sorter, key=lambda entry: entry[0][:4]):
        yield int.from_bytes(shard, "big"), (entry for _, entry in entries)


def verify_pack(store: Store, place: Place, folder: Path, watcher: Watcher) -> Verified:
    """Checks a pack. NoPack, PackDamaged where its index is; StoreError, OSError."""
    manifest = load_pack(store, place)
    result = Verified(manifest.pack_id, manifest.generation)
    packed = sum(shard.size_bytes for shard in manifest.shards)
    watcher.stage("verifying", manifest.packed_objects, packed)
    with fetch_index(store, place, manifest, folder) as index:
        named = [(shard.sha256, shard.size_bytes) for shard in manifest.shards]
        if named != [tuple(shard) for shard in index.shards]:
            raise PackDamaged("the index names other shards than the manifest")
        entries = sum(1 for _ in index.walk())
        if entries != manifest.objects:
            raise PackDamaged(f"{entries} keys where the manifest says {manifest.objects}")
        for number, objects in by_shard(index, folder):
            _verify_shard(store, place, manifest, number, objects, folder, result, watcher)
    return result


def _verify_shard(
    store: Store,
    place: Place,
    manifest: Manifest,
    number: int,
    objects: Iterator[Entry],
    folder: Path,
    result: Verified,
    watcher: Watcher,
) -> None:
    if number >= len(manifest.shards):
        raise PackDamaged(f"an object in shard {number}, which there is not")
    shard = manifest.shards[number]
    path = folder / "verified.lmdb"
    try:
        fetch_file(
            store,
            place.shard(shard.sha256),
            shard.sha256,
            shard.size_bytes,
            path,
            lambda size: watcher.advance(0, size),
        )
        locate(path)
    except (PackDamaged, ShardError) as error:
        result.wrong(str(error), sum(1 for _ in objects) or 1)
        return
    result.shards += 1
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in objects:
            record = entry.record
            data = os.pread(descriptor, record.size_bytes, record.offset)
            result.objects += 1
            result.size_bytes += len(data)
            if len(data) != record.size_bytes or xxhash.xxh3_64_intdigest(data) != record.checksum:
                result.wrong(f"{entry.key.decode()} is not what was packed")
    finally:
        os.close(descriptor)
        path.unlink()
