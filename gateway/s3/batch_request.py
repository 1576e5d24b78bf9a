"""What a batch asks for: a JSON document as typed values. Pure. See docs/batch.md.

Everything that is not of this form is refused by the place where it is off, before anything is
read.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.errors import InvalidArgument, InvalidRequest
from gateway.model.ranges import RangeSpec, parse_range
from gateway.s3.operation import check_key
from gateway.store.batch import WantedObject

# 10,000 keys of 1,024 bytes and a range each, with room for escapes.
DOCUMENT_BYTES = 16 * 1024**2
_OBJECTS = 10_000
# A document of that length could hold a hundred times as many objects, and each takes memory
# before it can be counted; keys may have braces in them, too.
_BRACES = 10 * _OBJECTS
_RANGE_BYTES = 64


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[str, Meta(min_length=1)]
    range: Annotated[str, Meta(max_length=_RANGE_BYTES)] | None = None


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    objects: Annotated[list[_Object], Meta(min_length=1, max_length=_OBJECTS)]
    format: Literal["tar", "frames"] = "tar"
    strict: bool = False


_DECODER = msgspec.json.Decoder(_Document)


class BatchRequest(Struct, frozen=True):
    """1 to 10,000 objects, in the order they are wanted. `strict`: the answer breaks off at the
    first that cannot be had."""

    objects: list[WantedObject]
    format: Literal["tar", "frames"]
    strict: bool


def parse_batch(document: bytes) -> BatchRequest:
    """The batch that `document` asks for.

    Raises InvalidRequest where it is not JSON, KeyTooLongError, and InvalidArgument for whatever
    else is off.
    """
    if document.count(b"{") > _BRACES:
        raise InvalidArgument(f"A batch has at most {_OBJECTS} objects.")
    try:
        asked = _DECODER.decode(document)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"The batch is not as it should be: {error}"[:500]) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The batch is not JSON: {error}"[:500]) from None
    objects = [
        WantedObject(check_key(each.key), _range(number, each.range))
        for number, each in enumerate(asked.objects)
    ]
    return BatchRequest(objects, asked.format, asked.strict)


def _range(number: int, value: str | None) -> RangeSpec | None:
    if value is None:
        return None
    found = parse_range(value)
    if found is None:
        # A Range header that makes no sense means the whole object; here it is a mistake.
        raise InvalidArgument(
            "A range is one of bytes=first-last, bytes=first- and bytes=-last.",
            fields={"ArgumentName": f"objects[{number}].range", "ArgumentValue": value},
        )
    return found
