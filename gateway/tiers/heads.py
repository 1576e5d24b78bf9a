"""What is remembered on disk of objects: their heads, in the index beside their bytes."""

import msgspec

from gateway.index.records import (
    ObjectRecord,
    Table,
    decode_object,
    encode,
    find,
    object_key,
    raw_text,
    version_of,
    with_info,
)
from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.tiers.holding import Holding


class Heads:
    """The heads in one index. What is forgotten must stay so over a crash: where a method returns
    False, that could not be written down."""

    def __init__(self, holding: Holding, small_object_limit_bytes: int) -> None:
        self._holding = holding
        self._small_bytes = small_object_limit_bytes

    def remember(self, ref: ObjectRef, info: ObjectInfo, *, takes_in: bool) -> None:
        """Remembers what an object is, and lets go of the version it replaces. `takes_in`: the disk
        does; else what is replaced is only forgotten."""
        index = self._holding.index
        key = object_key(ref)
        record = self._record(key, ref)
        replaced = find(record, ref) if record is not None else None
        if replaced is not None and replaced.etag != info.etag:
            self._let_go(ref, record, ref.version_id)
        try:
            raw = encode(with_info(record, ref, info))
        except UnicodeEncodeError:
            # A header or ETag that is not text cannot be kept in the index; ask again instead.
            index.delete(Table.OBJECTS, key)
            return
        if takes_in:
            index.put(Table.OBJECTS, key, raw)
        elif replaced is not None and replaced != info:
            index.delete(Table.OBJECTS, key)

    def recall(self, ref: ObjectRef) -> ObjectInfo | None:
        """What was last remembered of the object; None where nothing is."""
        record = self._record(object_key(ref), ref)
        return find(record, ref) if record is not None else None

    async def forget(self, ref: ObjectRef) -> bool:
        """Forgets a key in all its version ids and lets go of what is held of them."""
        index = self._holding.index
        key = object_key(ref)
        record = self._record(key, ref)
        if record is not None:
            self._let_go(ref, record, None, everything=True)
            index.delete(Table.OBJECTS, key)
        return not index.will_hold(Table.OBJECTS, key) or await index.flush()

    async def forget_bucket(self, origin: str, bucket: str) -> bool:
        """Forgets the heads of a bucket's objects and keeps their bytes. Reads the whole table."""
        index = self._holding.index
        ours = (origin, raw_text(bucket))
        found: list[bytes] = []

        def visit(key: bytes, raw: bytes) -> None:
            try:
                record = decode_object(raw)
            except msgspec.MsgspecError:
                found.append(key)
                return
            if (record.origin, record.bucket) == ours:
                found.append(key)

        if not await index.flush():
            return False
        await index.scan(Table.OBJECTS, visit)
        for key in found:
            index.delete(Table.OBJECTS, key)
        return await index.flush()

    def _record(self, key: bytes, ref: ObjectRef) -> ObjectRecord | None:
        index = self._holding.index
        raw = index.get(Table.OBJECTS, key)
        if raw is None:
            return None
        try:
            record = decode_object(raw)
        except msgspec.MsgspecError:
            index.delete(Table.OBJECTS, key)
            return None
        ours = (ref.origin, raw_text(ref.bucket), raw_text(ref.key))
        return record if (record.origin, record.bucket, record.key) == ours else None

    def _let_go(
        self,
        ref: ObjectRef,
        record: ObjectRecord | None,
        version_id: str | None,
        *,
        everything: bool = False,
    ) -> None:
        wanted = None if version_id is None else raw_text(version_id)
        for remembered in record.versions if record is not None else ():
            if everything or remembered.version_id == wanted:
                version = version_of(ref, remembered)
                if version.size_bytes <= self._small_bytes:
                    self._holding.small.forget(version)
                else:
                    self._holding.chunks.forget(version)
