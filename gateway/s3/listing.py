"""ListObjects, ListObjectsV2, ListObjectVersions.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from gateway.errors import InvalidArgument
from gateway.model.objects import ListPage, VersionPage
from gateway.s3 import render_listing
from gateway.s3.answer import Answer, xml_answer
from gateway.s3.call import Call
from gateway.s3.render_listing import ListingRequest
from gateway.s3.tokens import decode_token, encode_token


async def list_objects(call: Call) -> Answer:
    """The first version of listings: a marker is a key."""
    asked = listing_request(call, "max-keys")
    marker = call.operation.query.get("marker", "")
    page = await _page(call, asked, marker)
    return xml_answer(render_listing.objects_v1(asked, page, marker=marker))


async def list_objects_v2(call: Call) -> Answer:
    """The second: a token is opaque, and `start-after` counts only without one."""
    query = call.operation.query
    asked = listing_request(call, "max-keys")
    token = query.get("continuation-token")
    start_after = query.get("start-after")
    after = decode_token(token) if token is not None else start_after or ""
    page = await _page(call, asked, after)
    next_token = None if page.next_after is None else encode_token(page.next_after)
    return xml_answer(
        render_listing.objects_v2(
            asked,
            page,
            token=token,
            next_token=next_token,
            start_after=start_after,
            fetch_owner=query.get("fetch-owner", "").lower() == "true",
        )
    )


async def list_object_versions(call: Call) -> Answer:
    """All versions and delete markers; a directory origin has null versions only."""
    query = call.operation.query
    asked = listing_request(call, "max-keys")
    key_marker = query.get("key-marker", "")
    version_id_marker = query.get("version-id-marker", "")
    if version_id_marker and not key_marker:
        raise InvalidArgument("A version-id marker cannot be specified without a key marker.")
    if asked.limit:
        page = await call.service.list_versions(
            asked.bucket,
            prefix=asked.prefix,
            delimiter=asked.delimiter,
            key_marker=key_marker,
            version_id_marker=version_id_marker,
            limit=asked.limit,
        )
    else:
        await call.service.head_bucket(asked.bucket)
        page = VersionPage()
    return xml_answer(
        render_listing.versions(
            asked, page, key_marker=key_marker, version_id_marker=version_id_marker
        )
    )


def listing_request(call: Call, limit_parameter: str) -> ListingRequest:
    """What all listings have in common. InvalidArgument."""
    query = call.operation.query
    encoding = query.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise InvalidArgument(
            "Invalid Encoding Method specified in Request",
            fields={"ArgumentName": "encoding-type", "ArgumentValue": encoding},
        )
    return ListingRequest(
        bucket=call.operation.bucket,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=call.operation.count(limit_parameter),
        url_encoded=encoding == "url",
    )


async def _page(call: Call, asked: ListingRequest, after: str) -> ListPage:
    if not asked.limit:
        # Nothing was asked for, and nothing is truncated; but the bucket must be there.
        await call.service.head_bucket(asked.bucket)
        return ListPage()
    return await call.service.list_objects(
        asked.bucket,
        prefix=asked.prefix,
        delimiter=asked.delimiter,
        after=after,
        limit=asked.limit,
    )
