"""XML that clients send, as typed values. Pure.

lxml with everything off that reaches out or expands: a document with a DTD is refused, entities
are never resolved. Everything that is not S3's schema is MalformedXML.
"""

from lxml import etree
from msgspec import Struct

from gateway.errors import MalformedXML
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.model.checksums import ALGORITHMS
from gateway.model.conditions import unquote_etag
from gateway.model.objects import CompletedPart
from gateway.s3.operation import part_number
from gateway.s3.tags import Tags, check_tags

_DELETE_LIMIT = 1000
_EXPRESS_ONLY = ("LastModifiedTime", "Size")
_PARTS_LIMIT = 10_000
_CHECKSUMS = {f"Checksum{name}": name for name in ALGORITHMS}

Fields = dict[str, str]


class ObjectToDelete(Struct, frozen=True):
    """One object of a DeleteObjects; `etag` (unquoted) where it must match."""

    key: str
    version_id: str | None = None
    etag: str | None = None


class DeleteRequest(Struct, frozen=True):
    objects: tuple[ObjectToDelete, ...]
    quiet: bool


def parse_delete(body: bytes) -> DeleteRequest:
    """The Delete document: 1 to 1,000 objects. MalformedXML, NotImplemented for conditions that S3
    heeds in directory buckets only."""
    objects: list[ObjectToDelete] = []
    quiet = False
    for element in _root(body, "Delete"):
        match _name(element):
            case "Quiet":
                quiet = _boolean(_text(element))
            case "Object":
                fields = _fields(element, ("Key", "VersionId", "ETag", *_EXPRESS_ONLY))
                if not fields.keys().isdisjoint(_EXPRESS_ONLY):
                    raise NotImplementedS3
                if not fields.get("Key") or len(objects) == _DELETE_LIMIT:
                    raise MalformedXML
                etag = fields.get("ETag")
                objects.append(
                    ObjectToDelete(
                        fields["Key"],
                        fields.get("VersionId") or None,
                        unquote_etag(etag) if etag else None,
                    )
                )
            case _:
                raise MalformedXML
    if not objects:
        raise MalformedXML
    return DeleteRequest(tuple(objects), quiet)


def parse_complete(body: bytes) -> tuple[CompletedPart, ...]:
    """The CompleteMultipartUpload document, in the order sent. MalformedXML, InvalidArgument."""
    parts: list[CompletedPart] = []
    for element in _root(body, "CompleteMultipartUpload"):
        if _name(element) != "Part" or len(parts) == _PARTS_LIMIT:
            raise MalformedXML
        fields = _fields(element, ("PartNumber", "ETag", *_CHECKSUMS))
        if "PartNumber" not in fields or "ETag" not in fields:
            raise MalformedXML
        parts.append(
            CompletedPart(
                number=part_number(fields["PartNumber"].strip()),
                etag=unquote_etag(fields["ETag"]),
                checksums={
                    _CHECKSUMS[name]: value.strip()
                    for name, value in fields.items()
                    if name in _CHECKSUMS
                },
            )
        )
    if not parts:
        raise MalformedXML
    return tuple(parts)


def parse_tagging(body: bytes, limit: int) -> Tags:
    """The Tagging document. MalformedXML, InvalidTag, BadRequest (more than `limit`)."""
    tags: list[tuple[str, str]] = []
    sets = list(_root(body, "Tagging"))
    if len(sets) != 1 or _name(sets[0]) != "TagSet":
        raise MalformedXML
    for element in sets[0]:
        if _name(element) != "Tag":
            raise MalformedXML
        fields = _fields(element, ("Key", "Value"))
        if "Key" not in fields or "Value" not in fields:
            raise MalformedXML
        tags.append((fields["Key"], fields["Value"]))
    return check_tags(tags, limit)


def parse_create_bucket(body: bytes) -> str | None:
    """The LocationConstraint of a CreateBucketConfiguration, if any. MalformedXML."""
    location: str | None = None
    for element in _root(body, "CreateBucketConfiguration"):
        if _name(element) != "LocationConstraint":
            raise MalformedXML
        location = _text(element).strip() or None
    return location


def _root(body: bytes, name: str) -> etree._Element:
    # A parser of its own for each document: lxml's are not to be shared between threads.
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(body, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise MalformedXML from error
    if root.getroottree().docinfo.internalDTD is not None or _name(root) != name:
        raise MalformedXML
    return root


def _fields(element: etree._Element, allowed: tuple[str, ...]) -> Fields:
    fields: Fields = {}
    for child in element:
        name = _name(child)
        if name not in allowed or name in fields:
            raise MalformedXML
        fields[name] = _text(child)
    return fields


def _name(element: etree._Element) -> str:
    if not isinstance(element.tag, str):
        raise MalformedXML
    return element.tag.rpartition("}")[2]


def _text(element: etree._Element) -> str:
    if len(element):
        raise MalformedXML
    return element.text or ""


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0" | "":
            return False
        case _:
            raise MalformedXML
