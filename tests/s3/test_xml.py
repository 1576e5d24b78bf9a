"""XML that clients send."""

from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, InvalidArgument, InvalidTag, MalformedXML, S3Error
from gateway.errors import NotImplemented as NotImplementedS3
from gateway.model.objects import CompletedPart
from gateway.s3.xml import (
    DeleteRequest,
    ObjectToDelete,
    parse_complete,
    parse_create_bucket,
    parse_delete,
    parse_tagging,
)
from tests.s3.refusals import outcome

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
PRINTABLE = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
    min_size=1,
    max_size=40,
)


def delete_of(*keys: str) -> bytes:
    objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
    return f"<Delete {NAMESPACE}>{objects}</Delete>".encode()


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_the_keys_to_delete_are_those_sent(keys: list[str]) -> None:
    assert [entry.key for entry in parse_delete(delete_of(*keys)).objects] == keys


def test_a_delete_knows_versions_etags_and_quiet() -> None:
    document = (
        b'<?xml version="1.0"?><Delete><Quiet>true</Quiet><!-- no -->'
        b"<Object><Key>a &amp; b</Key><VersionId>v1</VersionId></Object>"
        b'<Object><Key>c</Key><ETag>"e"</ETag></Object></Delete>'
    )
    assert parse_delete(document) == DeleteRequest(
        (ObjectToDelete("a & b", "v1"), ObjectToDelete("c", None, "e")), quiet=True
    )


def test_a_delete_has_one_to_a_thousand_objects() -> None:
    keys = [str(number) for number in range(1001)]
    assert len(parse_delete(delete_of(*keys[:1000])).objects) == 1000
    for document in (delete_of(), delete_of(*keys)):
        with pytest.raises(MalformedXML):
            parse_delete(document)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"not xml",
        b"<Delete>",
        b"<Delete/>",
        b"<Other><Object><Key>k</Key></Object></Other>",
        b"<Delete><Object/></Delete>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b"<Delete><Object><Key>k</Key><Key>k</Key></Object></Delete>",
        b"<Delete><Object><Key><b>k</b></Key></Object></Delete>",
        b"<Delete><Object><Key>k</Key></Object><Quiet>maybe</Quiet></Delete>",
        b"<Delete><Object><Key>k</Key></Object><Else/></Delete>",
        b"<Delete><Object><Key>\x01</Key></Object></Delete>",
        b"<Delete><Object><Key>\xff</Key></Object></Delete>",
        b"<Delete><Object><Key>&undefined;</Key></Object></Delete>",
    ],
)
def test_what_is_not_a_delete_document_is_malformed(document: bytes) -> None:
    with pytest.raises(MalformedXML):
        parse_delete(document)


@pytest.mark.parametrize("condition", ["Size", "LastModifiedTime"])
def test_a_delete_with_a_condition_that_is_not_heeded_is_refused(condition: str) -> None:
    document = f"<Delete><Object><Key>k</Key><{condition}>1</{condition}></Object></Delete>"
    with pytest.raises(NotImplementedS3):
        parse_delete(document.encode())


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE Delete [<!ENTITY k "key">]>',
        '<!DOCTYPE Delete [<!ENTITY k SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE Delete SYSTEM "http://127.0.0.1:1/x.dtd">',
        '<!DOCTYPE Delete [<!ENTITY a "aaaaaaaaaa"><!ENTITY k "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
    ],
)
def test_a_document_with_a_dtd_is_malformed(doctype: str) -> None:
    plain = f"{doctype}<Delete><Object><Key>k</Key></Object></Delete>".encode()
    entity = f"{doctype}<Delete><Object><Key>&k;</Key></Object></Delete>".encode()
    for document in (plain, entity):
        with pytest.raises(MalformedXML):
            parse_delete(document)


def test_a_document_too_deep_is_malformed() -> None:
    with pytest.raises(MalformedXML):
        parse_delete(b"<Delete>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</Delete>")


def test_completed_parts_keep_their_order_and_checksums() -> None:
    document = (
        f"<CompleteMultipartUpload {NAMESPACE}>"
        '<Part><PartNumber>2</PartNumber><ETag>"b"</ETag></Part>'
        "<Part><ETag>a</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32>"
        "<PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
    ).encode()
    assert parse_complete(document) == (
        CompletedPart(number=2, etag="b"),
        CompletedPart(number=1, etag="a", checksums={"CRC32": "AAAAAA=="}),
    )


@pytest.mark.parametrize("number", ["0", "10001", "-1", "x", "", "1.0", "\u0661"])
def test_a_part_number_outside_1_to_10000_is_an_invalid_argument(number: str) -> None:
    document = (
        f"<CompleteMultipartUpload><Part><PartNumber>{number}</PartNumber><ETag>a</ETag></Part>"
        "</CompleteMultipartUpload>"
    )
    with pytest.raises(InvalidArgument):
        parse_complete(document.encode())


def test_an_upload_is_not_completed_without_parts_or_etags() -> None:
    part = b"<Part><PartNumber>1</PartNumber></Part>"
    for inner in (b"", part, b"<Part><ETag>a</ETag></Part>", b"<Else/>"):
        with pytest.raises(MalformedXML):
            parse_complete(b"<CompleteMultipartUpload>" + inner + b"</CompleteMultipartUpload>")


def test_tags_come_in_order() -> None:
    document = (
        b"<Tagging><TagSet><Tag><Key>b</Key><Value>1</Value></Tag>"
        b"<Tag><Value/><Key>a</Key></Tag></TagSet></Tagging>"
    )
    assert parse_tagging(document, 10) == (("b", "1"), ("a", ""))


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        (b"", MalformedXML),
        (b"<TagSet/><TagSet/>", MalformedXML),
        (b"<TagSet><Tag><Key>a</Key></Tag></TagSet>", MalformedXML),
        (b"<TagSet><Tag><Key>&lt;</Key><Value/></Tag></TagSet>", InvalidTag),
        (b"<TagSet>" + b"<Tag><Key>a</Key><Value/></Tag>" * 2 + b"</TagSet>", InvalidTag),
        (b"<TagSet>" + b"<Tag><Key>a</Key><Value/></Tag>" * 11 + b"</TagSet>", BadRequest),
    ],
)
def test_a_bad_tag_set_is_refused(inner: bytes, error: type[S3Error]) -> None:
    with pytest.raises(error):
        parse_tagging(b"<Tagging>" + inner + b"</Tagging>", 10)


def test_a_new_bucket_may_name_a_location() -> None:
    start, end = b"<CreateBucketConfiguration>", b"</CreateBucketConfiguration>"
    location = b"<LocationConstraint>eu-west-1</LocationConstraint>"
    assert parse_create_bucket(start + location + end) == "eu-west-1"
    assert parse_create_bucket(start + end) is None
    with pytest.raises(MalformedXML):
        parse_create_bucket(start + b"<Bucket/>" + end)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_an_s3_error(document: bytes) -> None:
    for inner in (document, b"<Delete>" + document + b"</Delete>"):
        found = outcome(parse_delete, inner)
        assert found.status == 400 if isinstance(found, S3Error) else found.objects
