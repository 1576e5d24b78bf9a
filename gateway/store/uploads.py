"""Multipart uploads: parts pass to the origin and are staged, so that the whole is warm too.

Staged parts are a convenience held in memory and unnamed files: an upload begun before a restart,
or crowded out by others, completes just the same and is read from the origin the first time.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.model.body import Body, StreamedBody
from gateway.model.conditions import Conditions, WriteConditions, check_copy_source
from gateway.model.objects import (
    ChecksumType,
    CompletedPart,
    ObjectRef,
    ObjectVersion,
    PartPage,
    PutResult,
    UploadPage,
)
from gateway.model.ranges import ByteRange, RangeSpec
from gateway.store.buckets import Bucket
from gateway.store.keeping import KeptBody, Staged
from gateway.store.writes import Writes

# Of the cache's capacity, what parts of unfinished uploads may take.
_STAGED_SHARE = 4
_Parts = dict[int, Staged]


class Uploads(Writes):
    """The multipart part of the object service."""

    def __init__(self, **collaborators: Any) -> None:
        super().__init__(**collaborators)
        self._staged: OrderedDict[tuple[ObjectRef, str], _Parts] = OrderedDict()

    async def create_upload(
        self,
        bucket: str,
        key: str,
        headers: Mapping[str, str],
        *,
        checksum_algorithm: str | None,
        checksum_type: ChecksumType | None,
    ) -> str:
        """A new upload's id."""
        where = self.bucket(bucket)
        return await where.origin.create_upload(
            where.ref(key),
            headers,
            checksum_algorithm=checksum_algorithm,
            checksum_type=checksum_type,
        )

    async def put_part(
        self,
        bucket: str,
        key: str,
        upload_id: str,
        number: int,
        body: Body,
        headers: Mapping[str, str],
    ) -> PutResult:
        """Stores one verified part."""
        where = self.bucket(bucket)
        ref = where.ref(key)
        kept = body.length_bytes <= self._staging_bytes and not where.past_packs
        if kept:
            await self._make_room(body.length_bytes)
        # A part is never "small": it is a piece of something that is not.
        staged = Staged(
            self._disk,
            size_bytes=body.length_bytes,
            chunk_size_bytes=self._cache.chunk_size,
            small_bytes=-1,
        )
        staged.lost = staged.lost or not kept
        try:
            result = await where.origin.put_part(
                ref, upload_id, number, KeptBody(body, staged), headers
            )
        except BaseException:
            await staged.discard()
            raise
        await self._drop_part(ref, upload_id, number)
        # An empty part needs no staging and would cost nothing of the share that bounds the table.
        if staged.lost or not body.length_bytes:
            await staged.discard()
            return result
        staged.etag = result.etag
        self._staged.setdefault((ref, upload_id), {})[number] = staged
        return result

    async def copy_part(
        self,
        source_bucket: str,
        source_key: str,
        source_version_id: str | None,
        bucket: str,
        key: str,
        upload_id: str,
        number: int,
        *,
        source_range: ByteRange | None,
        source_conditions: Conditions,
    ) -> PutResult:
        """Makes a part of (a range of) an object; within an origin no byte passes through here."""
        source_where = self.bucket(source_bucket)
        source = source_where.ref(source_key, source_version_id)
        where = self.bucket(bucket)
        target = where.ref(key)
        if source_where.origin is where.origin:
            result = await where.origin.copy_part(
                source,
                target,
                upload_id,
                number,
                source_range=source_range,
                source_conditions=source_conditions,
            )
            await self._drop_part(target, upload_id, number)
            return result
        wanted = (
            RangeSpec(source_range.start, source_range.stop - 1)
            if source_range is not None
            else None
        )
        answer = await self.get(
            source_bucket, source_key, version_id=source_version_id, wanted=wanted
        )
        try:
            check_copy_source(source_conditions, answer.info)
            return await self.put_part(
                bucket,
                key,
                upload_id,
                number,
                StreamedBody(answer.blocks(), answer.range.size_bytes),
                {},
            )
        finally:
            await answer.close()

    async def list_parts(
        self, bucket: str, key: str, upload_id: str, *, after_number: int, limit: int
    ) -> PartPage:
        where = self.bucket(bucket)
        return await where.origin.list_parts(
            where.ref(key), upload_id, after_number=after_number, limit=limit
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
        where = self.bucket(bucket)
        return await where.origin.list_uploads(
            where.origin_bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=upload_id_marker,
            limit=limit,
        )

    async def complete_upload(
        self,
        bucket: str,
        key: str,
        upload_id: str,
        parts: Sequence[CompletedPart],
        conditions: WriteConditions,
        *,
        checksums: Mapping[str, str],
        checksum_type: ChecksumType | None,
        headers: Mapping[str, str],
    ) -> PutResult:
        """Makes the object of its parts, at the origin and, where all were staged, on disk."""
        where = self.bucket(bucket)
        ref = where.ref(key)
        async with self._writing(where, [key]) as writing:
            await writing.settled()
            result = await where.origin.complete_upload(
                ref,
                upload_id,
                parts,
                conditions,
                checksums=checksums,
                checksum_type=checksum_type,
                headers=headers,
            )
            writing.learned(ref, result.info)
        staged = self._staged.pop((ref, upload_id), {})
        chosen = [staged.pop(part.number, None) for part in parts]
        for unused in staged.values():
            await unused.discard()
        whole = [
            piece
            for piece, part in zip(chosen, parts, strict=True)
            if piece is not None and piece.etag == part.etag
        ]
        if len(whole) == len(parts):
            self._later(self._assemble(where, key, result.etag, whole), "assemble")
        else:
            for piece in chosen:
                if piece is not None:
                    await piece.discard()
        self._after_write(where, key, result, kept=len(whole) == len(parts))
        return result

    async def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Drops an upload and its parts."""
        where = self.bucket(bucket)
        ref = where.ref(key)
        await where.origin.abort_upload(ref, upload_id)
        for piece in self._staged.pop((ref, upload_id), {}).values():
            await piece.discard()

    async def close(self) -> None:
        await super().close()
        while self._staged:
            _, parts = self._staged.popitem()
            for piece in parts.values():
                await piece.discard()

    @property
    def _staging_bytes(self) -> int:
        return self._cache.capacity // _STAGED_SHARE

    async def _make_room(self, size_bytes: int) -> None:
        """Keeps staged parts within their share; the upload untouched for longest goes first."""
        total = sum(piece.size_bytes for parts in self._staged.values() for piece in parts.values())
        while self._staged and total + size_bytes > self._staging_bytes:
            _, parts = self._staged.popitem(last=False)
            for piece in parts.values():
                total -= piece.size_bytes
                await piece.discard()

    async def _drop_part(self, ref: ObjectRef, upload_id: str, number: int) -> None:
        parts = self._staged.get((ref, upload_id), {})
        replaced = parts.pop(number, None)
        if replaced is not None:
            if not parts:
                del self._staged[ref, upload_id]
            await replaced.discard()

    async def _assemble(
        self, bucket: Bucket, key: str, etag: str, pieces: Sequence[Staged]
    ) -> None:
        """Publishes the parts as the chunks of the whole, recut where they do not line up."""
        size_bytes = sum(piece.size_bytes for piece in pieces)
        version = ObjectVersion(bucket.ref(key), etag, size_bytes)
        whole = self._stage(bucket, size_bytes)
        try:
            recut = not all(piece.aligned for piece in pieces[:-1])
            for piece in pieces:
                if recut or whole.is_small:
                    async for block in piece.blocks():
                        await whole.take(block)
                    await piece.discard()
                else:
                    whole.adopt(piece.hand_over(), piece.size_bytes)
            await whole.publish(version)
        finally:
            await whole.discard()
            for piece in pieces:
                await piece.discard()
