"""PutObject, CopyObject, DeleteObject(s): the origin first, then the cache, then the answer."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from gateway.errors import InvalidRequest
from gateway.model.body import Body, HeldBackBody, StreamedBody
from gateway.model.conditions import (
    UNCONDITIONAL_WRITE,
    Conditions,
    WriteConditions,
    check_copy_source,
)
from gateway.model.objects import (
    DeleteResult,
    ObjectInfo,
    ObjectVersion,
    PutResult,
)
from gateway.store.buckets import Bucket
from gateway.store.giving import Giving
from gateway.store.keeping import KeptBody, Staged

# The largest object one PutObject or CopyObject may make (AWS, "Amazon S3 quotas").
_LARGEST_PUT_BYTES = 5 * 1024**3


class Writes(Giving):
    """The writing half of the object service."""

    async def put(
        self,
        bucket: str,
        key: str,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        """Stores the verified body at the origin and leaves it warm.

        Raises whatever `Body.read` raises, PreconditionFailed, NoSuchBucket, TierUnavailable.
        """
        where = self.bucket(bucket)
        ref = where.ref(key)
        staged = self._stage(where, body.length_bytes)
        try:
            async with self._writing(where, [key]) as writing:
                kept_body = HeldBackBody(KeptBody(body, staged), writing.settled)
                result = await where.origin.put(ref, kept_body, headers, conditions)
                kept = await staged.publish(ObjectVersion(ref, result.etag, body.length_bytes))
                writing.learned(ref, result.info)
        finally:
            await staged.discard()
        self._after_write(where, key, result, kept=kept)
        return result

    async def copy(
        self,
        source_bucket: str,
        source_key: str,
        source_version_id: str | None,
        bucket: str,
        key: str,
        *,
        headers: Mapping[str, str] | None,
        tagging: str | None,
        source_conditions: Conditions,
        conditions: WriteConditions,
        checksum_algorithm: str | None,
    ) -> tuple[PutResult, str | None]:
        """Copies one object version; within an origin the bytes never pass through here.

        Returns the result and the source's version id.
        """
        source_where = self.bucket(source_bucket)
        source = source_where.ref(source_key, source_version_id)
        where = self.bucket(bucket)
        target = where.ref(key)
        if source_where.origin is where.origin:
            async with self._writing(where, [key]) as writing:
                await writing.settled()
                result = await where.origin.copy(
                    source,
                    target,
                    headers=headers,
                    tagging=tagging,
                    source_conditions=source_conditions,
                    conditions=conditions,
                    checksum_algorithm=checksum_algorithm,
                )
                writing.learned(target, result.info)
            self._after_write(where, key, result, kept=False)
            return result, source_version_id
        answer = await self.get(source_bucket, source_key, version_id=source_version_id)
        try:
            check_copy_source(source_conditions, answer.info)
            if answer.info.size_bytes > _LARGEST_PUT_BYTES:
                raise InvalidRequest(
                    "The specified copy source is larger than the maximum allowable size for a "
                    f"copy source: {_LARGEST_PUT_BYTES}"
                )
            described = dict(answer.info.headers if headers is None else headers)
            if tagging is None:
                tagging = urlencode(await source_where.origin.get_tags(source))
            if tagging:
                described["x-amz-tagging"] = tagging
            body = StreamedBody(answer.blocks(), answer.range.size_bytes, checksum_algorithm)
            result = await self.put(bucket, key, body, described, conditions)
        finally:
            await answer.close()
        return result, answer.info.version_id

    async def delete(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        conditions: WriteConditions = UNCONDITIONAL_WRITE,
    ) -> DeleteResult:
        """Deletes; a key that is not there is no error."""
        where = self.bucket(bucket)
        async with self._writing(where, [key]) as writing:
            await writing.settled()
            result = await where.origin.delete(where.ref(key, version_id), conditions)
        self._later(self._disk.forget(where.written_ref(key)), "forget")
        return result

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        """Deletes up to 1,000 (key, version id); one result each, failures within."""
        where = self.bucket(bucket)
        keys = [key for key, _ in objects]
        async with self._writing(where, keys) as writing:
            await writing.settled()
            results = await where.origin.delete_many(where.origin_bucket, objects)
        for key in dict.fromkeys(keys):
            self._later(self._disk.forget(where.written_ref(key)), "forget")
        return results

    def _stage(self, bucket: Bucket, size_bytes: int) -> Staged:
        staged = Staged(
            self._disk,
            size_bytes=size_bytes,
            chunk_size_bytes=self._cache.chunk_size,
            small_bytes=self._cache.small_object_limit,
        )
        # One upload must not sweep out everything else; what is written past packs is read by
        # another name than it would be kept by.
        swamps = size_bytes > self._cache.capacity // 4
        staged.lost = staged.lost or swamps or bucket.past_packs
        return staged

    def _after_write(self, bucket: Bucket, key: str, result: PutResult, *, kept: bool) -> None:
        """Tells the disk what is current now, or that what it remembers no longer is."""
        ref = bucket.ref(key)
        info: ObjectInfo | None = result.info
        if info is not None and self._versions.trusted(ref, None) == info:
            self._remember_on_disk(ref, info)
        elif kept:
            self._versions.note_kept(ref)
