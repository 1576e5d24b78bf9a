"""The packs of a bucket as they lie there: finding them, and bringing their files here, checked."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from packer.format import (
    PACKS,
    Index,
    Manifest,
    ManifestError,
    Overrides,
    Place,
    current,
    decode_overrides,
)
from packer.format.manifest import decode_manifest, encode_manifest, generation_of, sequence_of
from packer.stores.protocol import ConditionFailed, ObjectMissing, Store

_BLOCK_BYTES = 1024**2


class PackDamaged(Exception):  # noqa: N818 - said of a pack
    """A file of a pack is not what its manifest says."""


class NoPack(Exception):  # noqa: N818
    """There is no pack of this prefix."""


def load_current(store: Store, place: Place) -> Manifest | None:
    """The manifest that counts; None where there never was one. ManifestError, StoreError."""
    while True:
        generation = current(item.key for item in store.listing(place.manifests))
        if not generation:
            return None
        try:
            manifest = decode_manifest(store.get(place.manifest(generation)).data)
        except ObjectMissing:
            # Cleaned away between the two: a higher one is there by now.
            continue
        if (manifest.generation, manifest.prefix) != (generation, place.prefix):
            raise ManifestError(f"{place.manifest(generation)} is of another pack")
        return manifest


def load_pack(store: Store, place: Place) -> Manifest:
    """The manifest of the pack there is. NoPack."""
    manifest = load_current(store, place)
    if manifest is None or manifest.state != "whole":
        raise NoPack(f"no pack of s3://{store.bucket}/{place.prefix}")
    return manifest


def load_all(store: Store) -> list[Manifest]:
    """The manifests that count of all places of the bucket, by prefix."""
    newest: dict[str, str] = {}
    for item in store.listing(PACKS):
        place, _, rest = item.key[len(PACKS) :].partition("/")
        if rest.startswith("manifests/") and generation_of(item.key) is not None:
            newest[place] = item.key
    found = [decode_manifest(store.get(key).data) for key in newest.values()]
    return sorted(found, key=lambda manifest: manifest.prefix)


def publish(store: Store, place: Place, manifest: Manifest) -> None:
    """Writes a manifest of a new generation. ConditionFailed where that exists already."""
    key, body = place.manifest(manifest.generation), encode_manifest(manifest)
    try:
        store.put(key, body, headers={"content-type": "application/json"}, if_absent=True)
    except ConditionFailed:
        # It may be our own, whose answer was lost.
        if store.get(key).data != body:
            raise


def read_overrides(store: Store, place: Place, through: int) -> Overrides:
    """The log after `through`, to its end. OverrideError where it has gaps."""
    overrides = Overrides(through)
    for item in store.listing(place.overrides):
        sequence = sequence_of(item.key)
        if sequence is not None and sequence > through:
            overrides.add(sequence, decode_overrides(store.get(item.key).data))
    return overrides


def fetch_file(
    store: Store,
    key: str,
    sha256: str,
    size_bytes: int,
    path: Path,
    fetched: Callable[[int], None] = lambda _: None,
) -> Path:
    """Brings a shard or an index to `path`, checked before it has that name. PackDamaged."""
    coming = path.with_suffix(".coming")
    digest = hashlib.sha256()
    size = 0
    try:
        with store.open(key) as source, coming.open("wb") as file:
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
                if size > size_bytes:
                    break
                file.write(block)
                fetched(len(block))
    except ObjectMissing as error:
        raise PackDamaged(f"{key} is missing") from error
    if size != size_bytes or digest.hexdigest() != sha256:
        coming.unlink()
        raise PackDamaged(f"{key} is not the file its manifest names")
    return coming.rename(path)


def fetch_index(store: Store, place: Place, manifest: Manifest, folder: Path) -> Index:
    """The index of a pack, opened. PackDamaged, IndexDamaged."""
    assert manifest.index is not None, "a pack has an index"  # noqa: S101 - the decoder made sure
    index = manifest.index
    path = folder / f"{index.sha256}.lmdb"
    fetch_file(store, place.index(index.sha256), index.sha256, index.size_bytes, path)
    return Index(path)


def overlapping(prefix: str, manifests: list[Manifest]) -> Manifest | None:
    """A pack that shares keys with `prefix` and is not its own."""
    for manifest in manifests:
        if manifest.state != "dropped" and manifest.prefix != prefix:
            short, long = sorted((prefix, manifest.prefix), key=len)
            if long.startswith(short):
                return manifest
    return None
