"""How much of a dataset this node holds in shards: what a scheduler wants to know of it."""

import asyncio
from collections.abc import Callable

from gateway.model.objects import Span
from gateway.tiers.packed.known import Pack

# Keys looked at before others get a turn: about a millisecond.
_AT_ONCE = 256


async def held_in_shards(pack: Pack, prefix: str, holds: Callable[[Span], bool]) -> int:
    """Bytes of the objects under `prefix` whose shards are held. Of a pack that lies under it
    altogether that is in the manifest; of a larger one the index is walked, and what was counted by
    the time the pack is replaced is the answer."""
    view = pack.view
    if view is None:
        return 0
    held = {number for number, span in enumerate(view.shards) if holds(span)}
    if not held:
        return 0
    if pack.prefix.startswith(prefix):
        sizes = {shard.sha256: shard.object_bytes for shard in view.manifest.shards}
        return sum(sizes.get(view.shards[number].version.etag, 0) for number in held)
    total = 0
    wanted = prefix.encode()
    for count, (key, record) in enumerate(view.index.walk(wanted), start=1):
        if not key.startswith(wanted):
            break
        if record.shard in held:
            total += record.size_bytes
        if not count % _AT_ONCE:
            await asyncio.sleep(0)
            if pack.view is not view:
                break
    return total


async def shards_under(pack: Pack, prefix: str) -> list[Span]:
    """The shards of a pack that hold objects under `prefix`; what was found by the time the pack is
    replaced is the answer."""
    view = pack.view
    if view is None:
        return []
    if pack.prefix.startswith(prefix):
        return list(view.shards)
    wanted = prefix.encode()
    found: set[int] = set()
    for count, (key, record) in enumerate(view.index.walk(wanted), start=1):
        if not key.startswith(wanted):
            break
        if record.shard is not None:
            found.add(record.shard)
        if not count % _AT_ONCE:
            await asyncio.sleep(0)
            if pack.view is not view:
                break
    return [view.shards[number] for number in sorted(found)]
