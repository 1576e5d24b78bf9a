"""S3's XML answers."""

from urllib.parse import unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from gateway.errors import NoSuchKey
from gateway.model.objects import (
    DeleteResult,
    ListPage,
    ObjectEntry,
    VersionEntry,
    VersionPage,
)
from gateway.s3 import render, render_listing
from gateway.s3.render_listing import ListingRequest

NAMESPACES = {"s": "http://s3.amazonaws.com/doc/2006-03-01/"}
KEYS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


def texts(document: bytes, path: str) -> list[str]:
    return [node.text or "" for node in etree.fromstring(document).iterfind(path, NAMESPACES)]


def entry(key: str) -> ObjectEntry:
    return ObjectEntry(key=key, etag="e", size_bytes=3, last_modified_ms=1_234)


@given(KEYS)
def test_every_key_can_be_listed_url_encoded(key: str) -> None:
    asked = ListingRequest(bucket="b", url_encoded=True)
    document = render_listing.objects_v1(asked, ListPage(objects=(entry(key),)), marker=key)
    assert unquote_plus(texts(document, "s:Contents/s:Key")[0]) == key
    assert unquote_plus(texts(document, "s:Marker")[0]) == key


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]).filter(str.isprintable)))
def test_every_printable_key_can_be_listed_as_it_is(key: str) -> None:
    asked = ListingRequest(bucket="b")
    document = render_listing.objects_v1(asked, ListPage(objects=(entry(key),)), marker="")
    assert texts(document, "s:Contents/s:Key") == [key]


def test_line_ends_in_keys_survive() -> None:
    asked = ListingRequest(bucket="b")
    document = render_listing.objects_v1(asked, ListPage(objects=(entry("a\r\n\tb"),)), marker="")
    assert texts(document, "s:Contents/s:Key") == ["a\r\n\tb"]


def test_what_xml_cannot_carry_is_a_numeric_reference_as_at_aws() -> None:
    assert render.escape('a\x01b\ufffe<&">') == "a&#x1;b&#xfffe;&lt;&amp;&quot;&gt;"


def test_the_first_version_names_a_next_marker_only_with_a_delimiter() -> None:
    page = ListPage(objects=(entry("a"),), common_prefixes=("b/",), next_after="b/")
    plain = render_listing.objects_v1(ListingRequest(bucket="b"), page, marker="")
    assert texts(plain, "s:NextMarker") == []
    assert texts(plain, "s:IsTruncated") == ["true"]
    divided = render_listing.objects_v1(ListingRequest(bucket="b", delimiter="/"), page, marker="")
    assert texts(divided, "s:NextMarker") == ["b/"]
    assert texts(divided, "s:CommonPrefixes/s:Prefix") == ["b/"]


def test_the_key_count_counts_common_prefixes_too() -> None:
    page = ListPage(objects=(entry("a"),), common_prefixes=("b/", "c/"))
    document = render_listing.objects_v2(
        ListingRequest(bucket="b"),
        page,
        token=None,
        next_token=None,
        start_after="0",
        fetch_owner=False,
    )
    assert texts(document, "s:KeyCount") == ["3"]
    assert texts(document, "s:StartAfter") == ["0"]
    assert texts(document, "s:IsTruncated") == ["false"]
    assert texts(document, "s:Contents/s:Owner/s:ID") == []
    assert texts(document, "s:Contents/s:LastModified") == ["1970-01-01T00:00:01.234Z"]


def test_versions_and_delete_markers_keep_their_order() -> None:
    page = VersionPage(
        versions=(
            VersionEntry(
                key="a", version_id="2", is_latest=True, last_modified_ms=0, delete_marker=True
            ),
            VersionEntry(key="a", version_id="1", is_latest=False, last_modified_ms=0, etag="e"),
        )
    )
    document = render_listing.versions(
        ListingRequest(bucket="b"), page, key_marker="", version_id_marker=""
    )
    names = [etree.QName(node).localname for node in etree.fromstring(document)]
    assert names[-2:] == ["DeleteMarker", "Version"]


def test_a_quiet_delete_tells_of_failures_only() -> None:
    results = [
        DeleteResult(key="a"),
        DeleteResult(key="b", error_code="AccessDenied", error_message="no"),
    ]
    loud = render.deleted(results, quiet=False)
    assert texts(loud, "s:Deleted/s:Key") == ["a"]
    quiet = render.deleted(results, quiet=True)
    assert texts(quiet, "s:Deleted/s:Key") == []
    assert texts(quiet, "s:Error/s:Code") == ["AccessDenied"]


def test_us_east_1_is_the_empty_location() -> None:
    assert not etree.fromstring(render.location("us-east-1")).text
    assert etree.fromstring(render.location("eu-west-1")).text == "eu-west-1"


@pytest.mark.parametrize("text", ["a\x00b", "\udcff", "<&>", "\ufffe"])
def test_an_error_always_parses(text: str) -> None:
    failure = NoSuchKey(text, fields={"Key": text})
    document = render.error(failure, resource=f"/b/{text}", request_id="1", host_id="n")
    root = etree.fromstring(document)
    assert [node.tag for node in root] == [
        "Code", "Message", "Key", "Resource", "RequestId", "HostId",
    ]  # fmt: skip
