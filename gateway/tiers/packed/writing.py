"""Writes through packs: at the origin first, then in the log of overrides, then answered.

A condition on a packed key whose original may be gone cannot be left to the origin, which does not
know of it: it is looked at here, and what the origin must then hold (nothing) is its condition.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlencode

from msgspec.structs import replace

from gateway.errors import FeedrackError, NoSuchKey, PreconditionFailed
from gateway.model.body import Body, StreamedBody
from gateway.model.conditions import Conditions, WriteConditions, check_copy_source
from gateway.model.objects import (
    ChecksumType,
    CompletedPart,
    DeleteResult,
    ObjectInfo,
    ObjectRef,
    PutResult,
)
from gateway.model.ranges import ByteRange
from gateway.tiers.packed.known import Pack
from gateway.tiers.packed.log import Flights, Mixed, OverrideLog
from gateway.tiers.packed.reading import PackedReading
from gateway.tiers.packed.view import PackedObject, Tags
from gateway.tiers.protocol import OpenedObject, RelayAnswer, RelayRequest
from packer.format import Override

_NEW = WriteConditions(if_none_match_any=True)
_COUNT = "x-amz-tagging-count"
# How often a copy begins anew because its source is being written.
_RESTARTS = 3
_READING = frozenset({"GET", "HEAD"})


class PackedWriting(PackedReading):
    """The writing half of an origin with packs."""

    def __init__(self, *args: object, **how: object) -> None:
        super().__init__(*args, **how)  # type: ignore[arg-type]
        self._flights = Flights()
        self._logs: dict[Pack, OverrideLog] = {}

    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        async with self._writing(ref) as mixed:
            at_origin = await self._conditions(ref, conditions)
            result = await self._origin.put(ref, body, headers, at_origin)
            return await self._written(ref, result, mixed)

    async def copy(
        self,
        source: ObjectRef,
        target: ObjectRef,
        *,
        headers: Mapping[str, str] | None,
        tagging: str | None,
        source_conditions: Conditions,
        conditions: WriteConditions,
        checksum_algorithm: str | None,
    ) -> PutResult:
        async with self._writing(target) as mixed:
            at_origin = await self._conditions(target, conditions)
            for _ in range(_RESTARTS):
                packed, etag = await self._copied(source)
                if packed is not None:
                    break
                wanted = source_conditions
                if etag is not None and not wanted.if_match:
                    wanted = replace(wanted, if_match=(etag,))
                try:
                    result = await self._origin.copy(
                        source,
                        target,
                        headers=headers,
                        tagging=tagging,
                        source_conditions=wanted,
                        conditions=at_origin,
                        checksum_algorithm=checksum_algorithm,
                    )
                except PreconditionFailed:
                    if wanted is source_conditions:
                        raise
                    # It was written just now: what the pack says of it is to be found out anew.
                    continue
                return await self._written(target, result, mixed)
            if packed is None:
                raise PreconditionFailed
            result = await self._put_packed(
                packed, target, headers, tagging, source_conditions, at_origin, checksum_algorithm
            )
            return await self._written(target, result, mixed)

    async def _put_packed(
        self,
        packed: PackedObject,
        target: ObjectRef,
        headers: Mapping[str, str] | None,
        tagging: str | None,
        source_conditions: Conditions,
        conditions: WriteConditions,
        checksum_algorithm: str | None,
    ) -> PutResult:
        """A copy out of a shard."""
        check_copy_source(source_conditions, packed.info)
        described = dict(packed.info.headers if headers is None else headers)
        described.pop(_COUNT, None)
        tags = urlencode(packed.tags) if tagging is None else tagging
        if tags:
            described["x-amz-tagging"] = tags
        opened = await self._open_packed(packed, None)
        try:
            body = _body(opened, checksum_algorithm)
            return await self._origin.put(target, body, described, conditions)
        finally:
            await opened.close()

    async def copy_part(
        self,
        source: ObjectRef,
        target: ObjectRef,
        upload_id: str,
        number: int,
        *,
        source_range: ByteRange | None,
        source_conditions: Conditions,
    ) -> PutResult:
        packed, _ = await self._copied(source)
        if packed is None:
            return await self._origin.copy_part(
                source,
                target,
                upload_id,
                number,
                source_range=source_range,
                source_conditions=source_conditions,
            )
        check_copy_source(source_conditions, packed.info)
        opened = await self._open_packed(packed, source_range)
        try:
            return await self._origin.put_part(target, upload_id, number, _body(opened, None), {})
        finally:
            await opened.close()

    async def complete_upload(
        self,
        ref: ObjectRef,
        upload_id: str,
        parts: Sequence[CompletedPart],
        conditions: WriteConditions,
        *,
        checksums: Mapping[str, str],
        checksum_type: ChecksumType | None,
        headers: Mapping[str, str],
    ) -> PutResult:
        async with self._writing(ref) as mixed:
            result = await self._origin.complete_upload(
                ref,
                upload_id,
                parts,
                await self._conditions(ref, conditions),
                checksums=checksums,
                checksum_type=checksum_type,
                headers=headers,
            )
            return await self._written(ref, result, mixed)

    async def delete(self, ref: ObjectRef, conditions: WriteConditions) -> DeleteResult:
        async with self._writing(ref) as mixed:
            of_version = ref.version_id is not None
            packed = await self._alone(ref.current) if conditions or of_version else None
            if packed is not None and not of_version:
                _check(conditions, packed.info)
                conditions = WriteConditions()
            result = await self._origin.delete(ref, conditions)
            alone = {ref.key} if packed is not None else set()
            await self._deleted(ref.bucket, [(ref.key, ref.version_id)], alone, mixed)
        return result

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        keys = list(dict.fromkeys(key for key, _ in objects))
        async with self._flights.of(bucket, keys) as mixed:
            versions = dict.fromkeys(key for key, version_id in objects if version_id is not None)
            alone = {
                key
                for key in versions
                if await self._alone(ObjectRef(self.name, bucket, key)) is not None
            }
            results = await self._origin.delete_many(bucket, objects)
            gone = [
                named
                for named, result in zip(objects, results, strict=True)
                if result.error_code is None
            ]
            await self._deleted(bucket, gone, alone, mixed)
        return results

    async def put_tags(self, ref: ObjectRef, tags: Sequence[tuple[str, str]]) -> None:
        await self._tag(ref, tuple(tags))

    async def delete_tags(self, ref: ObjectRef) -> None:
        await self._tag(ref, ())

    async def relay(self, request: RelayRequest, body: Body | None) -> RelayAnswer:
        if request.method in _READING or not request.key or ("select", "") in request.query:
            return await self._origin.relay(request, body)
        ref = ObjectRef(self.name, request.bucket, request.key)
        async with self._writing(ref) as mixed:
            answer = await self._origin.relay(request, body)
            if answer.status < 400:
                # It may have been a PutObject with an object lock, or have changed nothing.
                await self._changed(ref, mixed)
        return answer

    async def _tag(self, ref: ObjectRef, tags: Tags) -> None:
        # By itself: the record that two writes of a key overlapped sends whoever asks for it to the
        # origin, where this one may have left nothing.
        async with self._flights.of(ref.bucket, [ref.key], alone=True) as mixed:
            packed = None if ref.version_id is not None else await self._alone(ref)
            if packed is None:
                if tags:
                    await self._origin.put_tags(ref, tags)
                else:
                    await self._origin.delete_tags(ref)
                packed = self._packed(ref)
            if packed is None:
                await self._changed(ref, mixed)
                return
            pack = await self._packs(ref.bucket).settled(ref.key)
            if pack is not None:
                # Its bytes stay the pack's, and nothing else of it changes.
                await self._log(pack, [self._fact(ref, packed.info, tags, mixed)])

    def _writing(self, ref: ObjectRef) -> AbstractAsyncContextManager[Mixed]:
        return self._flights.of(ref.bucket, [ref.key])

    async def _copied(self, source: ObjectRef) -> tuple[PackedObject | None, str | None]:
        """What to copy out of a pack; else the ETag that the origin's object must have, if the pack
        speaks for the key: a write that is at the origin and not in the log yet is nobody's to
        read."""
        packed = await self._asked(source, self._now())
        if packed is None:
            return await self._alone(source), None
        try:
            info = await self._origin.head(source)
        except NoSuchKey:
            return packed, None
        return (None, info.etag) if info.etag == packed.info.etag else (packed, None)

    async def _alone(self, ref: ObjectRef) -> PackedObject | None:
        """The packed object whose original the origin may not have any more."""
        await self._asked(ref, self._now())
        if self._left(ref) is None:
            return None
        try:
            await self._origin.head(ref)
        except NoSuchKey:
            return self._left(ref)
        return None

    async def _conditions(self, ref: ObjectRef, conditions: WriteConditions) -> WriteConditions:
        """What the origin must be asked for, where `conditions` are the client's."""
        packed = await self._alone(ref) if conditions else None
        if packed is None:
            return conditions
        _check(conditions, packed.info)
        return _NEW

    async def _written(self, ref: ObjectRef, result: PutResult, mixed: Mixed) -> PutResult:
        """Logs what a write made, where a pack must know; what to answer."""
        pack = await self._packs(ref.bucket).settled(ref.key)
        if pack is None:
            return result
        override = Override(op="unsure", key=ref.key)
        try:
            info = result.info if result.info is not None else await self._origin.head(ref)
            if info.etag == result.etag:
                override = await self._told(ref, info, mixed)
        except FeedrackError:
            # It is written, and that is what the client asked for; another may have written since.
            pass
        await self._log(pack, [override])
        return result

    async def _changed(self, ref: ObjectRef, mixed: Mixed) -> None:
        """Logs what the origin has now, after something was done to an object or a version of its
        own. Where it has none, nothing was changed."""
        pack = await self._packs(ref.bucket).settled(ref.key)
        if pack is None:
            return
        try:
            info = await self._origin.head(ref.current)
            override = await self._told(ref.current, info, mixed)
        except NoSuchKey:
            return
        except FeedrackError:
            override = Override(op="unsure", key=ref.key)
        await self._log(pack, [override])

    async def _told(self, ref: ObjectRef, info: ObjectInfo, mixed: Mixed) -> Override:
        tags = await self._origin.get_tags(ref) if _COUNT in info.headers else ()
        return self._fact(ref, info, tags, mixed)

    async def _deleted(
        self,
        bucket: str,
        objects: Sequence[tuple[str, str | None]],
        alone: Collection[str],
        mixed: Mixed,
    ) -> None:
        """Logs what was deleted. `alone`: the keys of which the origin had nothing but versions."""
        records: dict[Pack, list[Override]] = {}
        for key, version_id in objects:
            if version_id is not None and key in alone:
                # An old version, and nothing changed; or what hid one, and that is there again.
                await self._changed(ObjectRef(self.name, bucket, key), mixed)
                continue
            pack = await self._packs(bucket).settled(key)
            if pack is not None:
                sure = version_id is None and not mixed(key)
                override = Override(op="delete" if sure else "unsure", key=key)
                records.setdefault(pack, []).append(override)
        for pack, overrides in records.items():
            await self._log(pack, overrides)

    def _fact(self, ref: ObjectRef, info: ObjectInfo, tags: Tags, mixed: Mixed) -> Override:
        if mixed(ref.key):
            return Override(op="unsure", key=ref.key)
        return Override(
            op="put",
            key=ref.key,
            etag=info.etag,
            size_bytes=info.size_bytes,
            modified_ms=info.last_modified_ms,
            headers={name: value for name, value in info.headers.items() if name != _COUNT},
            tags=tags,
        )

    async def close(self) -> None:
        for log in self._logs.values():
            await log.close()
        await super().close()

    async def _log(self, pack: Pack, overrides: list[Override]) -> None:
        log = self._logs.get(pack)
        if log is None:
            log = self._logs[pack] = OverrideLog(self._origin, pack, self._node)
        await log.append(overrides)
        if self._settled is not None:
            await self._settled()


def _check(conditions: WriteConditions, info: ObjectInfo) -> None:
    """Nothing where the object may be replaced or deleted. PreconditionFailed."""
    if conditions.if_none_match_any:
        raise PreconditionFailed(fields={"Condition": "If-None-Match"})
    if conditions.if_match not in (None, "*", info.etag):
        raise PreconditionFailed(fields={"Condition": "If-Match"})


def _body(opened: OpenedObject, checksum_algorithm: str | None) -> StreamedBody:
    return StreamedBody(opened.blocks(), opened.range.size_bytes, checksum_algorithm)
