"""`packer drop`: a pack goes, and the objects answer from where they are."""

from pathlib import Path

import msgspec
from msgspec import Struct

from packer.catalog import NoPack, fetch_index, load_current, publish, read_overrides
from packer.format import Manifest, Place
from packer.format.overrides import folded
from packer.lock import PackLock
from packer.planning import keyed
from packer.publishing import moment, tool
from packer.runs import join
from packer.stores.protocol import Deletion, Store


class Dropped(Struct):
    """What went."""

    pack: str
    objects: int = 0
    removed_keys: int = 0
    lost_objects: int = 0


class WouldLose(Exception):  # noqa: N818
    """Objects are in the pack alone."""


def drop(store: Store, place: Place, folder: Path, *, force: bool) -> Dropped:
    """Removes a pack. NoPack; WouldLose unless forced; StoreError, OSError.

    Interrupted, it goes on when called again."""
    with PackLock(store, place.lock) as lock:
        manifest = load_current(store, place)
        if manifest is None:
            raise NoPack(f"no pack of s3://{store.bucket}/{place.prefix}")
        result = Dropped(manifest.pack_id, manifest.packed_objects)
        if manifest.state != "dropped":
            if manifest.state == "whole":
                result.lost_objects = _only_here(store, place, manifest, folder)
            if result.lost_objects and not force:
                raise WouldLose(
                    f"{result.lost_objects} objects are in the pack alone: restore them with "
                    "`packer unpack` first, or lose them with --force"
                )
            lock.check()
            manifest = msgspec.structs.replace(
                manifest,
                state="dropped",
                generation=manifest.generation + 1,
                shards=(),
                index=None,
                objects=0,
                packed_objects=0,
                packed_bytes=0,
                overrides_through=read_overrides(store, place, manifest.overrides_through).through,
                originals_gone_through=0,
                tool=tool(),
                created=moment(store.seconds()),
            )
            publish(store, place, manifest)
        stays = {place.manifest(manifest.generation), place.lock}
        keys = [item.key for item in store.listing(place.root) if item.key not in stays]
        for first in range(0, len(keys), 1000):
            failed = store.delete([Deletion(key) for key in keys[first : first + 1000]])
            if failed:
                raise failed[0][1]
        result.removed_keys = len(keys)
        return result


def _only_here(store: Store, place: Place, manifest: Manifest, folder: Path) -> int:
    overrides = read_overrides(store, place, manifest.overrides_through)
    count = 0
    with fetch_index(store, place, manifest, folder) as index:
        for key, (listed, packed) in join(keyed(store.listing(place.prefix)), index.walk()):
            if packed and packed[0].shard is not None and not listed:
                count += folded(packed[0], overrides.get(key.decode())) is not None
    return count
