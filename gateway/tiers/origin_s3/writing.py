"""Writing to an S3 origin: whole objects, copies, deletes and tags."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import InternalError, NoSuchKey, NoSuchVersion, S3Error
from gateway.model.body import Body
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import DeleteResult, ObjectRef, PutResult
from gateway.tiers.origin_s3.client import S3Connection, address, fields
from gateway.tiers.origin_s3.headers import (
    copy_source_conditions,
    outgoing,
    put_result,
    write_conditions,
)
from gateway.tiers.origin_s3.upload import UploadStream, payload

Tags = tuple[tuple[str, str], ...]


class Writing(S3Connection):
    """The part of `Origin` that changes objects."""

    async def put(
        self,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        conditions: WriteConditions,
    ) -> PutResult:
        sent = outgoing(headers) | write_conditions(conditions)
        answer = await self._upload(
            "PutObject", self._client.put_object, ref, body, sent, address(ref)
        )
        return put_result(fields(answer))

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
        sent = _copy_headers(headers, tagging, checksum_algorithm)
        sent |= copy_source_conditions(source_conditions) | write_conditions(conditions)
        call = self._client.copy_object(**address(target), CopySource=copy_source(source))
        answer = await self._send("CopyObject", call, ref=target, headers=sent)
        return put_result(fields(answer), answer["CopyObjectResult"])

    async def delete(self, ref: ObjectRef, conditions: WriteConditions) -> DeleteResult:
        call = self._client.delete_object(**address(ref))
        try:
            answer = await self._send(
                "DeleteObject", call, ref=ref, headers=write_conditions(conditions)
            )
        except (NoSuchKey, NoSuchVersion):
            # S3 answers 204; some origins say that there was nothing.
            if conditions:
                raise
            return DeleteResult(key=ref.key, version_id=ref.version_id)
        said = fields(answer)
        marker = said.get("x-amz-delete-marker") == "true"
        version_id = said.get("x-amz-version-id")
        return DeleteResult(
            key=ref.key,
            version_id=ref.version_id,
            delete_marker=marker,
            delete_marker_version_id=version_id if marker else None,
        )

    async def delete_many(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> list[DeleteResult]:
        together = [wanted for wanted in objects if _fits_xml(wanted[0])]
        results = await self._delete_together(bucket, together) if together else {}
        for wanted in objects:
            if not _fits_xml(wanted[0]):
                results[wanted] = await self._delete_one(bucket, *wanted)
        return [results[wanted] for wanted in objects]

    async def get_tags(self, ref: ObjectRef) -> Tags:
        call = self._client.get_object_tagging(**address(ref))
        answer = await self._send("GetObjectTagging", call, ref=ref)
        return tuple((tag["Key"], tag["Value"]) for tag in answer["TagSet"])

    async def put_tags(self, ref: ObjectRef, tags: Sequence[tuple[str, str]]) -> None:
        tagging: Any = {"TagSet": [{"Key": key, "Value": value} for key, value in tags]}
        call = self._client.put_object_tagging(**address(ref), Tagging=tagging)
        await self._send("PutObjectTagging", call, ref=ref)

    async def delete_tags(self, ref: ObjectRef) -> None:
        call = self._client.delete_object_tagging(**address(ref))
        await self._send("DeleteObjectTagging", call, ref=ref)

    async def _upload(
        self,
        operation: str,
        call: Any,
        ref: ObjectRef,
        body: Body,
        headers: Mapping[str, str],
        parameters: Mapping[str, Any],
    ) -> Any:
        encoding = headers.get("content-encoding")
        upload = await payload(body, encoding, self._config.read_timeout_seconds)
        return await self._send(
            operation,
            call(**parameters, Body=upload.data),
            ref=ref,
            headers={**headers, **upload.headers},
            stream=upload.data if isinstance(upload.data, UploadStream) else None,
        )

    async def _delete_together(
        self, bucket: str, objects: Sequence[tuple[str, str | None]]
    ) -> dict[tuple[str, str | None], DeleteResult]:
        named: Any = [
            {"Key": key} if version_id is None else {"Key": key, "VersionId": version_id}
            for key, version_id in objects
        ]
        call = self._client.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": False})
        answer = await self._send("DeleteObjects", call, bucket=bucket)
        told: dict[tuple[str, str | None], DeleteResult] = {}
        for done in answer.get("Deleted", []):
            key, version_id = done["Key"], done.get("VersionId")
            told[key, version_id] = told[key, None] = DeleteResult(
                key=key,
                version_id=version_id,
                delete_marker=done.get("DeleteMarker", False),
                delete_marker_version_id=done.get("DeleteMarkerVersionId"),
            )
        for failed in answer.get("Errors", []):
            key, version_id = failed.get("Key", ""), failed.get("VersionId")
            told[key, version_id] = told[key, None] = DeleteResult(
                key=key,
                version_id=version_id,
                error_code=failed.get("Code", InternalError.code),
                error_message=failed.get("Message", ""),
            )
        return {wanted: told.get(wanted) or _untold(*wanted) for wanted in objects}

    async def _delete_one(self, bucket: str, key: str, version_id: str | None) -> DeleteResult:
        try:
            return await self.delete(
                ObjectRef(self._name, bucket, key, version_id), WriteConditions()
            )
        except S3Error as error:
            return DeleteResult(
                key=key,
                version_id=version_id,
                error_code=error.code,
                error_message=error.message,
            )


def _untold(key: str, version_id: str | None) -> DeleteResult:
    return DeleteResult(
        key=key,
        version_id=version_id,
        error_code=InternalError.code,
        error_message="The origin did not say what became of this key.",
    )


def copy_source(ref: ObjectRef) -> Any:
    """The source of a copy as botocore takes it, which also encodes it."""
    return address(ref)


def _copy_headers(
    headers: Mapping[str, str] | None, tagging: str | None, checksum_algorithm: str | None
) -> dict[str, str]:
    sent = {"x-amz-metadata-directive": "COPY" if headers is None else "REPLACE"}
    sent |= outgoing(headers or {})
    # Tags have a directive of their own: what is not said about them keeps the source's.
    sent.pop("x-amz-tagging", None)
    if tagging is not None:
        sent |= {"x-amz-tagging-directive": "REPLACE", "x-amz-tagging": tagging}
    if checksum_algorithm is not None:
        sent["x-amz-checksum-algorithm"] = checksum_algorithm
    return sent


def _fits_xml(key: str) -> bool:
    """Whether a key survives XML 1.0: no control characters, and nothing a parser folds.

    A key that does not is deleted by itself, where it travels in the URL.
    """
    return key == key.strip() and all(
        character >= " " and character not in "\x7f\ufffe\uffff" for character in key
    )
