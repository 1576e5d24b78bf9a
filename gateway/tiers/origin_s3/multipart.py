"""Multipart uploads at an S3 origin.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from gateway.model.body import Body
from gateway.model.conditions import Conditions, WriteConditions, unquote_etag
from gateway.model.objects import (
    ChecksumType,
    CompletedPart,
    ObjectRef,
    PartEntry,
    PartPage,
    PutResult,
    UploadEntry,
    UploadPage,
)
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_s3.client import address, fields
from gateway.tiers.origin_s3.headers import (
    FIELD_BY_ALGORITHM,
    checksum_headers,
    copy_source_conditions,
    datetime_ms,
    outgoing,
    put_result,
    quoted,
    write_conditions,
)
from gateway.tiers.origin_s3.writing import Writing, copy_source


class Multipart(Writing):
    """The multipart part of `Origin`."""

    async def create_upload(
        self,
        ref: ObjectRef,
        headers: Mapping[str, str],
        *,
        checksum_algorithm: str | None,
        checksum_type: ChecksumType | None,
    ) -> str:
        sent = outgoing(headers)
        if checksum_algorithm is not None:
            sent["x-amz-checksum-algorithm"] = checksum_algorithm
        if checksum_type is not None:
            sent["x-amz-checksum-type"] = checksum_type
        call = self._client.create_multipart_upload(**_target(ref))
        answer = await self._send("CreateMultipartUpload", call, ref=ref, headers=sent)
        return answer["UploadId"]

    async def put_part(
        self, ref: ObjectRef, upload_id: str, number: int, body: Body, headers: Mapping[str, str]
    ) -> PutResult:
        parameters = _target(ref) | {"UploadId": upload_id, "PartNumber": number}
        answer = await self._upload(
            "UploadPart", self._client.upload_part, ref, body, outgoing(headers), parameters
        )
        return put_result(fields(answer))

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
        sent = copy_source_conditions(source_conditions)
        if source_range is not None:
            sent["x-amz-copy-source-range"] = source_range.header()
        call = self._client.upload_part_copy(
            **_target(target),
            UploadId=upload_id,
            PartNumber=number,
            CopySource=copy_source(source),
        )
        answer = await self._send("UploadPartCopy", call, ref=target, headers=sent)
        return put_result(fields(answer), answer["CopyPartResult"])

    async def list_parts(
        self, ref: ObjectRef, upload_id: str, *, after_number: int, limit: int
    ) -> PartPage:
        call = self._client.list_parts(
            **_target(ref), UploadId=upload_id, PartNumberMarker=after_number, MaxParts=limit
        )
        answer: Any = await self._send("ListParts", call, ref=ref)
        parts = tuple(
            PartEntry(
                number=part["PartNumber"],
                etag=unquote_etag(part["ETag"]),
                size_bytes=part["Size"],
                last_modified_ms=datetime_ms(part["LastModified"]),
                checksums={
                    name: part[field]
                    for name, field in FIELD_BY_ALGORITHM.items()
                    if part.get(field)
                },
            )
            for part in answer.get("Parts", [])
        )
        return PartPage(
            parts=parts,
            next_number=parts[-1].number if answer.get("IsTruncated") and parts else None,
            checksum_algorithm=answer.get("ChecksumAlgorithm"),
            checksum_type=answer.get("ChecksumType"),
            storage_class=answer.get("StorageClass", "STANDARD"),
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
        asked: dict[str, Any] = {"Bucket": bucket, "MaxUploads": limit, "EncodingType": "url"}
        asked |= {
            name: value
            for name, value in (
                ("Prefix", prefix),
                ("Delimiter", delimiter),
                ("KeyMarker", key_marker),
                ("UploadIdMarker", upload_id_marker),
            )
            if value
        }
        call = self._client.list_multipart_uploads(**asked)
        answer: Any = await self._send("ListMultipartUploads", call, bucket=bucket)
        encoded = answer.get("EncodingType") == "url"

        def plain(key: str) -> str:
            return unquote(key) if encoded else key

        uploads = [
            UploadEntry(
                key=plain(upload["Key"]),
                upload_id=upload["UploadId"],
                initiated_ms=datetime_ms(upload["Initiated"]),
                storage_class=upload.get("StorageClass", "STANDARD"),
            )
            for upload in answer.get("Uploads", [])
        ]
        more = answer.get("IsTruncated", False)
        return UploadPage(
            # By key and then by time, as S3 orders them and others do not always.
            uploads=tuple(sorted(uploads, key=lambda row: (row.key.encode(), row.initiated_ms))),
            common_prefixes=tuple(
                plain(common["Prefix"]) for common in answer.get("CommonPrefixes", [])
            ),
            next_key_marker=plain(answer.get("NextKeyMarker", "")) if more else None,
            next_upload_id_marker=answer.get("NextUploadIdMarker", "") if more else None,
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
        sent = outgoing(headers) | write_conditions(conditions) | checksum_headers(checksums)
        if checksum_type is not None:
            sent["x-amz-checksum-type"] = checksum_type
        named: Any = [
            {"PartNumber": part.number, "ETag": quoted(part.etag)}
            | {FIELD_BY_ALGORITHM[name]: value for name, value in part.checksums.items()}
            for part in parts
        ]
        call = self._client.complete_multipart_upload(
            **_target(ref), UploadId=upload_id, MultipartUpload={"Parts": named}
        )
        answer: Any = await self._send("CompleteMultipartUpload", call, ref=ref, headers=sent)
        return put_result(fields(answer), answer)

    async def abort_upload(self, ref: ObjectRef, upload_id: str) -> None:
        call = self._client.abort_multipart_upload(**_target(ref), UploadId=upload_id)
        await self._send("AbortMultipartUpload", call, ref=ref)


def _target(ref: ObjectRef) -> dict[str, Any]:
    return address(ref.current)
