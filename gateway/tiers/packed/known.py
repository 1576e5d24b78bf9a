"""Which packs a bucket has, and how current this node's knowledge of them is.

Everything of a pack lies at the origin and is written once; what changes is which manifest is the
highest and how far the log goes. Both are learned by a listing, and each answer is dated by when
its question was put (`Latest`), so that who needs to know what holds *now* can say so:

* a read believes what is not older than its bucket's freshness, and looks again in the background
  before that is over;
* a write is answered only on knowledge of the manifests younger than `_SETTLED_SECONDS`, less than
  the SETTLE_SECONDS for which a packer waits: so it cannot miss that a pack was begun;
* before a key is said to be missing, both are asked again: its original may just have been deleted
  for being packed. Where no pack of its prefix had been begun within the same time, that cannot be.

A new generation is brought in behind the answers that the one before still gives.
"""

import asyncio
from collections.abc import Callable

import structlog

from gateway.errors import FeedrackError, NoSuchBucket, S3Error, TierUnavailable
from gateway.model.objects import ObjectRef
from gateway.tiers.packed.files import IndexFiles, OpenIndex
from gateway.tiers.packed.latest import Latest
from gateway.tiers.packed.looking import all_keys, all_prefixes, highest, read_whole
from gateway.tiers.packed.view import PackView, Watchers
from gateway.tiers.protocol import Origin
from packer.format import (
    PACKS,
    Manifest,
    ManifestError,
    OverrideBatch,
    OverrideError,
    Overrides,
    Place,
    decode_overrides,
)
from packer.format.manifest import sequence_of

_SETTLED_SECONDS = 20.0
_LOG_AT_ONCE = 16
# Statuses that say nothing but to ask again.
_LATER = (408, 429)

log = structlog.get_logger()


