"""The end of a pack: the second listing, the index, the manifest; and what may go afterwards."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct

from packer.format import (
    IndexFile,
    IndexWriter,
    Manifest,
    Overrides,
    Place,
    Record,
    ShardFile,
    ShardRef,
)
from packer.format.manifest import decode_manifest, generation_of, sequence_of
from packer.plan import Scope, Source, settle, still_made
from packer.planning import Before, keyed
from packer.runs import Keyed, join, placed, read_head
from packer.stores.protocol import Deletion, Listed, Store


class Contents(Struct):
    """What an index came to hold."""

    file: IndexFile
    shards: tuple[ShardFile, ...]
    objects: int
    packed_objects: int
    packed_bytes: int


def write_index(
    path: Path,
    listing: Iterable[Listed],
    before: Before,
    worn: set[int],
    runs: Sequence[Path],
    overrides: Overrides,
    scope: Scope,
) -> Contents:
    """Writes the index of the new pack, by the second listing. StoreError, OSError, lmdb.Error."""
    old = before.manifest.shards if before.manifest is not None else ()
    kept = [number for number in range(len(old)) if number not in worn]
    renumbered = {number: position for position, number in enumerate(kept)}
    shards = [old[number] for number in kept]
    positions = {shard.sha256: number for number, shard in enumerate(shards)}
    for run in runs:
        shard = read_head(run).shard
        if shard.sha256 not in positions:
            positions[shard.sha256] = len(shards)
            shards.append(shard)
    objects = packed_objects = packed_bytes = 0
    sources: dict[str, Source] = {}
    path.unlink(missing_ok=True)
    writer = IndexWriter(path)
    try:
        for key, (listed, fresh, left) in join(
            keyed(listing), placed(runs, positions), _renumbered(before, renumbered)
        ):
            stand = overrides.get(key.decode())
            if listed and listed[0].key.endswith(scope.sources or ("\0",)):
                [file] = listed
                source = Source(file.modified_ms, before.knows(file))
                sources[file.key.rpartition(".")[0]] = source
            # The last run first: a version that was packed again is the better one.
            record = settle(
                listed[0] if listed else None,
                still_made(key.decode(), reversed(fresh), left, sources),
                stand,
                scope,
            )
            if record is not None:
                writer.add(key, record)
                objects += 1
                if record.shard is not None:
                    packed_objects += 1
                    packed_bytes += record.size_bytes
        writer.close([ShardRef(shard.sha256, shard.size_bytes) for shard in shards])
    except BaseException:
        writer.abandon()
        raise
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    found = IndexFile(sha256=sha256, size_bytes=path.stat().st_size)
    return Contents(found, tuple(shards), objects, packed_objects, packed_bytes)


def _renumbered(before: Before, positions: dict[int, int]) -> Iterator[Keyed[Record]]:
    for key, record in before.records():
        if record.shard is not None and record.shard in positions:
            yield key, msgspec.structs.replace(record, shard=positions[record.shard])


def tool() -> str:
    """Who writes a manifest."""
    return f"packer {version('feedrack')}"


def moment(seconds: float) -> str:
    """A time as manifests say it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def seconds_of(created: str) -> float:
    """A manifest's time in seconds since 1970; ValueError where it is none."""
    return datetime.fromisoformat(created).timestamp()


def rubbish(
    place: Place, keys: Iterable[str], manifests: Sequence[Manifest], now: float, keep: float
) -> list[str]:
    """The keys of a place that nobody needs any more. Pure.

    `manifests` are all that are there, by generation. A manifest goes `keep` seconds after its
    successor came; with it, what only it names. Folded overrides go as long after their fold."""

    def age(manifest: Manifest) -> float:
        # A store's clock is known to the second: what was written just now may seem to come.
        return max(0.0, now - seconds_of(manifest.created))

    living = [
        manifest
        for manifest, successor in zip(manifests, [*manifests[1:], None], strict=True)
        if successor is None or age(successor) < keep
    ]
    generations = {manifest.generation for manifest in living}
    shards = {place.shard(shard.sha256) for manifest in living for shard in manifest.shards}
    indexes = {
        place.index(manifest.index.sha256) for manifest in living if manifest.index is not None
    }
    folded = max(
        (manifest.overrides_through for manifest in manifests if age(manifest) >= keep),
        default=0,
    )
    found = []
    for key in keys:
        if key.startswith(place.manifests):
            gone = (generation := generation_of(key)) is not None and generation not in generations
        elif key.startswith(place.shards):
            gone = key not in shards
        elif key.startswith(place.indexes):
            gone = key not in indexes
        elif key.startswith(place.overrides):
            gone = (sequence := sequence_of(key)) is not None and sequence <= folded
        else:
            gone = False
        if gone:
            found.append(key)
    # The lowest manifests first: the highest that is left must never be an old one.
    return sorted(found, key=lambda key: (not key.startswith(place.manifests), key))


def clean(store: Store, place: Place, keep_seconds: float) -> int:
    """Removes what nobody needs any more; how many objects. StoreError."""
    keys = [item.key for item in store.listing(place.root)]
    manifests = [
        decode_manifest(store.get(key).data) for key in keys if key.startswith(place.manifests)
    ]
    store.clean_uploads(place.root)
    gone = rubbish(place, keys, manifests, store.seconds(), keep_seconds)
    for first in range(0, len(gone), 1000):
        failed = store.delete([Deletion(key) for key in gone[first : first + 1000]])
        if failed:
            raise failed[0][1]
    return len(gone)
