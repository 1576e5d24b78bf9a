"""A directory as an origin: the folders of a NAS mount are buckets, the files in them objects.

What others put there is served as it is, and what is written through us can be read by others as
plain files (`paths` says where). Nothing is kept but in the directory itself, in
a hidden folder of each bucket and in attributes of the files (`records`).

Limits. Symbolic links are neither shown nor followed, wherever they lead. Conditional writes are
atomic among the requests of one process; over one NAS the last of two hosts wins. What others
change in place shows when its size or modification time does, on a network file system only once
the client looks again (its attribute cache). Two hosts see each other's drafts and clean them when
a day old.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.errors import InvalidArgument, InvalidPartNumber
from gateway.errors import NotImplemented as S3NotImplemented
from gateway.model.body import Body
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import (
    BucketEntry,
    ChecksumType,
    CompletedPart,
    DeleteResult,
    ListPage,
    ObjectInfo,
    ObjectRef,
    PartPage,
    PartSpan,
    PutResult,
    UploadPage,
    VersionPage,
)
from gateway.model.ranges import ByteRange
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import buckets, uploads
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.commit import retag
from gateway.tiers.origin_directory.deleting import delete, delete_many
from gateway.tiers.origin_directory.listing import list_page, version_page
from gateway.tiers.origin_directory.objects import Bucket
from gateway.tiers.origin_directory.paths import names_of
from gateway.tiers.origin_directory.reading import Opened, open_to_read
from gateway.tiers.origin_directory.reading import describe as describe_object
from gateway.tiers.origin_directory.records import check_tags, describe, part_of
from gateway.tiers.origin_directory.recovery import recover
from gateway.tiers.origin_directory.writing import Writing
from gateway.tiers.protocol import OpenedObject, RelayAnswer, RelayRequest

Tags = tuple[tuple[str, str], ...]
T = TypeVar("T")


class DirectoryOrigin:
    """An `Origin` over a folder."""

    def __init__(
        self,
        name: str,
        path: Path,
        metrics: Metrics,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        attributes: bool = True,
        exchanges: bool = True,
    ) -> None:
        """`attributes` and `exchanges` False: do without extended attributes and without swapping
        two names at once, as on a file system that has neither."""
        self._backend = Backend(
            name, path, metrics, now_ns=now_ns, attributes=attributes, exchanges=exchanges
        )
        self._writing = Writing(self._backend)

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def relays(self) -> bool:
        return False

    async def start(self) -> None:
        """Remembers which folder this is and mends what a crash left. TierUnavailable where the
        folder is not there."""
        await self._backend.step("Start", self._start)

    async def close(self) -> None:
        await self._backend.close()

    # Reading

    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:  # noqa: ARG002
        """As promised by `Origin`; checksums are always told."""
        return (
            await self._backend.run("HeadObject", partial(describe_object, self._backend, ref))
        )[0]

    async def part_span(self, ref: ObjectRef, number: int) -> tuple[ObjectInfo, PartSpan]:
        info, record = await self._backend.run(
            "HeadObject", partial(describe_object, self._backend, ref)
        )
        span = part_of(record, info.size_bytes, number)
        if span is None:
            raise InvalidPartNumber
        return info, span

    async def open(
        self, ref: ObjectRef, *, wanted: ByteRange | None = None, if_match: str | None = None
    ) -> OpenedObject:
        work = partial(open_to_read, self._backend, ref, wanted, if_match)
        return await self._backend.run("GetObject", work, dispose=Opened.discard)

    # Writing

    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        return await self._writing.put(ref, body, headers, conditions)

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
        return await self._writing.copy(
            source,
            target,
            headers=headers,
            tagging=tagging,
            source_conditions=source_conditions,
            conditions=conditions,
            checksum_algorithm=checksum_algorithm,
        )

    async def delete(self, ref: ObjectRef, conditions: WriteConditions) -> DeleteResult:
        work = partial(delete, key=ref.key, version_id=ref.version_id, conditions=conditions)
        return await self._with("DeleteObject", ref.bucket, work)

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        work = partial(delete_many, objects=objects, where=self.name)
        return await self._with("DeleteObjects", bucket, work)

    # Buckets and listings

    async def list_buckets(self) -> list[BucketEntry]:
        work = partial(buckets.list_buckets, self._backend)
        return await self._backend.run("ListBuckets", work)

    async def head_bucket(self, bucket: str) -> None:
        await self._with("HeadBucket", bucket, Bucket.check)

    async def create_bucket(self, bucket: str) -> None:
        work = partial(buckets.create_bucket, self._backend, bucket)
        await self._backend.run("CreateBucket", work)

    async def delete_bucket(self, bucket: str) -> None:
        work = partial(buckets.delete_bucket, self._backend, bucket)
        await self._backend.run("DeleteBucket", work)

    async def list_objects(
        self, bucket: str, *, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        return await self._list("ListObjectsV2", bucket, prefix, delimiter, after, limit)

    async def list_versions(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        version_id_marker: str,  # noqa: ARG002 - one version a key: the next key is next
        limit: int,
    ) -> VersionPage:
        return version_page(
            await self._list("ListObjectVersions", bucket, prefix, delimiter, key_marker, limit)
        )

    # Multipart

    async def create_upload(
        self,
        ref: ObjectRef,
        headers: Mapping[str, str],
        *,
        checksum_algorithm: str | None,
        checksum_type: ChecksumType | None,
    ) -> str:
        names_of(ref.key)
        begin = partial(
            uploads.begin,
            key=ref.key,
            description=describe(headers),
            checksum_algorithm=checksum_algorithm,
            checksum_type=checksum_type,
            now_ms=self._backend.now_ns() // 1_000_000,
        )
        return await self._with("CreateMultipartUpload", ref.bucket, begin)

    async def put_part(
        self,
        ref: ObjectRef,
        upload_id: str,
        number: int,
        body: Body,
        headers: Mapping[str, str],  # noqa: ARG002 - none means anything to a directory
    ) -> PutResult:
        return await self._writing.put_part(ref, upload_id, number, body)

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
        return await self._writing.copy_part(
            source,
            target,
            upload_id,
            number,
            source_range=source_range,
            source_conditions=source_conditions,
        )

    async def list_parts(
        self, ref: ObjectRef, upload_id: str, *, after_number: int, limit: int
    ) -> PartPage:
        def work(bucket: Bucket) -> PartPage:
            folder, upload = uploads.enter(bucket, ref.key, upload_id)
            with folder:
                return uploads.part_page(folder, upload, after_number=after_number, limit=limit)

        return await self._with("ListParts", ref.bucket, work)

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
        _check_text(prefix, delimiter, key_marker)
        page = partial(
            uploads.upload_page,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=upload_id_marker,
            limit=limit,
        )
        return await self._with("ListMultipartUploads", bucket, page)

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
        size = headers.get("x-amz-mp-object-size")
        return await self._writing.complete(
            ref,
            upload_id,
            parts,
            conditions,
            checksums=checksums,
            checksum_type=checksum_type,
            size_bytes=None if size is None else int(size),
        )

    async def abort_upload(self, ref: ObjectRef, upload_id: str) -> None:
        def work(bucket: Bucket) -> None:
            with self._writing.alone_with(bucket, upload_id):
                uploads.enter(bucket, ref.key, upload_id)[0].close()
                uploads.end(bucket, upload_id)

        await self._with("AbortMultipartUpload", ref.bucket, work)

    # Tags

    async def get_tags(self, ref: ObjectRef) -> Tags:
        record = (
            await self._backend.run(
                "GetObjectTagging", partial(describe_object, self._backend, ref)
            )
        )[1]
        return record.tags if record is not None else ()

    async def put_tags(self, ref: ObjectRef, tags: Sequence[tuple[str, str]]) -> None:
        await self._retag("PutObjectTagging", ref, check_tags(tuple(tags)))

    async def delete_tags(self, ref: ObjectRef) -> None:
        await self._retag("DeleteObjectTagging", ref, ())

    async def get_bucket_tags(self, bucket: str) -> Tags:
        return await self._with("GetBucketTagging", bucket, buckets.get_tags)

    async def put_bucket_tags(self, bucket: str, tags: Sequence[tuple[str, str]]) -> None:
        put = partial(buckets.put_tags, tags=tuple(tags))
        await self._with("PutBucketTagging", bucket, put)

    async def delete_bucket_tags(self, bucket: str) -> None:
        await self._with("DeleteBucketTagging", bucket, partial(buckets.put_tags, tags=()))

    # Everything else

    async def relay(
        self,
        request: RelayRequest,  # noqa: ARG002 - whatever it is
        body: Body | None,  # noqa: ARG002
    ) -> RelayAnswer:
        raise S3NotImplemented("A directory origin does not offer this.")

    def _start(self) -> None:
        self._backend.mount.start()
        recover(self._backend)

    async def _with(self, operation: str, bucket: str, work: Callable[[Bucket], T]) -> T:
        def run() -> T:
            with self._backend.bucket(bucket) as opened:
                return work(opened)

        return await self._backend.run(operation, run)

    async def _list(
        self, operation: str, bucket: str, prefix: str, delimiter: str, after: str, limit: int
    ) -> ListPage:
        _check_text(prefix, delimiter, after)
        page = partial(
            list_page,
            scans=self._backend.scans,
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            limit=limit,
        )
        return await self._with(operation, bucket, page)

    async def _retag(self, operation: str, ref: ObjectRef, tags: Tags) -> None:
        def work() -> None:
            describe_object(self._backend, ref)
            with self._backend.bucket(ref.bucket) as bucket:
                retag(bucket, names_of(ref.key), tags)

        await self._backend.run(operation, work)


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgument("The listing's parameters must be valid UTF-8.") from error
