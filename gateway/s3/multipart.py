"""Multipart uploads but for UploadPartCopy.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
"""

import asyncio
import re
from itertools import pairwise
from urllib.parse import quote

from gateway.errors import InvalidArgument, InvalidPartOrder, InvalidRequest
from gateway.model.objects import PartPage, UploadPage
from gateway.s3 import render, render_listing
from gateway.s3.answer import Answer, empty_answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.headers import (
    announced_checksums,
    check_directory,
    checksum_algorithm,
    checksum_type,
    object_headers,
    put_headers,
    write_conditions,
)
from gateway.s3.listing import listing_request
from gateway.s3.operation import part_number
from gateway.s3.xml import parse_complete

_OBJECT_SIZE = "x-amz-mp-object-size"
_SIZE = re.compile(r"\d{1,18}", re.ASCII)


async def create_multipart_upload(call: Call) -> Answer:
    headers = object_headers(call.head)
    if not call.relays:
        check_directory(headers)
    algorithm = checksum_algorithm(call.head)
    kind = checksum_type(call.head)
    if kind is not None and algorithm is None:
        raise InvalidRequest(
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm "
            "header."
        )
    upload_id = await call.service.create_upload(
        call.operation.bucket,
        call.operation.key,
        headers,
        checksum_algorithm=algorithm,
        checksum_type=kind,
    )
    said = {}
    if algorithm is not None:
        said["x-amz-checksum-algorithm"] = algorithm
    if kind is not None:
        said["x-amz-checksum-type"] = kind
    body = render.upload_created(call.operation.bucket, call.operation.key, upload_id)
    return xml_answer(body, headers=said)


async def upload_part(call: Call) -> Answer:
    number = part_number(call.operation.query["partNumber"])
    body = await call.body()
    result = await call.service.put_part(
        call.operation.bucket, call.operation.key, call.operation.upload_id, number, body, {}
    )
    return empty_answer(headers=put_headers(result))


async def complete_multipart_upload(call: Call) -> Answer:
    conditions = write_conditions(call.head)
    checksums = announced_checksums(call.head)
    kind = checksum_type(call.head)
    size = call.head.header(_OBJECT_SIZE)
    if size is not None and _SIZE.fullmatch(size) is None:
        raise InvalidRequest(f"Value for {_OBJECT_SIZE} header is invalid.")
    document, _ = await call.document(checksums_describe_body=False)
    parts = await asyncio.to_thread(parse_complete, document)
    numbers = [part.number for part in parts]
    if any(one >= following for one, following in pairwise(numbers)):
        raise InvalidPartOrder
    result = await call.service.complete_upload(
        call.operation.bucket,
        call.operation.key,
        call.operation.upload_id,
        parts,
        conditions,
        checksums=checksums,
        checksum_type=kind,
        headers={} if size is None else {_OBJECT_SIZE: size},
    )
    headers = put_headers(result)
    del headers["etag"]
    body = render.upload_completed(_place(call), call.operation.bucket, call.operation.key, result)
    return xml_answer(body, headers=headers)


async def abort_multipart_upload(call: Call) -> Answer:
    await call.service.abort_upload(
        call.operation.bucket, call.operation.key, call.operation.upload_id
    )
    return empty_answer(204)


async def list_parts(call: Call) -> Answer:
    asked = listing_request(call, "max-parts")
    after_number = call.operation.integer("part-number-marker", 0, 0, 2_147_483_647)
    page = await call.service.list_parts(
        asked.bucket,
        call.operation.key,
        call.operation.upload_id,
        after_number=after_number,
        limit=max(1, asked.limit),
    )
    if not asked.limit:
        page = PartPage(storage_class=page.storage_class)
    return xml_answer(
        render_listing.parts(
            asked,
            page,
            key=call.operation.key,
            upload_id=call.operation.upload_id,
            after_number=after_number,
        )
    )


async def list_multipart_uploads(call: Call) -> Answer:
    query = call.operation.query
    asked = listing_request(call, "max-uploads")
    key_marker = query.get("key-marker", "")
    # Without a key marker the upload id's is ignored, as AWS does it.
    upload_id_marker = query.get("upload-id-marker", "") if key_marker else ""
    if not asked.limit:
        raise InvalidArgument(
            "Argument max-uploads must be an integer between 1 and 2147483647",
            fields={"ArgumentName": "max-uploads", "ArgumentValue": "0"},
        )
    page: UploadPage = await call.service.list_uploads(
        asked.bucket,
        prefix=asked.prefix,
        delimiter=asked.delimiter,
        key_marker=key_marker,
        upload_id_marker=upload_id_marker,
        limit=asked.limit,
    )
    return xml_answer(
        render_listing.uploads(
            asked, page, key_marker=key_marker, upload_id_marker=upload_id_marker
        )
    )


def _place(call: Call) -> str:
    """The new object's URL, as the client addressed it."""
    scheme = "https" if call.secure else "http"
    return f"{scheme}://{call.head.header('host') or ''}{quote(call.head.path, safe='/%')}"
