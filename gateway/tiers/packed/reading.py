"""Reads through packs: HeadObject and GetObject of packed keys from the pack, all else from the
origin behind.

An object that the origin itself has is always right: originals stay as they were packed, and what
is written later is written there. So a pack is asked first only to save the origin the trouble; and
must be asked before a key is said to be missing.
"""

from collections.abc import AsyncIterator

import xxhash

from gateway.errors import (
    InvalidPartNumber,
    InvalidRange,
    NoSuchKey,
    TierUnavailable,
    VersionChanged,
)
from gateway.model.objects import ObjectInfo, ObjectRef, ObjectVersion, PartSpan
from gateway.model.ranges import ByteRange, RangeSpec
from gateway.tiers.packed.holding import PacksHolder
from gateway.tiers.packed.known import Pack
from gateway.tiers.packed.view import PackedObject, Tags
from gateway.tiers.protocol import OpenedObject, PackedAt
from packer.format import PACKS

# From this part of the freshness on, what is known is confirmed before it is too old.
_AHEAD = 0.75


class PackedReading(PacksHolder):
    """The reading half of an origin with packs; and `Packs`, what the store asks of them."""

    # What the store asks
    async def discover(self, bucket: str) -> bool:
        packs = self._packs(bucket)
        if packs.looked:
            return False
        try:
            await packs.known()
        except TierUnavailable:
            # Whoever needs to know will ask again.
            return False
        return True

    def known(self, ref: ObjectRef, freshness_seconds: float | None) -> ObjectInfo | None:
        packed = self._believed(ref, freshness_seconds)
        return packed.info if packed is not None else None

    def known_tags(self, ref: ObjectRef, freshness_seconds: float | None) -> Tags | None:
        packed = self._believed(ref, freshness_seconds)
        return packed.tags if packed is not None else None

    def _believed(self, ref: ObjectRef, freshness_seconds: float | None) -> PackedObject | None:
        pack = self._find(ref)
        if pack is None or pack.view is None:
            return None
        if pack.doubted:
            return None
        if freshness_seconds is not None:
            age_seconds = self._now() - pack.confirmed_at
            if age_seconds >= freshness_seconds:
                return None
            if age_seconds > freshness_seconds * _AHEAD:
                pack.refresh()
        return pack.view.packed(ref.key)

    def has(self, ref: ObjectRef) -> bool:
        return self._packed(ref) is not None

    def where(self, version: ObjectVersion) -> PackedAt | None:
        packed = self._packed(version.ref)
        if packed is None or packed.info.etag != version.etag:
            return None
        return packed.at

    def whole(self, bucket: str, prefix: str) -> list[Pack]:
        """The packs in use that share keys with a prefix, as far as is known."""
        return [pack for pack in self._packs(bucket).under(prefix) if pack.view is not None]

    def wants_whole(self, at: PackedAt) -> bool:
        shard = at.shard.version
        return self._appetite.wants_whole(
            shard.etag, shard.size_bytes, at.offset, at.size_bytes, self._now()
        )

    # What an origin answers
    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        begun = self._now()
        packed = await self._first_asked(ref, begun)
        if packed is not None:
            return packed.info
        try:
            return await self._origin.head(ref, checksums=checksums)
        except NoSuchKey:
            packed = await self._after_all(ref, begun)
            if packed is None:
                raise
            return packed.info

    async def part_span(self, ref: ObjectRef, number: int) -> tuple[ObjectInfo, PartSpan]:
        begun = self._now()
        try:
            return await self._origin.part_span(ref, number)
        except NoSuchKey:
            packed = await self._after_all(ref, begun)
            if packed is None:
                raise
            info = packed.info
        # How an object was uploaded is not in the pack: it is whole, or its ETag says in how many
        # parts, but not where they ended.
        if "-" in info.etag:
            raise InvalidPartNumber("The parts of a packed object are not known any more.")
        if number != 1:
            raise InvalidPartNumber
        return info, PartSpan(1, 0, info.size_bytes, 1)

    async def open(
        self,
        ref: ObjectRef,
        *,
        wanted: ByteRange | None = None,
        if_match: str | None = None,
    ) -> OpenedObject:
        if ref.key.startswith(PACKS):
            return await self._open_own(ref, wanted)
        begun = self._now()
        # A version that the caller knows may be looked for without asking what is current.
        if if_match is not None:
            packed = self._packed(ref)
        else:
            packed = await self._first_asked(ref, begun)
        if packed is None:
            try:
                return await self._origin.open(ref, wanted=wanted, if_match=if_match)
            except (NoSuchKey, VersionChanged):
                packed = await self._after_all(ref, begun)
                if packed is None:
                    raise
        if if_match is not None and packed.info.etag != if_match:
            raise VersionChanged(f"{ref.key} has another ETag by now")
        return await self._open_packed(packed, wanted)

    async def get_tags(self, ref: ObjectRef) -> Tags:
        begun = self._now()
        packed = await self._first_asked(ref, begun)
        if packed is not None:
            return packed.tags
        try:
            return await self._origin.get_tags(ref)
        except NoSuchKey:
            packed = await self._after_all(ref, begun)
            if packed is None:
                raise
            return packed.tags

    async def _asked(self, ref: ObjectRef, moment: float) -> PackedObject | None:
        """What a pack says of the key as of `moment`."""
        if ref.version_id is not None:
            return None
        packs = self._packs(ref.bucket)
        await packs.known()
        pack = packs.find(ref.key)
        if pack is None:
            return None
        if pack.view is None:
            pack.refresh()
            return None
        await pack.confirm(moment)
        return self._packed(ref)

    async def _first_asked(self, ref: ObjectRef, moment: float) -> PackedObject | None:
        """As `_asked`, but only where a pack speaks for the key as far as is known: what the origin
        has is right. So it is where packs cannot be looked at."""
        try:
            await self._packs(ref.bucket).known()
            pack = self._find(ref)
            if pack is not None and pack.view is not None and self._packed(ref) is None:
                return None
            return await self._asked(ref, moment)
        except TierUnavailable:
            return None

    async def _after_all(self, ref: ObjectRef, moment: float) -> PackedObject | None:
        """What a pack says of a key that the origin does not have: its original may have been
        deleted for being packed. TierUnavailable where that cannot be known."""
        if ref.version_id is not None:
            return None
        pack = await self._packs(ref.bucket).confirmed(ref.key, moment)
        if pack is not None and self._left(ref) is not None:
            # Unless it was deleted since the log was read.
            await pack.log.since(moment)
        return self._left(ref)

    async def _open_packed(self, packed: PackedObject, wanted: ByteRange | None) -> "PackedOpened":
        size_bytes = packed.info.size_bytes
        if not size_bytes:
            return PackedOpened(packed, ByteRange(0, 0), None)
        chosen = ByteRange(0, size_bytes)
        if wanted is not None:
            chosen = RangeSpec(wanted.start, max(wanted.start, wanted.stop - 1)).resolve(size_bytes)
        at = packed.at
        there = ByteRange(at.offset + chosen.start, at.offset + chosen.stop)
        return PackedOpened(packed, chosen, await self._open_own(at.shard.version.ref, there))

    async def _open_own(self, ref: ObjectRef, wanted: ByteRange | None) -> OpenedObject:
        """A shard, or bytes of one. Its name says what is in it: no ETag is asked for."""
        try:
            return await self._origin.open(ref, wanted=wanted)
        except InvalidRange as error:
            raise TierUnavailable(f"{ref.key} at the origin is cut short") from error
        except NoSuchKey as error:
            # Its pack has been replaced, or dropped: who reads on has to look again.
            await self._lost(ref)
            raise VersionChanged(f"{ref.key} is gone") from error


