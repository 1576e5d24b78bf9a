"""Writes of the directory origin: how bodies become drafts and drafts become objects and parts.

A body is taken in by blocks; while one is hashed and written in a thread, the next comes from the
client. A small object is one trip to a thread for all there is to do.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from gateway.errors import (
    InvalidArgument,
    InvalidRequest,
    OperationAborted,
    ServiceUnavailable,
    VersionChanged,
)
from gateway.model.body import Body
from gateway.model.checksums import hasher
from gateway.model.conditions import Conditions, WriteConditions, check_copy_source
from gateway.model.objects import (
    ChecksumType,
    CompletedPart,
    ObjectInfo,
    ObjectRef,
    PutResult,
)
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_directory import uploads
from gateway.tiers.origin_directory.assembly import PART_LIMIT, assemble
from gateway.tiers.origin_directory.backend import Backend
from gateway.tiers.origin_directory.commit import check_conditions, description_of, place
from gateway.tiers.origin_directory.drafts import Draft
from gateway.tiers.origin_directory.objects import Bucket
from gateway.tiers.origin_directory.paths import names_of
from gateway.tiers.origin_directory.reading import find_to_read
from gateway.tiers.origin_directory.records import (
    Description,
    Identity,
    Record,
    describe,
    info_of,
    modified_ms,
    parse_tagging,
    runs_of,
)

# Hashing and writing this much takes about as long as a trip to a thread is worth.
_BLOCK_BYTES = 1024**2
_DEFAULT_ALGORITHM = "CRC64NVME"
_COPY_ATTEMPTS = 3


class Source:
    """An object that is copied from: its open file and what it is."""

    def __init__(
        self, fd: int, status: os.stat_result, record: Record | None, info: ObjectInfo
    ) -> None:
        self.fd = fd
        self.status = status
        self.record = record
        self.info = info

    def check(self) -> None:
        """VersionChanged where the file was edited since it was opened."""
        if Identity.of(os.fstat(self.fd)) != Identity.of(self.status):
            raise VersionChanged("The source was changed while it was copied.")


class Writing:
    """The writes of one origin."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        """As `Origin.put`."""
        description = describe(headers)
        names = names_of(ref.key)

        def begin(bucket: Bucket) -> None:
            # What cannot end well should not take a large body in; the answer comes at the end.
            check_conditions(bucket, names, conditions)

        def finish(bucket: Bucket, draft: Draft) -> PutResult:
            sums = dict(body.checksums) or draft.checksums
            status, record = draft.seal(description, etag=draft.etag, sums=sums)
            place(bucket, names, draft, conditions)
            return self._result(ref.key, status, record)

        algorithm = None if _brings_checksums(body) else _DEFAULT_ALGORITHM
        self._backend.metrics.origin_requests.labels(operation="PutObject").inc()
        return await self._take_in("PutObject", ref.bucket, body, algorithm, begin, finish)

    async def put_part(self, ref: ObjectRef, upload_id: str, number: int, body: Body) -> PutResult:
        """As `Origin.put_part`."""
        if not 1 <= number <= PART_LIMIT:
            raise InvalidArgument(
                f"Part number must be an integer between 1 and {PART_LIMIT}, inclusive",
                fields={"ArgumentName": "partNumber", "ArgumentValue": str(number)},
            )
        algorithm = await self._backend.run("UploadPart", lambda: self._algorithm(ref, upload_id))

        def finish(bucket: Bucket, draft: Draft) -> PutResult:
            given = dict(body.checksums)
            sums = draft.checksums | given
            uploads.keep_part(bucket, ref.key, upload_id, number, draft, sums)
            return PutResult(etag=draft.etag, checksums=given or sums)

        brought = algorithm in (*body.announced_checksums, *body.trailing_algorithms)
        return await self._take_in(
            "UploadPart", ref.bucket, body, None if brought else algorithm, _nothing, finish
        )

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
        """As `Origin.copy`."""
        if checksum_algorithm is not None:
            hasher(checksum_algorithm)
        described = describe(headers) if headers is not None else None
        tags = parse_tagging(tagging) if tagging is not None else None
        names = names_of(target.key)
        replaces = described is not None or tags is not None or checksum_algorithm is not None
        if source.current == target.current and not replaces:
            raise InvalidRequest(
                "This copy request is illegal because it is trying to copy an object to itself "
                "without changing the object's metadata, storage class, website redirect location "
                "or encryption attributes."
            )

        def work() -> PutResult:
            with (
                self._backend.bucket(target.bucket) as bucket,
                self._source(source, source_conditions) as found,
            ):
                check_conditions(bucket, names, conditions)
                taken = description_of(found.record, found.info.headers["content-type"])
                description = Description(
                    headers=described.headers if described is not None else taken.headers,
                    tags=tags if tags is not None else taken.tags,
                )
                algorithm = _algorithm_of_copy(found, checksum_algorithm)
                with self._draft(bucket, algorithm) as draft:
                    etag, sums = _copy_bytes(found, draft, algorithm)
                    found.check()
                    with bucket.locks.share(bucket.name):
                        status, record = draft.seal(description, etag=etag, sums=sums)
                        place(bucket, names, draft, conditions)
                return self._result(target.key, status, record)

        return await self._backend.run("CopyObject", partial(_retried, work))

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
        """As `Origin.copy_part`."""

        def work() -> PutResult:
            algorithm = self._algorithm(target, upload_id)
            with (
                self._backend.bucket(target.bucket) as bucket,
                self._source(source, source_conditions) as found,
                self._draft(bucket, algorithm) as draft,
            ):
                wanted = source_range or ByteRange(0, found.info.size_bytes)
                if wanted.stop > found.info.size_bytes:
                    raise InvalidArgument(
                        "Range specified is not valid for source object of size: "
                        f"{found.info.size_bytes}"
                    )
                draft.copy(found.fd, wanted.start, wanted.stop)
                found.check()
                sums = draft.checksums
                with bucket.locks.share(bucket.name):
                    status = uploads.keep_part(bucket, target.key, upload_id, number, draft, sums)
                return PutResult(
                    etag=draft.etag,
                    last_modified_ms=modified_ms(status),
                    checksums=sums,
                )

        return await self._backend.run("UploadPartCopy", partial(_retried, work))

    async def complete(
        self,
        ref: ObjectRef,
        upload_id: str,
        parts: Sequence[CompletedPart],
        conditions: WriteConditions,
        *,
        checksums: Mapping[str, str],
        checksum_type: ChecksumType | None,
        size_bytes: int | None,
    ) -> PutResult:
        """As `Origin.complete_upload`; `size_bytes` is what the whole must have, if that is known
        to the client."""
        names = names_of(ref.key)

        def work() -> PutResult:
            with (
                self._backend.bucket(ref.bucket) as bucket,
                self.alone_with(bucket, upload_id),
            ):
                folder, upload = uploads.enter(bucket, ref.key, upload_id)
                with folder, self._draft(bucket, None) as draft:
                    assembly = assemble(
                        upload,
                        uploads.parts_of(folder),
                        parts,
                        expected=checksums,
                        expected_type=checksum_type,
                        expected_size_bytes=size_bytes,
                    )
                    check_conditions(bucket, names, conditions)
                    uploads.join(folder, assembly, draft)
                    with bucket.locks.share(bucket.name):
                        status, record = draft.seal(
                            upload.description,
                            etag=assembly.etag,
                            sums=assembly.checksums,
                            checksum_type=assembly.checksum_type,
                            parts=runs_of(list(assembly.sizes_bytes)),
                        )
                        place(bucket, names, draft, conditions)
                uploads.end(bucket, upload_id)
                return self._result(ref.key, status, record)

        return await self._backend.run("CompleteMultipartUpload", work)

    @contextmanager
    def alone_with(self, bucket: Bucket, upload_id: str) -> Iterator[None]:
        """Keeps two from ending one upload at once. OperationAborted for the second."""
        with bucket.locks.try_hold((bucket.name, upload_id)) as mine:
            if not mine:
                raise OperationAborted
            yield

    async def _take_in(
        self,
        operation: str,
        bucket_name: str,
        body: Body,
        algorithm: str | None,
        begin: Callable[[Bucket], None],
        finish: Callable[[Bucket, Draft], PutResult],
    ) -> PutResult:
        """Writes the body to a draft and hands it to `finish`; the draft is gone in any case."""
        draft = self._backend.draft(algorithm)

        def write(blocks: Sequence[bytes]) -> None:
            if not draft.has_begun:
                with self._backend.bucket(bucket_name) as bucket:
                    begin(bucket)
                    with bucket.locks.share(bucket.name):
                        draft.begin(bucket.folder)
            draft.write(blocks)

        def end(blocks: Sequence[bytes]) -> PutResult:
            try:
                write(blocks)
                with (
                    self._backend.bucket(bucket_name) as bucket,
                    bucket.locks.share(bucket_name),
                ):
                    return finish(bucket, draft)
            finally:
                draft.discard()

        step = partial(self._backend.step, operation)
        writing: asyncio.Task[None] | None = None
        blocks: list[bytes] = []
        size_bytes = 0
        try:
            while block := await body.read(_BLOCK_BYTES - size_bytes):
                blocks.append(block)
                size_bytes += len(block)
                if size_bytes >= _BLOCK_BYTES:
                    if writing is not None:
                        await writing
                    writing = asyncio.create_task(step(partial(write, blocks)))
                    blocks, size_bytes = [], 0
            if writing is not None:
                await writing
            return await self._backend.step(operation, partial(end, blocks))
        except BaseException:
            if writing is not None:
                writing.cancel()
            # Waits for a write that is running in its thread, whoever else gives up meanwhile.
            await asyncio.shield(self._backend.step(operation, draft.discard))
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)
            raise

    def _algorithm(self, ref: ObjectRef, upload_id: str) -> str:
        with self._backend.bucket(ref.bucket) as bucket:
            folder, upload = uploads.enter(bucket, ref.key, upload_id)
            folder.close()
            return upload.checksum_algorithm

    @contextmanager
    def _draft(self, bucket: Bucket, algorithm: str | None) -> Iterator[Draft]:
        draft = self._backend.draft(algorithm)
        try:
            with bucket.locks.share(bucket.name):
                draft.begin(bucket.folder)
            yield draft
        finally:
            draft.discard()

    @contextmanager
    def _source(self, ref: ObjectRef, conditions: Conditions) -> Iterator[Source]:
        fd, status, record = find_to_read(self._backend, ref)
        try:
            info = info_of(ref.key, status, record, self._backend.now_ns())
            check_copy_source(conditions, info)
            yield Source(fd, status, record, info)
        finally:
            os.close(fd)

    def _result(self, key: str, status: os.stat_result, record: Record) -> PutResult:
        info = info_of(key, status, record, self._backend.now_ns())
        return PutResult(
            etag=info.etag,
            last_modified_ms=info.last_modified_ms,
            checksums=info.checksums,
            checksum_type=info.checksum_type,
            info=info,
        )


def _nothing(_: Bucket) -> None:
    """What a part has to check before its bytes come in."""


def _brings_checksums(body: Body) -> bool:
    return bool(body.announced_checksums or body.trailing_algorithms)


def _algorithm_of_copy(source: Source, asked: str | None) -> str | None:
    """What to compute while copying, or None where the source's own hashes can be taken over: a
    copy is never multipart, so its ETag is the MD5 of all bytes."""
    record = source.record
    if record is None or record.etag is None or "-" in record.etag:
        return asked or _DEFAULT_ALGORITHM
    if record.checksum_type != "FULL_OBJECT" or (asked and asked not in record.checksums):
        return asked or _DEFAULT_ALGORITHM
    return None


def _copy_bytes(source: Source, draft: Draft, algorithm: str | None) -> tuple[str, dict[str, str]]:
    """Copies all bytes; the copy's ETag and checksums."""
    if algorithm is None and source.record is not None:
        draft.copy_unread(source.fd, 0, source.status.st_size)
        return source.info.etag, source.record.checksums
    draft.copy(source.fd, 0, source.status.st_size)
    return draft.etag, draft.checksums


def _retried(work: Callable[[], PutResult]) -> PutResult:
    """Copies again where the source changed meanwhile."""
    for _ in range(_COPY_ATTEMPTS):
        try:
            return work()
        except VersionChanged:
            continue
    raise ServiceUnavailable("The source of the copy is being changed all the time.")
