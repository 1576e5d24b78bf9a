"""An origin as those see it who ask past packs: its own objects, and nothing kept of them.

Objects carry the origin's name with a mark, so that what is remembered and kept of them could never
be taken for what the packs' own view of the same keys is; and they are not cacheable, so that
nothing is. Writes teach nothing either: who brackets them is told by `Bucket.written_ref`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import replace

from gateway.model.body import Body
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import (
    ChecksumType,
    CompletedPart,
    DeleteResult,
    ListPage,
    ObjectInfo,
    ObjectRef,
    PartSpan,
    PutResult,
    UploadPage,
    VersionPage,
)
from gateway.model.ranges import ByteRange
from gateway.tiers.passing import Passing
from gateway.tiers.protocol import OpenedObject, Origin, RelayAnswer, RelayRequest

_MARK = "!past-packs"


class PastPacks(Passing):
    """An `Origin` over another one, which somebody else starts and closes. `on_put` hears of each
    bucket and key that an object was put to."""

    def __init__(self, inner: Origin, on_put: Callable[[str, str], None] = lambda *_: None) -> None:
        super().__init__(inner)
        self._on_put = on_put
        self._name = inner.name + _MARK

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        """The inner origin is started by whoever made it."""

    async def close(self) -> None:
        """As `start`."""

    # Reading

    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        return _not_kept(await self._origin.head(self._own(ref), checksums=checksums))

    async def part_span(self, ref: ObjectRef, number: int) -> tuple[ObjectInfo, PartSpan]:
        info, span = await self._origin.part_span(self._own(ref), number)
        return _not_kept(info), span

    async def open(
        self, ref: ObjectRef, *, wanted: ByteRange | None = None, if_match: str | None = None
    ) -> OpenedObject:
        return _Opened(await self._origin.open(self._own(ref), wanted=wanted, if_match=if_match))

    # Writing

    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        try:
            return _untaught(await self._origin.put(self._own(ref), body, headers, conditions))
        finally:
            # It may have been put though no answer came.
            self._on_put(ref.bucket, ref.key)

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
        result = await self._origin.copy(
            self._own(source),
            self._own(target),
            headers=headers,
            tagging=tagging,
            source_conditions=source_conditions,
            conditions=conditions,
            checksum_algorithm=checksum_algorithm,
        )
        return _untaught(result)

    async def delete(self, ref: ObjectRef, conditions: WriteConditions) -> DeleteResult:
        return await self._origin.delete(self._own(ref), conditions)

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        return await self._origin.delete_many(bucket, objects)

    # Buckets and listings

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        return await self._origin.list_objects(
            bucket, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )

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
        return await self._origin.list_versions(
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            version_id_marker=version_id_marker,
            limit=limit,
        )

    # Multipart

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
        return await self._origin.copy_part(
            self._own(source),
            self._own(target),
            upload_id,
            number,
            source_range=source_range,
            source_conditions=source_conditions,
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
        return await self._origin.list_uploads(
            bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=upload_id_marker,
            limit=limit,
        )

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
        result = await self._origin.complete_upload(
            self._own(ref),
            upload_id,
            parts,
            conditions,
            checksums=checksums,
            checksum_type=checksum_type,
            headers=headers,
        )
        return _untaught(result)

    # Tags

    async def get_tags(self, ref: ObjectRef) -> tuple[tuple[str, str], ...]:
        return await self._origin.get_tags(self._own(ref))

    async def put_tags(self, ref: ObjectRef, tags: Sequence[tuple[str, str]]) -> None:
        await self._origin.put_tags(self._own(ref), tags)

    async def delete_tags(self, ref: ObjectRef) -> None:
        await self._origin.delete_tags(self._own(ref))

    async def relay(self, request: RelayRequest, body: Body | None) -> RelayAnswer:
        return await self._origin.relay(request, body)

    def _own(self, ref: ObjectRef) -> ObjectRef:
        """The object as the inner origin names it."""
        return ObjectRef(self._origin.name, ref.bucket, ref.key, ref.version_id)


class _Opened:
    """An inner origin's answer, of which nothing is kept."""

    def __init__(self, inner: OpenedObject) -> None:
        self._inner = inner
        self.info = _not_kept(inner.info)

    @property
    def range(self) -> ByteRange:
        return self._inner.range

    def blocks(self) -> AsyncIterator[bytes]:
        return self._inner.blocks()

    async def read_into(self, memory: memoryview) -> int:
        return await self._inner.read_into(memory)

    async def close(self) -> None:
        await self._inner.close()


def _not_kept(info: ObjectInfo) -> ObjectInfo:
    return replace(info, cacheable=False)


def _untaught(result: PutResult) -> PutResult:
    return result if result.info is None else replace(result, info=None)