class PackedOpened:
    """Bytes of a packed object, out of an answer with bytes of its shard. A whole object is held
    against its checksum before its last bytes are given."""

    def __init__(
        self, packed: PackedObject, wanted: ByteRange, opened: OpenedObject | None
    ) -> None:
        self.info = packed.info
        self.range = wanted
        self._opened = opened
        self._left_bytes = wanted.size_bytes
        self._checksum = packed.at.checksum
        whole = wanted.size_bytes == packed.info.size_bytes
        self._digest = xxhash.xxh3_64() if whole else None

    async def blocks(self) -> AsyncIterator[bytes]:
        if self._opened is None:
            return
        async for block in self._opened.blocks():
            self._took(block)
            yield block
        self._ended()

    async def read_into(self, memory: memoryview) -> int:
        if self._opened is None or not self._left_bytes:
            return 0
        size_bytes = await self._opened.read_into(memory[: self._left_bytes])
        if not size_bytes:
            self._ended()
        self._took(memory[:size_bytes])
        return size_bytes

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    def _ended(self) -> None:
        if self._left_bytes:
            raise TierUnavailable("a shard at the origin is cut short: verify the pack")

    def _took(self, block: bytes | memoryview) -> None:
        self._left_bytes -= len(block)
        if self._digest is None:
            return
        self._digest.update(block)
        if not self._left_bytes and self._digest.intdigest() != self._checksum:
            raise TierUnavailable("a shard at the origin is damaged: verify the pack")
