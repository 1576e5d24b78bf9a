"""Reading from an S3 origin: HeadObject and GetObject.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
"""

import asyncio
from collections.abc import Mapping
from typing import cast

import aiohttp

from gateway.errors import (
    InvalidPartNumber,
    InvalidRange,
    MethodNotAllowed,
    NoSuchBucket,
    NoSuchKey,
    NoSuchVersion,
    PreconditionFailed,
    TierUnavailable,
    VersionChanged,
)
from gateway.model.objects import ObjectInfo, ObjectRef, PartSpan
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_s3.client import address, fields
from gateway.tiers.origin_s3.errors import unreachable
from gateway.tiers.origin_s3.fetch import Fetching
from gateway.tiers.origin_s3.headers import content_range, object_info, quoted
from gateway.tiers.origin_s3.opened import Answer, ClientAnswer, EmptyOpened, S3Opened

_WITH_CHECKSUMS = {"x-amz-checksum-mode": "ENABLED"}
_PARTS_AT_ONCE = 16


class Reading(Fetching):
    """The reading part of `Origin`."""

    async def head(self, ref: ObjectRef, *, checksums: bool = False) -> ObjectInfo:
        headers = await self._head(ref, _WITH_CHECKSUMS if checksums else {})
        return self._whole_info(ref, headers, checksums_known=checksums)

    async def open(
        self,
        ref: ObjectRef,
        *,
        wanted: ByteRange | None = None,
        if_match: str | None = None,
    ) -> S3Opened | EmptyOpened:
        headers = dict(_WITH_CHECKSUMS)
        if if_match is not None:
            headers["if-match"] = quoted(if_match)
        try:
            if wanted is not None and wanted.size_bytes <= 0:
                return await self._open_nothing(ref, wanted.start, headers)
            if wanted is not None:
                headers["range"] = wanted.header()
            try:
                said, answer = await self._get(ref, headers)
            except InvalidRange:
                headers.pop("range", None)
                return await self._open_nothing(ref, wanted.start if wanted else 0, headers)
        except (PreconditionFailed, NoSuchKey, NoSuchVersion, NoSuchBucket, MethodNotAllowed):
            if if_match is None:
                raise
            raise VersionChanged(f"{ref.bucket}/{ref.key} is no longer {if_match}") from None
        try:
            return self._opened(ref, said, answer, wanted, if_match)
        except BaseException:
            answer.close()
            raise

    async def _get(
        self, ref: ObjectRef, headers: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Answer]:
        """The headers of an answer to GetObject, and the answer."""
        fetched = await self._fetch("GetObject", ref, headers)
        if fetched is not None:
            return fetched.head.headers, fetched
        answer = await self._send(
            "GetObject", self._client.get_object(**address(ref)), ref=ref, headers=headers
        )
        response = cast(aiohttp.ClientResponse, answer["Body"].raw_stream)
        self._learn(ref.bucket, response.request_info.headers.get("authorization", ""))
        return fields(answer), ClientAnswer(response)

    async def part_span(self, ref: ObjectRef, number: int) -> tuple[ObjectInfo, PartSpan]:
        try:
            headers = await self._head(ref, {}, part_number=number)
        except (InvalidRange, NoSuchKey, NoSuchVersion) as error:
            # Some origins answer 404 for a part that is not there: the object then still is.
            await self._head(ref, {})
            raise InvalidPartNumber from error
        count = int(headers.get("x-amz-mp-parts-count", "1"))
        if not 1 <= number <= count:
            raise InvalidPartNumber
        found = content_range(headers.get("content-range"))
        if found is not None:
            part, total_bytes = found
            info = self._info(ref, headers, total_bytes, checksums_known=False)
            return info, PartSpan(number, part.start, part.stop, count)
        if "x-amz-mp-parts-count" not in headers:
            info = self._whole_info(ref, headers, checksums_known=False)
            return info, PartSpan(1, 0, info.size_bytes, 1)
        info = await self.head(ref)
        start = await self._size_of_parts(ref, number - 1)
        stop = start + self._length(ref, headers)
        if stop > info.size_bytes:
            raise self._broken(ref, f"part {number} reaches past the object's end")
        return info, PartSpan(number, start, stop, count)

    def _opened(
        self,
        ref: ObjectRef,
        headers: Mapping[str, str],
        answer: Answer,
        wanted: ByteRange | None,
        if_match: str | None,
    ) -> S3Opened | EmptyOpened:
        ranged = answer.status == 206
        found = content_range(headers.get("content-range")) if ranged else None
        if ranged and found is None:
            raise self._broken(ref, "a partial answer does not say which part it is")
        if found is not None and self._length(ref, headers) != found[0].size_bytes:
            raise self._broken(ref, "a partial answer is not as long as its part")
        if found is None:
            size_bytes = self._length(ref, headers)
            found = ByteRange(0, size_bytes), size_bytes
        covered, total_bytes = found
        # A ranged answer may carry the checksum of a part: only a whole one's is the object's.
        whole = covered.size_bytes == total_bytes
        came = any(name.startswith("x-amz-checksum-") for name in headers)
        info = self._info(
            ref, headers, total_bytes, checksums_known=whole and (came or wanted is None)
        )
        if if_match is not None and info.etag != if_match:
            raise VersionChanged(f"{ref.bucket}/{ref.key} is {info.etag}, no longer {if_match}")
        if wanted is None:
            wanted = ByteRange(0, total_bytes)
        if total_bytes == 0:
            answer.close()
            return EmptyOpened(info, 0)
        if wanted.start >= total_bytes:
            raise _past_end(wanted.start, total_bytes)
        wanted = ByteRange(wanted.start, min(wanted.stop, total_bytes))
        if not (covered.start <= wanted.start and wanted.stop <= covered.stop):
            raise self._broken(ref, f"asked for {wanted}, it sends {covered}")
        asked = self._asked("GetObject", ref=ref)

        def fail(error: Exception | str) -> TierUnavailable:
            self._metrics.origin_errors.labels("GetObject").inc()
            return unreachable(asked, error)

        return S3Opened(info, covered, wanted, answer, self._metrics.origin_read_bytes.inc, fail)

    async def _open_nothing(
        self, ref: ObjectRef, start: int, headers: Mapping[str, str]
    ) -> EmptyOpened:
        """Where S3 has no bytes to answer with: an empty object, or a start past the end."""
        said = await self._head(ref, headers)
        info = self._whole_info(ref, said, checksums_known=True)
        wanted_etag = headers.get("if-match")
        if wanted_etag is not None and quoted(info.etag) != wanted_etag:
            raise VersionChanged(f"{ref.bucket}/{ref.key} is no longer {wanted_etag}")
        if info.size_bytes and start >= info.size_bytes:
            raise _past_end(start, info.size_bytes)
        return EmptyOpened(info, min(start, info.size_bytes))

    async def _head(
        self, ref: ObjectRef, headers: Mapping[str, str], *, part_number: int | None = None
    ) -> Mapping[str, str]:
        try:
            if part_number is None:
                fetched = await self._fetch("HeadObject", ref, headers)
                if fetched is not None:
                    return fetched.head.headers
            named = address(ref)
            if part_number is not None:
                named["PartNumber"] = part_number
            answer = await self._send(
                "HeadObject", self._client.head_object(**named), ref=ref, headers=headers
            )
        except (NoSuchKey, NoSuchVersion):
            # A HEAD's 404 does not say of what; the bucket's own HEAD does, once.
            if ref.bucket not in self._seen_buckets:
                await self._send(
                    "HeadBucket", self._client.head_bucket(Bucket=ref.bucket), bucket=ref.bucket
                )
                self._seen_buckets.add(ref.bucket)
            raise
        return fields(answer)

    async def _size_of_parts(self, ref: ObjectRef, count: int) -> int:
        """The bytes of parts 1 to `count`, for origins whose HEAD of a part has no range."""
        turns = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def size_bytes(number: int) -> int:
            async with turns:
                headers = await self._head(ref, {}, part_number=number)
            return self._length(ref, headers)

        return sum(await asyncio.gather(*(size_bytes(n) for n in range(1, count + 1))))

    def _whole_info(
        self, ref: ObjectRef, headers: Mapping[str, str], *, checksums_known: bool
    ) -> ObjectInfo:
        size_bytes = self._length(ref, headers)
        return self._info(ref, headers, size_bytes, checksums_known=checksums_known)

    def _info(
        self, ref: ObjectRef, headers: Mapping[str, str], size_bytes: int, *, checksums_known: bool
    ) -> ObjectInfo:
        info = object_info(headers, size_bytes, checksums_known=checksums_known)
        if info is None:
            raise self._broken(ref, "the answer has no ETag")
        return info

    def _length(self, ref: ObjectRef, headers: Mapping[str, str]) -> int:
        value = headers.get("content-length", "")
        if not (value.isascii() and value.isdigit()):
            raise self._broken(ref, "the answer does not say how long it is")
        return int(value)

    def _broken(self, ref: ObjectRef, what: str) -> TierUnavailable:
        return unreachable(self._asked("GetObject", ref=ref), what)


def _past_end(start: int, size_bytes: int) -> InvalidRange:
    return InvalidRange(
        fields={"RangeRequested": f"bytes={start}-", "ActualObjectSize": str(size_bytes)},
        headers={"Content-Range": f"bytes */{size_bytes}"},
    )
