"""The packs of an origin's buckets, one table for all that reads, writes and lists through them."""

from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.model.objects import ObjectRef
from gateway.model.reserved import PACKS
from gateway.tiers.packed.appetite import Appetite
from gateway.tiers.packed.elsewhere import Elsewhere
from gateway.tiers.packed.files import IndexFiles
from gateway.tiers.packed.known import BucketPacks, Pack
from gateway.tiers.packed.places import Places
from gateway.tiers.packed.view import PackedObject
from gateway.tiers.passing import Passing
from gateway.tiers.past_packs import PastPacks
from gateway.tiers.protocol import Origin

# Buckets of which it is remembered that they have no packs.
_MOST_BUCKETS = 4096


class PacksHolder(Passing):
    """`origin`: the one behind. `limit_bytes`: no larger shard is brought in whole.
    `settled` returns once no reader believes what an earlier process handed out."""

    def __init__(
        self,
        origin: Origin,
        files: IndexFiles,
        *,
        node: str,
        limit_bytes: int,
        now: Callable[[], float],
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(origin)
        self._files = files
        self._node = node
        self._now = now
        self._settled = settled
        self._appetite = Appetite(limit_bytes)
        self._buckets: dict[str, BucketPacks] = {}
        self._places = Places(origin, now)
        self.elsewhere = Elsewhere()
        self._past_packs = PastPacks(origin, on_put=self.noticed)

    @property
    def name(self) -> str:
        return self._origin.name

    @property
    def past_packs(self) -> PastPacks:
        """The origin's own view of its buckets."""
        return self._past_packs

    async def start(self) -> None:
        await self._origin.start()

    async def close(self) -> None:
        for packs in self._buckets.values():
            await packs.close()
        await self._places.close()
        await self._origin.close()

    def noticed(self, bucket: str, key: str) -> None:
        """What was just written past packs, by this very node."""
        if key.startswith(PACKS) and bucket in self._buckets:
            self._buckets[bucket].noticed(key)

    def changing(self, bucket: str, key: str) -> None:
        """Another node changes the key from now on: until it has, nothing that its pack says of it
        is believed, here or by readers that were handed the pack."""
        self.elsewhere.begin(bucket, key)
        pack = self._known(bucket, key)
        if pack is not None:
            pack.changed()

    def changed(self, bucket: str, key: str) -> None:
        """It has: its pack is confirmed before it is believed again."""
        self.elsewhere.end(bucket, key)
        pack = self._known(bucket, key)
        if pack is not None:
            pack.doubt()
        self.noticed(bucket, key)

    def missed(self) -> None:
        """Other nodes may have changed anything."""
        for packs in self._buckets.values():
            packs.doubt()

    def unsure(self, bucket: str, pack: Pack) -> bool:
        """Whether other nodes may have written under the pack since it was last looked at."""
        return pack.doubted or self.elsewhere.under(bucket, pack.prefix)

    async def prefixes(self, bucket: str, roots: Collection[str]) -> Mapping[str, str]:
        """As `Packs`."""
        packs = self._buckets.get(bucket)
        known = packs.under("") if packs is not None else ()
        found = {pack.place.root: pack.prefix for pack in known if pack.place.root in roots}
        return found | await self._places.prefixes(bucket, set(roots) - set(found))

    def _known(self, bucket: str, key: str) -> Pack | None:
        packs = self._buckets.get(bucket)
        return packs.find(key) if packs is not None else None

    def _packs(self, bucket: str) -> BucketPacks:
        packs = self._buckets.get(bucket)
        if packs is None:
            if len(self._buckets) >= _MOST_BUCKETS:
                # Asking anew costs a listing; remembering every name that was ever asked for
                # would cost memory without end.
                self._forget_one()
            packs = BucketPacks(self._origin, bucket, self._files, self._now)
            self._buckets[bucket] = packs
        return packs

    def _forget_one(self) -> None:
        for bucket, packs in self._buckets.items():
            if not packs.under(""):
                del self._buckets[bucket]
                return

    def _find(self, ref: ObjectRef) -> Pack | None:
        """The pack of a key, as far as is known."""
        return self._known(ref.bucket, ref.key) if ref.version_id is None else None

    def _packed(self, ref: ObjectRef) -> PackedObject | None:
        """What a pack says of a key, as far as is known."""
        pack = self._find(ref)
        if pack is None or pack.view is None:
            return None
        return pack.view.packed(ref.key)

    def _left(self, ref: ObjectRef) -> PackedObject | None:
        """What a pack has of a key that the origin does not have, as far as is known."""
        pack = self._find(ref)
        if pack is None or pack.view is None:
            return None
        return pack.view.left(ref.key)

    async def _lost(self, own: ObjectRef) -> None:
        """A file of a pack is gone: looks which manifest is the highest."""
        for pack in self._packs(own.bucket).under(""):
            if own.key.startswith(pack.place.root):
                await pack.manifests.since(self._now())
                await pack.switched()