class Pack:
    """One place of a bucket: its highest manifest, and while that is whole a view of the pack."""

    def __init__(
        self,
        origin: Origin,
        bucket: str,
        manifest: Manifest,
        files: IndexFiles,
        now: Callable[[], float],
    ) -> None:
        self._origin = origin
        self._bucket = bucket
        self._files = files
        self._now = now
        self.opened: OpenIndex | None = None
        self._switching: asyncio.Task[None] | None = None
        self.place = Place(manifest.prefix)
        # The manifest in use, and the highest known: they differ while an index is on its way.
        self.manifest = manifest
        self.highest = manifest
        self._used: Manifest | None = None
        self.view: PackView | None = None
        self.overrides = Overrides(manifest.overrides_through)
        # Whoever takes records into the log's picture, be they read or appended.
        self.turn = asyncio.Lock()
        self.manifests = Latest(self._look_at_manifests, now)
        self.log = Latest(self._look_at_log, now)
        self.changed = Watchers()

    @property
    def prefix(self) -> str:
        return self.place.prefix

    @property
    def takes_overrides(self) -> bool:
        """Whether writes under the prefix are to be logged."""
        return self.highest.state != "dropped"

    @property
    def confirmed_at(self) -> float:
        """Since when nothing may have changed without being known here."""
        return min(self.manifests.at, self.log.at)

    @property
    def doubted(self) -> bool:
        """Whether something was changed that may not be known here yet."""
        return self.confirmed_at == float("-inf")

    def ref(self, key: str) -> ObjectRef:
        """An object of the pack's own."""
        return ObjectRef(self._origin.name, self._bucket, key)

    async def confirm(self, moment: float) -> None:
        """Knows what held at `moment`, or later."""
        await asyncio.gather(self.manifests.since(moment), self.log.since(moment))
        if self.view is None:
            await self.switched()

    async def switched(self) -> None:
        """Returns once the highest manifest known is the one in use. TierUnavailable."""
        while self._used is not self.highest:
            await asyncio.shield(self._switching or self._begin_switch())

    def doubt(self) -> None:
        """Believes nothing that was known until now before it is confirmed."""
        self.manifests.doubt()
        self.log.doubt()
        self.changed()

    def refresh(self) -> None:
        """Confirms behind the answer that is being given."""
        self.manifests.refresh()
        self.log.refresh()

    def take(self, sequence: int, batch: OverrideBatch) -> None:
        """Takes in the next record of the log, the caller's turn. OverrideError."""
        if self.view is not None:
            self.view.add(sequence, batch)
        else:
            self.overrides.add(sequence, batch)
        self.changed()

    async def close(self) -> None:
        for latest in (self.manifests, self.log):
            await latest.stop()
        if self._switching is not None:
            self._switching.cancel()
            await asyncio.gather(self._switching, return_exceptions=True)
        self.view = None
        if self.opened is not None:
            await self._files.close(self.opened, forget=False)

    async def read_log(self, overrides: Overrides) -> list[tuple[int, OverrideBatch]]:
        """The records of the log beyond those in `overrides`."""
        keys = await all_keys(
            self._origin, self._bucket, self.place.overrides, self.place.override(overrides.through)
        )
        records: list[tuple[int, OverrideBatch]] = []
        for begin in range(0, len(keys), _LOG_AT_ONCE):
            some = keys[begin : begin + _LOG_AT_ONCE]
            bodies = await asyncio.gather(*(self._read(key) for key in some))
            for key, body in zip(some, bodies, strict=True):
                sequence = sequence_of(key)
                if sequence is not None and sequence > overrides.through:
                    records.append((sequence, decode_overrides(body)))
        return records

    async def _read(self, key: str) -> bytes:
        return await read_whole(self._origin, self.ref(key))

    async def _look_at_manifests(self) -> None:
        manifest = await highest(
            self._origin, self._bucket, self.place.manifests, known=self.highest
        )
        if manifest is not None and manifest.generation > self.highest.generation:
            if manifest.prefix != self.prefix:
                raise TierUnavailable(f"{self.place.root} holds a pack of another prefix")
            self.highest = manifest
            self.changed()
        if self._used is not self.highest and self._switching is None:
            # New, or it could not be brought in the last time.
            self._begin_switch()
        if self.highest.state != "whole":
            await self.switched()

    async def _look_at_log(self) -> None:
        if self.manifest.state == "dropped":
            return
        async with self.turn:
            try:
                for sequence, batch in await self.read_log(self.overrides):
                    self.take(sequence, batch)
            except OverrideError as error:
                gap = error
            else:
                return
        # What is missing was folded into a pack that this node does not know yet.
        before = self.manifest
        await self.manifests.since(self._now())
        await self.switched()
        if self.manifest is before:
            raise TierUnavailable(f"the log of {self.prefix!r}: {gap}") from gap

    def _begin_switch(self) -> asyncio.Task[None]:
        async def switch() -> None:
            try:
                while self._used is not self.highest:
                    await self._switch(self.highest)
            except TierUnavailable:
                raise
            except (FeedrackError, OverrideError) as error:
                raise TierUnavailable(f"the pack of {self.prefix!r}: {error!r}") from error
            finally:
                self._switching = None

        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("pack not taken over", prefix=self.prefix, reason=str(error))

        self._switching = task = asyncio.create_task(switch())
        task.add_done_callback(over)
        return task

    async def _switch(self, manifest: Manifest) -> None:
        opened = None
        if manifest.index is not None:
            ref = self.ref(self.place.index(manifest.index.sha256))
            opened = await self._files.open(self._origin, ref, manifest.index)
        async with self.turn:
            try:
                overrides = Overrides(manifest.overrides_through)
                if manifest.state != "dropped":
                    for sequence, batch in await self.read_log(overrides):
                        overrides.add(sequence, batch)
            except BaseException:
                if opened is not None:
                    await self._files.close(opened, forget=False)
                raise
            before, self.opened = self.opened, opened
            self.manifest = self._used = manifest
            self.overrides = overrides
            self.view = None
            if opened is not None:
                self.view = PackView(
                    self._origin.name, self._bucket, manifest, opened.index, overrides
                )
            self.changed()
        log.info(
            "pack in use",
            bucket=self._bucket,
            prefix=self.prefix,
            state=manifest.state,
            generation=manifest.generation,
            objects=manifest.packed_objects,
        )
        if before is not None:
            await self._files.close(before, forget=True)


