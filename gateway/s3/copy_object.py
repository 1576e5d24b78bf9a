"""CopyObject and UploadPartCopy.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html
https://docs.aws.amazon.com/AmazonS3/latest/API/API_UploadPartCopy.html
"""

import time

from msgspec.structs import replace

from gateway.errors import InvalidArgument, InvalidRequest
from gateway.model.conditions import Conditions, check_copy_source
from gateway.model.objects import PutResult
from gateway.s3 import render
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.copy_source import CopySource, parse_copy_source, parse_source_range
from gateway.s3.headers import (
    check_directory,
    checksum_algorithm,
    object_headers,
    put_headers,
    read_conditions,
    write_conditions,
)
from gateway.s3.operation import part_number

_SOURCE_PREFIX = "x-amz-copy-source-"


async def copy_object(call: Call) -> Answer:
    """Copies one object version to a new object, here or to another bucket."""
    source = source_of(call)
    given = object_headers(call.head)
    if not call.relays:
        check_directory(given)
    replaces = _directive(call, "x-amz-metadata-directive")
    tagging = given.pop("x-amz-tagging", "")
    new_tagging = tagging if _directive(call, "x-amz-tagging-directive") else None
    changes = {name: value for name, value in given.items() if not _is_metadata(name)}
    same = (source.bucket, source.key) == (call.operation.bucket, call.operation.key)
    if same and not (replaces or changes or source.version_id):
        raise InvalidRequest(
            "This copy request is illegal because it is trying to copy an object to itself "
            "without changing the object's metadata, storage class, website redirect location "
            "or encryption attributes."
        )
    conditions = read_conditions(call.head, _SOURCE_PREFIX)
    headers = given if replaces else None
    if changes and not replaces:
        headers, conditions = await _with_changes(call, source, changes, conditions)
    result, source_version_id = await call.service.copy(
        source.bucket,
        source.key,
        source.version_id,
        call.operation.bucket,
        call.operation.key,
        headers=headers,
        tagging=new_tagging,
        source_conditions=conditions,
        conditions=write_conditions(call.head),
        checksum_algorithm=checksum_algorithm(call.head),
    )
    return _answer("CopyObjectResult", result, source_version_id)


async def upload_part_copy(call: Call) -> Answer:
    """Makes a part of an upload from (a range of) an object."""
    source = source_of(call)
    source_range = parse_source_range(call.head.header("x-amz-copy-source-range"))
    result = await call.service.copy_part(
        source.bucket,
        source.key,
        source.version_id,
        call.operation.bucket,
        call.operation.key,
        call.operation.upload_id,
        part_number(call.operation.query["partNumber"]),
        source_range=source_range,
        source_conditions=read_conditions(call.head, _SOURCE_PREFIX),
    )
    return _answer("CopyPartResult", result, source.version_id)


def source_of(call: Call) -> CopySource:
    """The source of a copy, which the caller may read. AccessDenied, InvalidArgument."""
    source = parse_copy_source(call.head.header("x-amz-copy-source") or "")
    call.authorise("GetObject", source.bucket, source.key)
    return source


def _directive(call: Call, name: str) -> bool:
    """Whether a directive says REPLACE. InvalidArgument."""
    value = call.head.header(name)
    if value not in (None, "COPY", "REPLACE"):
        raise InvalidArgument(
            "Unknown directive.", fields={"ArgumentName": name, "ArgumentValue": value or ""}
        )
    return value == "REPLACE"


def _is_metadata(name: str) -> bool:
    """Whether the metadata directive governs a header; the others are a copy's own in any case."""
    return not name.startswith("x-amz-") or name.startswith("x-amz-meta-")


async def _with_changes(
    call: Call, source: CopySource, changes: dict[str, str], conditions: Conditions
) -> tuple[dict[str, str], Conditions]:
    """The source's metadata with `changes`, and the condition that it is still that source."""
    read = await call.service.head(source.bucket, source.key, version_id=source.version_id)
    await read.close()
    check_copy_source(conditions, read.info)
    kept = {name: value for name, value in read.info.headers.items() if _is_metadata(name)}
    return {**kept, **changes}, replace(conditions, if_match=(read.info.etag,))


def _answer(name: str, result: PutResult, source_version_id: str | None) -> Answer:
    headers = put_headers(result)
    del headers["etag"]
    if source_version_id is not None:
        headers["x-amz-copy-source-version-id"] = source_version_id
    modified_ms = result.last_modified_ms
    if modified_ms is None:
        modified_ms = int(time.time()) * 1000
    return xml_answer(render.copied(name, result, last_modified_ms=modified_ms), headers=headers)
