"""Requests handed through the S3 origin as they are: versioning, object lock, SSE-C, attributes."""

from collections.abc import AsyncIterator, Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadDigest, MethodNotAllowed, NoSuchKey, NoSuchVersion, TierUnavailable
from gateway.model.body import BytesBody
from gateway.model.conditions import WriteConditions
from gateway.model.objects import ObjectRef
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.origin_s3.relay import S3RelayAnswer, encoded_query
from gateway.tiers.protocol import RelayRequest
from tests.faulty import Fault, FlakyOrigin, flaky_origin
from tests.origins import MotoServer, moto_server, s3_config, s3_origin, scripted_origin
from tests.tiers.test_origin_s3_writing import LARGE, RefusedBody, TrailingBody

ANY = WriteConditions()
REF = ObjectRef("main", "relayed", "a key/ü")
VERSIONING = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[FlakyOrigin]:
    moto.reset()
    with flaky_origin(moto.url) as proxy:
        yield proxy


@pytest.fixture
async def origin(proxy: FlakyOrigin, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Origin]:
    monkeypatch.setattr("random.random", lambda: 0.0)
    async with s3_origin(s3_config(proxy.url, attempts=3)) as origin:
        await origin.create_bucket(REF.bucket)
        yield origin


def asked(
    method: str,
    query: tuple[tuple[str, str], ...] = (),
    headers: Mapping[str, str] | None = None,
    *,
    key: str = REF.key,
) -> RelayRequest:
    return RelayRequest(
        method=method, bucket=REF.bucket, key=key, query=query, headers=headers or {}
    )


async def text(answer: S3RelayAnswer) -> bytes:
    return b"".join([block async for block in answer.blocks()])


async def version(origin: S3Origin) -> None:
    request = asked("PUT", (("versioning", ""),), key="")
    answer = await origin.relay(request, BytesBody(VERSIONING))
    assert answer.status == 200
    await answer.close()


async def test_a_bucket_is_versioned_through_a_relay(origin: S3Origin) -> None:
    await version(origin)
    answer = await origin.relay(asked("GET", (("versioning", ""),), key=""), None)
    assert b"<Status>Enabled</Status>" in await text(answer)
    await answer.close()


async def test_versions_have_names_of_their_own(origin: S3Origin) -> None:
    await version(origin)
    old = await origin.put(REF, BytesBody(b"old"), {}, ANY)
    new = await origin.put(REF, BytesBody(b"newer"), {}, ANY)
    assert old.version_id
    assert new.version_id
    versioned = ObjectRef("main", REF.bucket, REF.key, old.version_id)
    info = await origin.head(versioned)
    assert (info.version_id, info.size_bytes) == (old.version_id, 3)
    opened = await origin.open(versioned)
    assert b"".join([block async for block in opened.blocks()]) == b"old"

    gone = await origin.delete(REF, ANY)
    assert gone.delete_marker
    assert gone.delete_marker_version_id
    with pytest.raises(NoSuchKey) as caught:
        await origin.head(REF)
    assert caught.value.headers["x-amz-delete-marker"] == "true"
    marker = ObjectRef("main", REF.bucket, REF.key, gone.delete_marker_version_id)
    with pytest.raises(MethodNotAllowed) as refused:
        await origin.head(marker)
    assert refused.value.headers["x-amz-delete-marker"] == "true"

    page = await origin.list_versions(
        REF.bucket, prefix="", delimiter="", key_marker="", version_id_marker="", limit=10
    )
    rows = [(row.version_id, row.delete_marker, row.is_latest) for row in page.versions]
    assert rows[0] == (gone.delete_marker_version_id, True, True)
    assert {row[0] for row in rows[1:]} == {old.version_id, new.version_id}
    assert {row.key for row in page.versions} == {REF.key}

    results = await origin.delete_many(
        REF.bucket, [(REF.key, old.version_id), (REF.key, gone.delete_marker_version_id)]
    )
    assert [result.version_id for result in results] == [
        old.version_id,
        gone.delete_marker_version_id,
    ]
    with pytest.raises(NoSuchVersion):
        await origin.head(versioned)
    assert (await origin.head(REF)).version_id == new.version_id


