"""What an origin has of packs: the manifest that counts, and listings to their end."""

from collections.abc import AsyncIterator

from gateway.errors import NoSuchKey
from gateway.model.objects import ListPage, ObjectRef
from gateway.tiers.protocol import Origin
from packer.format import Manifest, current
from packer.format.manifest import decode_manifest


async def highest(
    origin: Origin, bucket: str, manifests: str, *, known: Manifest | None = None
) -> Manifest | None:
    """The manifest that counts of a place; None where there is none. ManifestError.

    Each is written once, so one that is `known` is not read again."""
    while True:
        generation = current(await all_keys(origin, bucket, manifests, ""))
        if not generation:
            return None
        if known is not None and known.generation == generation:
            return known
        ref = ObjectRef(origin.name, bucket, f"{manifests}{generation:012}.json")
        try:
            return decode_manifest(await read_whole(origin, ref))
        except NoSuchKey:
            # Cleaned away between the two: a higher one is there by now.
            continue


async def read_whole(origin: Origin, ref: ObjectRef) -> bytes:
    """A small object's bytes."""
    opened = await origin.open(ref)
    try:
        return b"".join([block async for block in opened.blocks()])
    finally:
        await opened.close()


async def all_keys(origin: Origin, bucket: str, prefix: str, after: str) -> list[str]:
    """The keys that begin with `prefix` and come after `after`."""
    keys: list[str] = []
    async for page in _pages(origin, bucket, prefix, "", after):
        keys.extend(entry.key for entry in page.objects)
    return keys


async def all_prefixes(origin: Origin, bucket: str, prefix: str) -> list[str]:
    """The folders right below `prefix`."""
    found: list[str] = []
    async for page in _pages(origin, bucket, prefix, "/", ""):
        found.extend(page.common_prefixes)
    return found


async def _pages(
    origin: Origin, bucket: str, prefix: str, delimiter: str, after: str
) -> AsyncIterator[ListPage]:
    more: str | None = after
    while more is not None:
        page: ListPage = await origin.list_objects(
            bucket, prefix=prefix, delimiter=delimiter, after=more, limit=1000
        )
        yield page
        more = page.next_after
