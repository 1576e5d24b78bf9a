"""Listings are in UTF-8 byte order, whatever the service's own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from xml.sax.saxutils import escape

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.origin_s3 import listing as origin_s3_listing
from gateway.tiers.origin_s3.listing import _beyond, _object, _start_after
from tests.origins import s3_config, s3_origin, scripted_origin

LAST_MODIFIED = "2024-01-02T03:04:05.000Z"


class Hoard:
    """A service that lists its keys in the order it has them, some a page, as directory buckets
    do: StartAfter means nothing to it."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self.requests = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        start = int(request.query.get("continuation-token", "0"))
        limit = int(request.query["max-keys"])
        prefix = request.query.get("prefix", "")
        found = [key for key in self.keys if key.startswith(prefix)]
        page = found[start : start + limit]
        more = start + limit < len(found)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{LAST_MODIFIED}</LastModified>"
            f'<ETag>"v"</ETag><Size>1</Size></Contents>'
            for key in page
        )
        token = f"<NextContinuationToken>{start + limit}</NextContinuationToken>" if more else ""
        truncated = "true" if more else "false"
        return web.Response(
            text=f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{rows}"
            "</ListBucketResult>"
        )


@asynccontextmanager
async def origin_over(hoard: Hoard) -> AsyncIterator[S3Origin]:
    async with (
        scripted_origin(hoard) as url,
        s3_origin(s3_config(url, attempts=1)) as origin,
    ):
        yield origin


async def listed(
    origin: S3Origin, *, prefix: str = "", delimiter: str = "", limit: int = 1000
) -> list[str]:
    names: list[str] = []
    after = ""
    while True:
        page = await origin.list_objects(
            "bucket", prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )
        found = [entry.key for entry in page.objects] + list(page.common_prefixes)
        assert 0 < len(found) <= limit
        names += sorted(found, key=str.encode)
        if page.next_after is None:
            return names
        after = page.next_after


UNSORTED = ["z", "a/2", "\U0001f4be", "b", "a/1", "\uff5e", "a", "c/d/e", "c/a"]


@pytest.mark.parametrize("limit", [1, 2, 4, 1000])
async def test_an_unsorted_service_is_sorted(limit: int) -> None:
    async with origin_over(Hoard(UNSORTED)) as origin:
        assert await listed(origin, limit=limit) == sorted(UNSORTED, key=str.encode)
        assert await listed(origin, prefix="a/", limit=limit) == ["a/1", "a/2"]
        folded = ["a", "a/", "b", "c/", "z", "\uff5e", "\U0001f4be"]
        assert await listed(origin, delimiter="/", limit=limit) == folded
        assert await listed(origin, prefix="c/", delimiter="/", limit=limit) == ["c/a", "c/d/"]


async def test_too_many_keys_to_sort_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_s3_listing, "SORTED_KEYS_AT_MOST", 8)
    async with origin_over(Hoard(UNSORTED)) as origin:
        with pytest.raises(InvalidRequest, match="too many to sort"):
            await listed(origin)


async def test_a_sorted_service_is_asked_for_one_page_at_a_time() -> None:
    hoard = Hoard(sorted(UNSORTED, key=str.encode))
    async with origin_over(hoard) as origin:
        page = await origin.list_objects("bucket", prefix="", delimiter="", after="", limit=2)
        assert [entry.key for entry in page.objects] == ["a", "a/1"]
        assert page.next_after == "a/1"
    assert hoard.requests == 1


KEYS = st.text(alphabet="a/b\uffff\U0010ffff", min_size=1, max_size=6)


@given(keys=st.sets(KEYS), after=KEYS, prefix=st.sampled_from(["", "a", "a/"]))
def test_start_after_loses_nothing(keys: set[str], after: str, prefix: str) -> None:
    """What the origin skips is what the page may not show anyway."""
    start = _start_after(prefix, "/", after)
    for key in keys:
        if key.startswith(prefix) and key.encode() <= start.encode():
            entry = _object({"Key": key, "LastModified": _Epoch()})
            assert not _beyond(entry, after, "/")


class _Epoch:
    def timestamp(self) -> float:
        return 0.0


ROWS = (
    "<Version><Key>a</Key><VersionId>4</VersionId><IsLatest>true</IsLatest>"
    "<LastModified>2024-01-02T03:04:05Z</LastModified><ETag>&quot;d&quot;</ETag></Version>"
    "<DeleteMarker><Key>a</Key><VersionId>3</VersionId><IsLatest>false</IsLatest>"
    "<LastModified>2024-01-02T03:04:05Z</LastModified></DeleteMarker>"
    "<Version><Key>a</Key><VersionId>2</VersionId><IsLatest>false</IsLatest>"
    "<LastModified>2024-01-02T03:04:05Z</LastModified><ETag>&quot;b&quot;</ETag></Version>"
    "<DeleteMarker><Key>b%3CVersion%3E</Key><VersionId>1</VersionId><IsLatest>true</IsLatest>"
    "<LastModified>2024-01-02T03:04:05Z</LastModified></DeleteMarker>"
)


async def test_versions_and_markers_keep_their_order_within_a_second() -> None:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(
            text="<ListVersionsResult><IsTruncated>true</IsTruncated>"
            "<NextKeyMarker>b%3C</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>"
            f"<EncodingType>url</EncodingType>{ROWS}</ListVersionsResult>"
        )

    async with (
        scripted_origin(script) as url,
        s3_origin(s3_config(url, attempts=1)) as origin,
    ):
        page = await origin.list_versions(
            "bucket", prefix="", delimiter="", key_marker="", version_id_marker="", limit=4
        )
    rows = [(row.key, row.version_id, row.delete_marker) for row in page.versions]
    assert rows == [
        ("a", "4", False),
        ("a", "3", True),
        ("a", "2", False),
        ("b<Version>", "1", True),
    ]
    assert (page.next_key_marker, page.next_version_id_marker) == ("b<", "1")
