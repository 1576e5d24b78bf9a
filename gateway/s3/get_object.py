"""GetObject, HeadObject and GetObjectAttributes.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
"""

from typing import TypedDict

from gateway.errors import InvalidArgument, InvalidRequest
from gateway.model.conditions import UNCONDITIONAL, Conditions
from gateway.model.ranges import RangeSpec, parse_range
from gateway.s3 import render
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.entry import Request
from gateway.s3.headers import (
    CONDITIONS,
    http_date,
    info_headers,
    read_conditions,
    response_overrides,
)
from gateway.s3.operation import part_number
from gateway.store.held import HeldReads
from gateway.store.reading import ReadAnswer

_ATTRIBUTES = frozenset(("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"))


async def get_object(call: Call) -> Answer:
    """One version's bytes, from its nearest tier."""
    asked, overrides = _asked(call)
    bucket, key = call.operation.bucket, call.operation.key
    read = await call.service.get(bucket, key, **asked, files=call.takes_files)
    answer = _answer(read, overrides, checksums=asked["checksums"])
    answer.stream = read
    answer.served = read.served
    return answer


async def head_object(call: Call) -> Answer:
    """What GetObject would answer, without the bytes."""
    asked, overrides = _asked(call)
    read = await call.service.head(call.operation.bucket, call.operation.key, **asked)
    await read.close()
    return _answer(read, overrides, checksums=asked["checksums"])


def answer_held(
    request: Request, held: HeldReads, *, files: bool
) -> tuple[Answer, ReadAnswer] | None:
    """What `get_object` or `head_object` would answer, where this node can begin to without
    waiting. `files`: regions of files may be among the pieces.

    None where it takes more than this disk; raises what a wrong request does.
    """
    asked, overrides = _asked(request)
    key = request.operation.key
    if request.operation.name == "HeadObject":
        read = held.head(request.bucket, key, **asked)
    else:
        read = held.get(request.bucket, key, **asked, files=files)
    if read is None:
        return None
    answer = _answer(read, overrides, checksums=asked["checksums"])
    if request.operation.name == "GetObject":
        answer.stream = read
        answer.served = read.served
    return answer, read


async def get_object_attributes(call: Call) -> Answer:
    """GetObjectAttributes of a directory origin: the part sizes of an upload are not kept."""
    asked = call.head.header("x-amz-object-attributes") or ""
    wanted = frozenset(name.strip() for name in asked.split(",") if name.strip())
    if not wanted:
        raise InvalidRequest("Missing required header for this request: x-amz-object-attributes")
    if not wanted <= _ATTRIBUTES:
        raise InvalidArgument(
            "Invalid attribute name specified.",
            fields={"ArgumentName": "x-amz-object-attributes", "ArgumentValue": asked},
        )
    where = (call.operation.bucket, call.operation.key)
    version_id = call.operation.version_id
    read = await call.service.head(*where, version_id=version_id, checksums=True)
    await read.close()
    info = read.info
    part_count = None
    if "ObjectParts" in wanted and "-" in info.etag:
        first = await call.service.head(*where, version_id=version_id, part_number=1)
        await first.close()
        part_count = first.part.count if first.part is not None else None
    headers = {"last-modified": http_date(info.last_modified_ms)}
    if info.version_id is not None:
        headers["x-amz-version-id"] = info.version_id
    return xml_answer(render.attributes(info, wanted, part_count), headers=headers)


# Headers that ask for something other than all of an object. Most reads have none.
_REFINEMENTS = CONDITIONS | {"range", "x-amz-checksum-mode"}


class _Asked(TypedDict):
    """What `ObjectService.get` and `head` take beside bucket and key."""

    version_id: str | None
    wanted: RangeSpec | None
    part_number: int | None
    conditions: Conditions
    checksums: bool


_ALL_OF_IT: tuple[_Asked, dict[str, str]] = (
    _Asked(
        version_id=None, wanted=None, part_number=None, conditions=UNCONDITIONAL, checksums=False
    ),
    {},
)


def _asked(request: Request) -> tuple[_Asked, dict[str, str]]:
    """What a read asks for, and the answer headers it overrides."""
    if not request.head.query and _REFINEMENTS.isdisjoint(request.head.fields):
        return _ALL_OF_IT
    wanted, part, conditions = _wanted(request)
    overrides = _overrides(request)
    asked = _Asked(
        version_id=request.operation.version_id,
        wanted=wanted,
        part_number=part,
        conditions=conditions,
        checksums=_checksums_asked(request),
    )
    return asked, overrides


def _wanted(request: Request) -> tuple[RangeSpec | None, int | None, Conditions]:
    header = request.head.header("range")
    number = request.operation.query.get("partNumber")
    if number is not None and header is not None:
        raise InvalidRequest("Cannot specify both Range header and partNumber query parameter")
    part = None if number is None else part_number(number)
    return parse_range(header), part, read_conditions(request.head)


def _overrides(request: Request) -> dict[str, str]:
    overrides = response_overrides(request.operation.query)
    if overrides and request.anonymous:
        raise InvalidRequest("Request specific response headers cannot be used for anonymous GET")
    return overrides


def _checksums_asked(request: Request) -> bool:
    mode = request.head.header("x-amz-checksum-mode")
    if mode is None:
        return False
    if mode.upper() != "ENABLED":
        raise InvalidRequest("Value for x-amz-checksum-mode header is invalid.")
    return True


def _answer(read: ReadAnswer, overrides: dict[str, str], *, checksums: bool) -> Answer:
    headers = info_headers(read.info, checksums=checksums and not read.partial)
    headers.update(overrides)
    if read.partial and read.range.size_bytes:
        headers["content-range"] = read.range.content_range(read.info.size_bytes)
    if read.part is not None and read.part.count > 1:
        headers["x-amz-mp-parts-count"] = str(read.part.count)
    return Answer(
        status=206 if read.partial else 200,
        headers=headers,
        length_bytes=read.range.size_bytes,
        tier=read.tier,
    )