async def test_both_bodies_stream(origin: S3Origin, proxy: FlakyOrigin) -> None:
    headers = {
        "content-type": "text/x",
        "x-amz-meta-a": "1",
        "host": "somebody.else",
        "expect": "100-continue",
        "x-amz-date": "then",
        "content-encoding": "aws-chunked",
    }
    for body in (BytesBody(LARGE), TrailingBody(LARGE, "CRC32"), BytesBody(b"small")):
        answer = await origin.relay(asked("PUT", headers=headers), body)
        assert answer.status == 200
        await answer.close()
        assert (await origin.head(REF)).size_bytes == body.length_bytes
    await origin.put(REF, BytesBody(LARGE), {"x-amz-meta-a": "1"}, ANY)
    answer = await origin.relay(asked("GET"), None)
    assert answer.headers["content-length"] == str(len(LARGE))
    assert answer.headers["x-amz-meta-a"] == "1"
    assert not {"connection", "transfer-encoding"} & set(answer.headers)
    blocks = [block async for block in answer.blocks()]
    assert b"".join(blocks) == LARGE
    assert max(map(len, blocks)) <= 1024**2


async def test_a_refused_body_is_not_relayed(origin: S3Origin) -> None:
    for data in (b"small", LARGE):
        with pytest.raises(BadDigest):
            await origin.relay(asked("PUT"), RefusedBody(data))
    with pytest.raises(NoSuchKey):
        await origin.head(REF)


async def test_errors_about_the_request_are_handed_on(origin: S3Origin) -> None:
    answer = await origin.relay(asked("GET", key="missing"), None)
    assert answer.status == 404
    assert b"<Code>NoSuchKey</Code>" in await text(answer)


async def test_errors_of_the_origin_are_asked_again_and_then_unavailable(
    origin: S3Origin, proxy: FlakyOrigin
) -> None:
    await origin.put(REF, BytesBody(b"x"), {}, ANY)
    proxy.fail(Fault("status", status=500), times=2)
    answer = await origin.relay(asked("GET"), None)
    assert await text(answer) == b"x"
    # aiohttp asks once more by itself where a connection dies without an answer.
    proxy.fail(Fault("reset"), times=6)
    with pytest.raises(TierUnavailable):
        await origin.relay(asked("PUT"), BytesBody(b"y"))
    proxy.fail(Fault("truncate", "GetObject", after_bytes=0))
    answer = await origin.relay(asked("GET"), None)
    with pytest.raises(TierUnavailable):
        await text(answer)


@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers={"location": "http://elsewhere.invalid/"})

    async with (
        scripted_origin(script) as url,
        s3_origin(s3_config(url, attempts=1)) as origin,
    ):
        with pytest.raises(TierUnavailable, match="is in another region"):
            await origin.relay(asked("GET"), None)


async def test_refused_credentials_are_not_the_clients_fault() -> None:
    async def script(request: web.BaseRequest) -> web.StreamResponse:
        body = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"
        return web.Response(status=403, text="" if request.method == "HEAD" else body)

    async with (
        scripted_origin(script) as url,
        s3_origin(s3_config(url, attempts=1)) as origin,
    ):
        with pytest.raises(TierUnavailable, match="credentials"):
            await origin.relay(asked("GET"), None)
        with pytest.raises(TierUnavailable, match="credentials"):
            await origin.open(REF)
        with pytest.raises(TierUnavailable, match="credentials"):
            await origin.put(REF, BytesBody(b"x"), {}, ANY)


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_a_query_arrives_as_it_was(pairs: list[tuple[str, str]]) -> None:
    query = encoded_query(tuple(pairs))
    assert query.isascii()
    assert parse_qsl(urlsplit(f"http://x/?{query}").query, keep_blank_values=True) == pairs
