"""DeleteObject and DeleteObjects.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
"""

import asyncio

from gateway.errors import AccessDenied, InvalidRequest, KeyTooLongError, S3Error
from gateway.model.conditions import WriteConditions
from gateway.model.objects import DeleteResult
from gateway.s3 import render
from gateway.s3.answer import Answer, empty_answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.headers import write_conditions
from gateway.s3.operation import check_key
from gateway.s3.xml import ObjectToDelete, parse_delete


async def delete_object(call: Call) -> Answer:
    """Deletes; a key that is not there is no error."""
    result = await call.service.delete(
        call.operation.bucket,
        call.operation.key,
        version_id=call.operation.version_id,
        conditions=write_conditions(call.head),
    )
    headers = {}
    version_id = result.delete_marker_version_id or result.version_id
    if version_id is not None:
        headers["x-amz-version-id"] = version_id
    if result.delete_marker:
        headers["x-amz-delete-marker"] = "true"
    return empty_answer(204, headers)


async def delete_objects(call: Call) -> Answer:
    """Deletes up to 1,000 objects, each for itself: what is denied or fails is reported in its
    place."""
    document, body = await call.document()
    if body.content_md5 is None and not body.checksums:
        raise InvalidRequest(
            "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
        )
    request = await asyncio.to_thread(parse_delete, document)
    results: dict[int, DeleteResult] = {}
    plain: list[int] = []
    for number, wanted in enumerate(request.objects):
        try:
            check_key(wanted.key)
            call.authorise("DeleteObject", call.operation.bucket, wanted.key)
        except (AccessDenied, KeyTooLongError) as error:
            results[number] = _failed(wanted, error)
            continue
        if wanted.etag is None:
            plain.append(number)
        else:
            results[number] = await _delete_matching(call, wanted, wanted.etag)
    if plain:
        pairs = [(request.objects[at].key, request.objects[at].version_id) for at in plain]
        done = await call.service.delete_many(call.operation.bucket, pairs)
        results.update(zip(plain, done, strict=True))
    ordered = [results[number] for number in sorted(results)]
    return xml_answer(render.deleted(ordered, quiet=request.quiet))


async def _delete_matching(call: Call, wanted: ObjectToDelete, etag: str) -> DeleteResult:
    try:
        return await call.service.delete(
            call.operation.bucket,
            wanted.key,
            version_id=wanted.version_id,
            conditions=WriteConditions(if_match=etag),
        )
    except S3Error as error:
        return _failed(wanted, error)


def _failed(wanted: ObjectToDelete, error: S3Error) -> DeleteResult:
    return DeleteResult(
        key=wanted.key,
        version_id=wanted.version_id,
        error_code=error.code,
        error_message=error.message,
    )
