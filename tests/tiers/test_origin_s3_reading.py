"""How the S3 origin reads from services that are not quite S3, and of what moto never says."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.errors import (
    InvalidPartNumber,
    InvalidRange,
    NoSuchBucket,
    NoSuchKey,
    TierUnavailable,
    VersionChanged,
)
from gateway.model.objects import ObjectRef, PartSpan
from gateway.model.ranges import ByteRange
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.protocol import OpenedObject
from tests.origins import Script, s3_config, s3_origin, scripted_origin

REF = ObjectRef("main", "bucket", "key")
DATA = bytes(range(256)) * 40


@pytest.fixture(params=["by hand", "through aiobotocore"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading meet the same services."""
    monkeypatch.setattr(f"{__name__}.BY_HAND", request.param == "by hand")


BY_HAND = True


@asynccontextmanager
async def origin_of(script: Script) -> AsyncIterator[S3Origin]:
    async with (
        scripted_origin(script) as url,
        s3_origin(s3_config(url, attempts=1), by_hand=BY_HAND) as origin,
    ):
        yield origin


def answering(
    status: int, body: bytes, headers: Mapping[str, str], *, etag: str = '"v1"'
) -> Script:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={"ETag": etag, **headers})

    return script


async def read(opened: OpenedObject) -> bytes:
    return b"".join([block async for block in opened.blocks()])


async def test_a_service_that_ignores_ranges_is_cut_to_size() -> None:
    async with origin_of(answering(200, DATA, {})) as origin:
        for wanted in (ByteRange(0, 10), ByteRange(5000, 6000), ByteRange(10_000, 99_999)):
            opened = await origin.open(REF, wanted=wanted)
            assert opened.range == ByteRange(wanted.start, min(wanted.stop, len(DATA)))
            assert await read(opened) == DATA[wanted.start : wanted.stop]
        with pytest.raises(InvalidRange):
            await origin.open(REF, wanted=ByteRange(len(DATA), len(DATA) + 1))


async def test_a_service_that_ignores_if_match_is_caught_by_its_etag() -> None:
    async with origin_of(answering(200, DATA, {})) as origin:
        with pytest.raises(VersionChanged):
            await origin.open(REF, if_match="v0")
        opened = await origin.open(REF, if_match="v1")
        assert await read(opened) == DATA


async def test_a_service_that_sends_other_bytes_than_asked_for_is_unavailable() -> None:
    headers = {"Content-Range": f"bytes 100-199/{len(DATA)}"}
    async with origin_of(answering(206, DATA[100:200], headers)) as origin:
        opened = await origin.open(REF, wanted=ByteRange(110, 120))
        assert await read(opened) == DATA[110:120]
        with pytest.raises(TierUnavailable):
            await origin.open(REF, wanted=ByteRange(0, 100))
    async with origin_of(answering(206, DATA[:100], {})) as origin:
        with pytest.raises(TierUnavailable):
            await origin.open(REF, wanted=ByteRange(0, 100))


async def test_an_answer_that_names_no_version_is_unavailable() -> None:
    async with origin_of(answering(200, DATA, {}, etag="")) as origin:
        with pytest.raises(TierUnavailable):
            await origin.open(REF)
        with pytest.raises(TierUnavailable):
            await origin.head(REF)


async def test_only_a_whole_answers_checksums_are_the_objects() -> None:
    headers = {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "FULL_OBJECT"}
    async with origin_of(answering(200, DATA, headers)) as origin:
        info = (await origin.open(REF)).info
        assert (info.checksums, info.checksums_known) == ({"CRC32": "AAAAAA=="}, True)
    part = {"Content-Range": f"bytes 0-99/{len(DATA)}"} | headers
    async with origin_of(answering(206, DATA[:100], part)) as origin:
        info = (await origin.open(REF, wanted=ByteRange(0, 100))).info
        assert (info.checksums, info.checksums_known) == ({}, False)


async def test_an_object_under_a_customers_key_is_not_kept() -> None:
    headers = {"x-amz-server-side-encryption-customer-algorithm": "AES256"}
    async with origin_of(answering(200, DATA, headers)) as origin:
        assert not (await origin.head(REF)).cacheable


async def test_metadata_that_is_not_utf8_does_not_hide_the_object() -> None:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        head = b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 2\r\nConnection: close\r\n'
        transport.write(head + b"x-amz-meta-name: caf\xe9\r\n\r\nok")
        transport.close()
        return web.Response()

    async with origin_of(script) as origin:
        opened = await origin.open(REF)
        assert opened.info.headers["x-amz-meta-name"] == "café"
        assert await read(opened) == b"ok"


async def test_a_bare_404_is_told_apart_by_the_bucket() -> None:
    there = False
    asked: list[str] = []

    async def script(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        is_bucket = request.path.rstrip("/") == "/bucket"
        return web.Response(status=200 if is_bucket and there else 404)

    async with origin_of(script) as origin:
        with pytest.raises(NoSuchBucket):
            await origin.head(REF)
        there = True
        for _ in range(3):
            with pytest.raises(NoSuchKey):
                await origin.head(REF)
    assert asked.count("/bucket") == 2


PARTS = (b"a" * 10, b"b" * 7, b"c" * 3)


@pytest.mark.parametrize("ranged", [True, False])
async def test_parts_are_found_with_or_without_a_content_range(ranged: bool) -> None:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        number = int(request.query.get("partNumber", "0"))
        if number > len(PARTS):
            return web.Response(status=416)
        headers = {"ETag": '"v1-3"'}
        if not number:
            return web.Response(body=b"".join(PARTS), headers=headers)
        headers["x-amz-mp-parts-count"] = "3"
        start = sum(map(len, PARTS[: number - 1]))
        if ranged:
            stop = start + len(PARTS[number - 1])
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/20"
        return web.Response(status=206 if ranged else 200, body=PARTS[number - 1], headers=headers)

    async with origin_of(script) as origin:
        for number, (start, stop) in enumerate(((0, 10), (10, 17), (17, 20)), 1):
            info, part = await origin.part_span(REF, number)
            assert info.size_bytes == 20
            assert part == PartSpan(number, start, stop, 3)
        with pytest.raises(InvalidPartNumber):
            await origin.part_span(REF, 4)
