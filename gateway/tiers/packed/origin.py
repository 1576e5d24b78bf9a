"""An origin whose packed keys answer as before packing.

Between the store and an origin stands `PackedOrigin`: the same protocol on both sides. The store
above knows of packs only where bytes lie (`Packs`), the origin below not at all. What is of packs
lies under `.feedrack/`, which never shows: nothing above asks for it but through `past_packs.py`.
"""

import asyncio
from collections.abc import Callable

from gateway.errors import NoSuchKey
from gateway.model.objects import (
    ListPage,
    ObjectEntry,
    ObjectInfo,
    ObjectRef,
    Span,
    UploadPage,
    VersionPage,
)
from gateway.model.reserved import RESERVED
from gateway.tiers.packed.counting import held_in_shards, shards_under
from gateway.tiers.packed.hidden import (
    Marker,
    Rows,
    list_uploads,
    list_versions,
    stands_for_others,
)
from gateway.tiers.packed.known import Pack
from gateway.tiers.packed.listing import (
    Piece,
    merged,
    outside,
    piece,
    skipped,
)
from gateway.tiers.packed.writing import PackedWriting


class PackedOrigin(PackedWriting):
    """`Origin` over an origin, its packs seen through."""

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        packs = self._packs(bucket)
        await packs.known()
        for pack in packs.under(prefix):
            if pack.view is None:
                # One that is begun has none; one that could not be brought in must not seem empty.
                await pack.switched()
        under = [pack for pack in packs.under(prefix) if pack.view is not None]
        hidden = [RESERVED, *(pack.prefix for pack in under)]
        pieces = [
            await self._piece(bucket, pack, prefix, delimiter, after, limit) for pack in under
        ]
        if not any(prefix.startswith(name) for name in hidden):
            pieces.append(await self._outside(bucket, hidden, prefix, delimiter, after, limit))
        elif not under:
            await self._origin.head_bucket(bucket)
        return merged(pieces, limit)

    async def confirm(self, bucket: str, prefix: str, freshness_seconds: float | None) -> None:
        packs = self._packs(bucket)
        await packs.known()
        now = self._now()
        asked = float("-inf") if freshness_seconds is None else now - freshness_seconds
        whole = [pack for pack in packs.under(prefix) if pack.view is not None]
        await asyncio.gather(
            *(
                pack.confirm(now if self.unsure(bucket, pack) else asked)
                for pack in whole
                if freshness_seconds is not None or self.unsure(bucket, pack)
            )
        )

    async def held_bytes(self, bucket: str, prefix: str, holds: Callable[[Span], bool]) -> int:
        packs = self._packs(bucket).under(prefix)
        return sum([await held_in_shards(pack, prefix, holds) for pack in packs])

    async def shards_under(self, bucket: str, prefix: str) -> list[Span]:
        found: list[Span] = []
        for pack in self._packs(bucket).under(prefix):
            found += await shards_under(pack, prefix)
        return found

    def roots(self, bucket: str, prefix: str) -> tuple[str, ...] | None:
        packs = self._packs(bucket).under(prefix)
        if not all(pack.prefix.startswith(prefix) for pack in packs):
            return None
        return tuple(pack.place.root for pack in packs)

    async def _piece(
        self, bucket: str, pack: Pack, prefix: str, delimiter: str, after: str, limit: int
    ) -> Piece:
        """A pack's part of a page, with what the log is unsure of asked of the origin."""
        resolved: dict[str, ObjectEntry | None] = {}
        # What GetObject says of these is what a listing must say, whichever way it knows.
        changing = {
            *self.elsewhere.keys(bucket, pack.prefix),
            *self._flights.keys(bucket, pack.prefix),
        }
        while pack.view is not None:
            found = piece(pack.view, prefix, delimiter, after, limit, resolved, changing)
            if not found.unsure:
                return found
            refs = [ObjectRef(self.name, bucket, key) for key in found.unsure]
            entries = await asyncio.gather(*(self._entry(ref) for ref in refs))
            resolved |= dict(zip(found.unsure, entries, strict=True))
        # It was dropped meanwhile: the origin has all of its keys.
        return await self._outside(bucket, [RESERVED], prefix, delimiter, after, limit)

    async def _entry(self, ref: ObjectRef) -> ObjectEntry | None:
        try:
            info = await self.head(ref)
        except NoSuchKey:
            return None
        return entry_of(ref.key, info)

    async def _outside(
        self,
        bucket: str,
        hidden: list[str],
        prefix: str,
        delimiter: str,
        after: str,
        limit: int,
    ) -> Piece:
        """The origin's part of a page: of what belongs to no pack. It is not empty where more is to
        come, however much lies hidden between."""
        while True:
            page = await self._origin.list_objects(
                bucket,
                prefix=prefix,
                delimiter=delimiter,
                after=skipped(after, hidden),
                limit=limit,
            )
            found = outside(page, hidden)
            found = await self._without_ours(bucket, found)
            if found.objects or found.prefixes or found.until is None:
                return found
            after = found.until

    async def _without_ours(self, bucket: str, found: Piece) -> Piece:
        """Without a common prefix under which there is nothing but packs."""

        async def ask(prefix: str, delimiter: str, marker: Marker, limit: int) -> Rows[ObjectEntry]:
            page = await self._origin.list_objects(
                bucket, prefix=prefix, delimiter=delimiter, after=marker.key, limit=limit
            )
            following = None if page.next_after is None else Marker(page.next_after)
            return Rows(page.objects, page.common_prefixes, following)

        kept = [name for name in found.prefixes if await stands_for_others(ask, name)]
        return Piece(found.objects, tuple(kept), found.until)

    async def list_versions(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        version_id_marker: str,
        limit: int,
    ) -> VersionPage:
        return await list_versions(
            self._origin,
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            version_id_marker=version_id_marker,
            limit=limit,
        )

    async def list_uploads(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        upload_id_marker: str,
        limit: int,
    ) -> UploadPage:
        return await list_uploads(
            self._origin,
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=upload_id_marker,
            limit=limit,
        )


def entry_of(key: str, info: ObjectInfo) -> ObjectEntry:
    """What a listing says of an object that HeadObject tells of."""
    return ObjectEntry(
        key=key,
        etag=info.etag,
        size_bytes=info.size_bytes,
        last_modified_ms=info.last_modified_ms,
        storage_class=info.headers.get("x-amz-storage-class", "STANDARD"),
    )
