"""`--delete-originals`: what is safe in the pack goes from where it was, and nothing else does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from packer.catalog import fetch_index, load_pack, publish, read_overrides
from packer.format import (
    Index,
    Override,
    Overrides,
    Place,
    Record,
    etag_bytes,
)
from packer.lock import PackLock
from packer.plan import same
from packer.planning import keyed
from packer.progress import Watcher
from packer.publishing import moment, tool
from packer.reading import restored
from packer.runs import join
from packer.stores.protocol import (
    ConditionFailed,
    Deletion,
    ObjectMissing,
    Store,
    StoreError,
)
from packer.verify import verify_pack

_AT_ONCE = 1000


class Refused(Exception):  # noqa: N818
    """Nothing was deleted; the message says why."""


class Deleted(Struct):
    """What went and what stayed: originals that have changed, or could not be deleted."""

    objects: int = 0
    size_bytes: int = 0
    changed: int = 0
    failed: int = 0
    conditional: bool = False


def delete_originals(store: Store, place: Place, folder: Path, watcher: Watcher) -> Deleted:
    """Reads the whole pack back, then deletes the originals it holds. Refused, StoreError, OSError.

    Interrupted, it goes on when called again."""
    with PackLock(store, place.lock) as lock:
        manifest = load_pack(store, place)
        if store.is_gateway and not store.bypassed:
            raise Refused(
                "this gateway does not let packer past its packs: a delete would delete what is "
                "packed. Delete the originals beside the gateway, at its origin"
            )
        report = verify_pack(store, place, folder, watcher)
        if report.damaged_count:
            raise Refused(f"{report.damaged_count} objects of the pack are damaged")
        with fetch_index(store, place, manifest, folder) as index:
            if manifest.originals_gone_through < manifest.generation - 1:
                # Said before it is done: a key that is not listed any more is not a deleted key.
                manifest = msgspec.structs.replace(
                    manifest,
                    generation=manifest.generation + 1,
                    originals_gone_through=manifest.generation,
                    tool=tool(),
                    created=moment(store.seconds()),
                )
                lock.check()
                publish(store, place, manifest)
            conditional = store.conditional_deletes(f"{place.root}probe")
            if not conditional:
                watcher.say(
                    "the endpoint does not delete under a condition: each object is looked at "
                    "just before; a write in that very moment would be lost"
                )
            overrides = read_overrides(store, place, manifest.overrides_through)
            watcher.stage("deleting originals", manifest.packed_objects, manifest.packed_bytes)
            deleted = _delete(store, index, place, overrides, conditional, watcher, lock.check)
            lock.check()
            _give_back(store, index, place, overrides)
            return deleted


def _delete(
    store: Store,
    index: Index,
    place: Place,
    overrides: Overrides,
    conditional: bool,
    watcher: Watcher,
    check: Callable[[], None],
) -> Deleted:
    result = Deleted(conditional=conditional)
    batch: dict[str, tuple[Deletion, int]] = {}
    for deletion, size in _deletions(store, index, place, overrides, result):
        batch[deletion.key] = (deletion, size)
        if len(batch) >= _AT_ONCE:
            check()
            _delete_batch(store, batch, result, watcher)
            batch = {}
    _delete_batch(store, batch, result, watcher)
    return result


def _give_back(store: Store, index: Index, place: Place, before: Overrides) -> None:
    """Writes anew what was written while originals were deleted, in the very bytes that are packed:
    an ETag does not tell such an object from the original, and where the log is unsure of its key
    gateways rely on the origin to have it. A key whose last record is a delete stays deleted."""
    through = before.through
    given: dict[str, Deletion] = {}
    while True:
        after = read_overrides(store, place, through)
        if after.through == through:
            return
        through = after.through
        for key, stand in after.items():
            record = index.get(key.encode())
            override = stand.override
            if override.op == "delete" and key in given:
                # Deleted between our look and our write.
                store.delete([given.pop(key)])
            elif record is not None and record.shard is not None and override.op != "delete":
                same = override.op == "put" and etag_bytes(override.etag) == record.etag
                if same or override.op == "unsure":
                    told = override if same else None
                    etag = _restore(store, index, place, key, record, told)
                    if etag is not None:
                        given[key] = Deletion(key, etag)


def _restore(
    store: Store,
    index: Index,
    place: Place,
    key: str,
    record: Record,
    described: Override | None,
) -> str | None:
    """Writes a packed object to its own key, unless there is one; the ETag it has then."""
    assert record.shard is not None  # noqa: S101 - the caller has looked
    try:
        store.head(key)
    except ObjectMissing:
        shard = place.shard(index.shards[record.shard].sha256)
        got = restored(record, store.read(shard, record.offset, record.size_bytes))
    else:
        return None
    headers = dict(got.headers if described is None else described.headers)
    tags = got.tags if described is None else described.tags
    if tags:
        headers["x-amz-tagging"] = urlencode(tags)
    try:
        return store.put(key, got.data, headers=headers, if_absent=True)
    except ConditionFailed:
        return None


def _deletions(
    store: Store, index: Index, place: Place, overrides: Overrides, result: Deleted
) -> Iterator[tuple[Deletion, int]]:
    """The originals that are listed in the very version that is packed."""
    for key, (listed, packed) in join(keyed(store.listing(place.prefix)), index.walk()):
        if not listed or not packed or packed[0].shard is None:
            continue
        item = listed[0]
        if not same(packed[0], item) or overrides.get(key.decode()) is not None:
            result.changed += 1
        else:
            yield Deletion(item.key, item.etag), item.size_bytes


def _delete_batch(
    store: Store,
    batch: dict[str, tuple[Deletion, int]],
    result: Deleted,
    watcher: Watcher,
) -> None:
    if not result.conditional:
        for key, (deletion, _) in list(batch.items()):
            try:
                if store.head(key).etag == deletion.etag:
                    continue
                result.changed += 1
            except ObjectMissing:
                pass
            del batch[key]
    failed: list[tuple[str, StoreError]] = store.delete([item for item, _ in batch.values()])
    for key, error in failed:
        batch.pop(key, None)
        if isinstance(error, ConditionFailed):
            result.changed += 1
        else:
            result.failed += 1
            watcher.say(str(error))
    size = sum(size for _, size in batch.values())
    result.objects += len(batch)
    result.size_bytes += size
    watcher.advance(len(batch), size)