class BucketPacks:
    """The packs of one bucket."""

    def __init__(
        self, origin: Origin, bucket: str, files: IndexFiles, now: Callable[[], float]
    ) -> None:
        self._origin = origin
        self._bucket = bucket
        self._files = files
        self._now = now
        self._packs: dict[str, Pack] = {}
        self._places: dict[str, Pack | None] = {}
        self._lengths: list[int] = []
        self.places = Latest(self._look_at_places, now)

    def find(self, key: str) -> Pack | None:
        """The pack whose prefix the key begins with, as far as is known: there is one at most."""
        for length in self._lengths:
            pack = self._packs.get(key[:length])
            if pack is not None and pack.takes_overrides:
                return pack
        return None

    def under(self, prefix: str) -> list[Pack]:
        """The packs that share keys with a prefix, as far as is known."""
        return [
            pack
            for pack in self._packs.values()
            if pack.takes_overrides
            and (pack.prefix.startswith(prefix) or prefix.startswith(pack.prefix))
        ]

    def noticed(self, key: str) -> None:
        """Something of a pack was just written: if it was a manifest, it may be the highest."""
        root, manifests, _ = key.partition("manifests/")
        if not manifests:
            return
        pack = self._places.get(root)
        if pack is not None:
            pack.manifests.doubt()
        else:
            self.places.doubt()

    @property
    def looked(self) -> bool:
        """Whether anything is known of the packs there are."""
        return self.places.at > float("-inf")

    def doubt(self) -> None:
        """Takes nothing for known that was looked at until now."""
        self.places.doubt()
        for pack in self._packs.values():
            pack.doubt()

    async def known(self) -> None:
        """Knows of the packs there are, not older than a while. Raises only where nothing is known
        yet and the origin cannot be reached."""
        if not self.looked:
            await self.places.since(self._now())
        elif self._now() - self.places.at > _SETTLED_SECONDS:
            self.places.refresh()

    async def settled(self, key: str) -> Pack | None:
        """The pack that writes of a key are to be logged to: sure enough to answer the write."""
        moment = self._now() - _SETTLED_SECONDS
        await self.places.since(moment)
        for length in self._lengths:
            pack = self._packs.get(key[:length])
            if pack is not None:
                await pack.manifests.since(moment)
                if pack.takes_overrides:
                    if pack.manifest.state == "dropped":
                        # Where the log goes on is not known yet.
                        await pack.switched()
                    return pack
        return None

    async def confirmed(self, key: str, moment: float) -> Pack | None:
        """The pack of a key as of `moment` or later, its log as it was known: for a key that seems
        to be missing."""
        await self.places.since(moment - _SETTLED_SECONDS)
        for length in self._lengths:
            pack = self._packs.get(key[:length])
            if pack is None:
                continue
            if not pack.takes_overrides:
                # It would have to be opened again first, and that takes its time as well.
                await pack.manifests.since(moment - _SETTLED_SECONDS)
            if pack.takes_overrides:
                await pack.manifests.since(moment)
                await pack.switched()
                return pack
        return None

    async def close(self) -> None:
        await self.places.stop()
        for pack in self._packs.values():
            await pack.close()

    async def _look_at_places(self) -> None:
        try:
            found = await all_prefixes(self._origin, self._bucket, PACKS)
        except NoSuchBucket:
            return
        except S3Error as error:
            if error.status >= 500 or error.status in _LATER:
                raise TierUnavailable(f"the origin's packs cannot be listed: {error}") from error
            # Who may not list this bucket can have no packs in it.
            log.info("packs cannot be listed", bucket=self._bucket, reason=str(error))
            return
        for root in found:
            pack = self._places.get(root)
            if pack is None:
                await self._take_in(root)
            elif pack.view is None:
                pack.manifests.refresh()

    async def _take_in(self, root: str) -> None:
        try:
            manifest = await highest(self._origin, self._bucket, f"{root}manifests/")
        except ManifestError as error:
            self._leave_alone(root, str(error))
            return
        if manifest is None:
            # Somebody is about to begin: look again.
            return
        pack = Pack(self._origin, self._bucket, manifest, self._files, self._now)
        if pack.place.root != root:
            self._leave_alone(root, f"it belongs to {manifest.prefix!r}, in another place")
            return
        begun = self._now()
        self._places[root] = self._packs[manifest.prefix] = pack
        self._lengths = sorted({len(prefix) for prefix in self._packs}, reverse=True)
        try:
            await pack.switched()
        except TierUnavailable as error:
            # Its keys wait for it, and no others.
            log.warning("pack not brought in", place=root, reason=str(error))
        else:
            pack.manifests.at = pack.log.at = begun

    def _leave_alone(self, root: str, reason: str) -> None:
        """A place that is not understood; it is looked at again, for there may be a newer pack."""
        if root not in self._places:
            log.error("pack not understood", bucket=self._bucket, place=root, reason=reason)
        self._places[root] = None
