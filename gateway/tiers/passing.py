"""What an origin over another one hands on as it came."""

from collections.abc import Mapping, Sequence

from gateway.model.body import Body
from gateway.model.objects import BucketEntry, ChecksumType, ObjectRef, PartPage, PutResult
from gateway.tiers.protocol import Origin


class Passing:
    """The part of `Origin` that `origin` answers by itself: buckets, and uploads until they are
    completed. `_own` is an object as `origin` names it."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    @property
    def relays(self) -> bool:
        return self._origin.relays

    def _own(self, ref: ObjectRef) -> ObjectRef:
        return ref

    async def list_buckets(self) -> list[BucketEntry]:
        return await self._origin.list_buckets()

    async def head_bucket(self, bucket: str) -> None:
        await self._origin.head_bucket(bucket)

    async def create_bucket(self, bucket: str) -> None:
        await self._origin.create_bucket(bucket)

    async def delete_bucket(self, bucket: str) -> None:
        await self._origin.delete_bucket(bucket)

    async def create_upload(
        self,
        ref: ObjectRef,
        headers: Mapping[str, str],
        *,
        checksum_algorithm: str | None,
        checksum_type: ChecksumType | None,
    ) -> str:
        return await self._origin.create_upload(
            self._own(ref),
            headers,
            checksum_algorithm=checksum_algorithm,
            checksum_type=checksum_type,
        )

    async def put_part(
        self, ref: ObjectRef, upload_id: str, number: int, body: Body, headers: Mapping[str, str]
    ) -> PutResult:
        return await self._origin.put_part(self._own(ref), upload_id, number, body, headers)

    async def list_parts(
        self, ref: ObjectRef, upload_id: str, *, after_number: int, limit: int
    ) -> PartPage:
        return await self._origin.list_parts(
            self._own(ref), upload_id, after_number=after_number, limit=limit
        )

    async def abort_upload(self, ref: ObjectRef, upload_id: str) -> None:
        await self._origin.abort_upload(self._own(ref), upload_id)

    async def get_bucket_tags(self, bucket: str) -> tuple[tuple[str, str], ...]:
        return await self._origin.get_bucket_tags(bucket)

    async def put_bucket_tags(self, bucket: str, tags: Sequence[tuple[str, str]]) -> None:
        await self._origin.put_bucket_tags(bucket, tags)

    async def delete_bucket_tags(self, bucket: str) -> None:
        await self._origin.delete_bucket_tags(bucket)
