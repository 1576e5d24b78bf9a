"""What the S3 origin sends when it writes, and what the service then holds."""

import gzip
import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from gateway.errors import BadDigest, InvalidArgument, NoSuchKey
from gateway.model.body import BytesBody
from gateway.model.checksums import checksum
from gateway.model.conditions import Conditions, WriteConditions
from gateway.model.objects import CompletedPart, ObjectRef
from gateway.tiers.origin_s3 import S3Origin
from tests.faulty import FlakyOrigin, flaky_origin, header
from tests.origins import MotoServer, moto_server, s3_config, s3_origin

ANY = WriteConditions()
REF = ObjectRef("main", "writing", "key")
LARGE = bytes(range(256)) * 12_289


class TrailingBody(BytesBody):
    """A body whose checksum is known at its end only, as from a trailer."""

    def __init__(self, data: bytes, algorithm: str) -> None:
        super().__init__(data)
        self._algorithm = algorithm
        self.trailing_algorithms = (algorithm,)

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await super().read(min(limit_bytes, 100_000))
        if not block:
            self.checksums = {self._algorithm: checksum(self._algorithm, self._data)}
        return block


class RefusedBody(BytesBody):
    """A body that fails its verification at the last block."""

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await super().read(limit_bytes)
        if self._position == len(self._data):
            raise BadDigest
        return block


class LongBody(BytesBody):
    """A body of zeros that is never in memory at once."""

    def __init__(self, length_bytes: int) -> None:
        super().__init__(b"")
        self.length_bytes = length_bytes
        self.largest_read_bytes = 0

    async def read(self, limit_bytes: int = 262_144) -> bytes:
        self.largest_read_bytes = max(self.largest_read_bytes, limit_bytes)
        size_bytes = min(limit_bytes, self.length_bytes - self._position)
        self._position += size_bytes
        return bytes(size_bytes)


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
async def origin(proxy: FlakyOrigin) -> AsyncIterator[S3Origin]:
    async with s3_origin(s3_config(proxy.url, attempts=1)) as origin:
        await origin.create_bucket(REF.bucket)
        yield origin


async def read(origin: S3Origin, ref: ObjectRef) -> bytes:
    opened = await origin.open(ref)
    return b"".join([block async for block in opened.blocks()])


def sent(proxy: FlakyOrigin) -> Mapping[str, str]:
    """The headers of the last request."""
    lines = proxy.seen.heads[-1].decode().split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if line)
    return {name.lower(): value.strip() for name, value in pairs}


@pytest.mark.parametrize("size_bytes", [0, 1, 262_144, 1024**2, 1024**2 + 1, len(LARGE)])
@pytest.mark.parametrize("algorithm", ["CRC32", "CRC64NVME", "SHA256"])
async def test_a_trailing_checksum_reaches_the_origin(
    origin: S3Origin, size_bytes: int, algorithm: str
) -> None:
    data = LARGE[:size_bytes]
    await origin.put(REF, TrailingBody(data, algorithm), {"content-encoding": "br"}, ANY)
    info = await origin.head(REF, checksums=True)
    assert info.checksums == {algorithm: checksum(algorithm, data)}
    assert info.checksum_type == "FULL_OBJECT"
    assert info.headers["content-encoding"] == "br"
    assert await read(origin, REF) == data


async def test_a_large_body_streams_in_bounded_pieces(origin: S3Origin, proxy: FlakyOrigin) -> None:
    body = LongBody(40 * 1024**2)
    result = await origin.put(REF, body, {}, ANY)
    assert result.etag == hashlib.md5(bytes(40 * 1024**2)).hexdigest()
    assert body.largest_read_bytes <= 1024**2
    headers = sent(proxy)
    assert headers["content-length"] == str(40 * 1024**2)
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "transfer-encoding" not in headers


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_a_body_refused_at_its_end_stores_nothing(origin: S3Origin, data: bytes) -> None:
    with pytest.raises(BadDigest):
        await origin.put(REF, RefusedBody(data), {}, ANY)
    with pytest.raises(NoSuchKey):
        await origin.head(REF)
    upload = await origin.create_upload(REF, {}, checksum_algorithm=None, checksum_type=None)
    with pytest.raises(BadDigest):
        await origin.put_part(REF, upload, 1, RefusedBody(data), {})
    parts = await origin.list_parts(REF, upload, after_number=0, limit=10)
    assert parts.parts == ()


async def test_content_md5_and_checksums_go_along(origin: S3Origin, proxy: FlakyOrigin) -> None:
    md5 = b64encode(hashlib.md5(LARGE).digest()).decode()
    value = checksum("CRC32C", LARGE)
    body = BytesBody(LARGE, checksums={"CRC32C": value}, content_md5=md5)
    result = await origin.put(REF, body, {}, ANY)
    assert sent(proxy)["content-md5"] == md5
    assert sent(proxy)["x-amz-checksum-crc32c"] == value
    assert result.checksums == {"CRC32C": value}


async def test_compressed_objects_stay_as_they_were_stored(origin: S3Origin) -> None:
    data = gzip.compress(b"text " * 1000)
    await origin.put(REF, BytesBody(data), {"content-encoding": "gzip"}, ANY)
    assert await read(origin, REF) == data
    assert (await origin.head(REF)).headers["content-encoding"] == "gzip"


async def test_headers_go_out_as_they_came(origin: S3Origin, proxy: FlakyOrigin) -> None:
    headers = {
        "content-type": "text/plain; charset=x",
        "expires": "not a date at all",
        "x-amz-meta-name": "Grüße, 世界",
        "x-amz-meta-list": "a, b ,c",
        "x-amz-something-new": "kept",
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-object-lock-legal-hold": "OFF",
    }
    await origin.put(REF, BytesBody(b"x"), headers, ANY)
    assert headers.items() <= sent(proxy).items()
    await origin.create_upload(REF, headers, checksum_algorithm="SHA256", checksum_type="COMPOSITE")
    assert headers.items() <= sent(proxy).items()
    assert sent(proxy)["x-amz-checksum-algorithm"] == "SHA256"
    assert sent(proxy)["x-amz-checksum-type"] == "COMPOSITE"


async def test_what_http_cannot_carry_is_refused(origin: S3Origin) -> None:
    with pytest.raises(InvalidArgument):
        await origin.put(REF, BytesBody(b"x"), {"x-amz-meta-a": "\udcff"}, ANY)


async def test_copies_say_what_to_keep_and_on_what_condition(
    origin: S3Origin, proxy: FlakyOrigin
) -> None:
    source = ObjectRef("main", REF.bucket, "ünï/a b+c%20d?x")
    etag = (await origin.put(source, BytesBody(b"data"), {}, ANY)).etag
    conditions = Conditions(
        if_match=(etag,), if_modified_since=0, if_unmodified_since=4_000_000_000
    )
    await origin.copy(
        source,
        REF,
        headers=None,
        tagging="a=1&b=2",
        source_conditions=conditions,
        conditions=ANY,
        checksum_algorithm="SHA256",
    )
    wanted = {
        "x-amz-copy-source-if-match": f'"{etag}"',
        "x-amz-copy-source-if-modified-since": "Thu, 01 Jan 1970 00:00:00 GMT",
        "x-amz-copy-source-if-unmodified-since": "Tue, 02 Oct 2096 07:06:40 GMT",
        "x-amz-metadata-directive": "COPY",
        "x-amz-tagging-directive": "REPLACE",
        "x-amz-tagging": "a=1&b=2",
        "x-amz-checksum-algorithm": "SHA256",
    }
    assert wanted.items() <= sent(proxy).items()
    assert await read(origin, REF) == b"data"
    await origin.copy(
        source,
        REF,
        headers={"x-amz-meta-a": "1"},
        tagging=None,
        source_conditions=Conditions(if_none_match=("other",)),
        conditions=WriteConditions(if_match=etag),
        checksum_algorithm=None,
    )
    wanted = {
        "x-amz-copy-source-if-none-match": '"other"',
        "x-amz-metadata-directive": "REPLACE",
        "x-amz-meta-a": "1",
        "if-match": f'"{etag}"',
    }
    assert wanted.items() <= sent(proxy).items()
    assert "x-amz-tagging-directive" not in sent(proxy)


async def test_deletes_carry_an_md5_and_survive_odd_keys(
    origin: S3Origin, proxy: FlakyOrigin
) -> None:
    keys = ["b", "a&<b>", " spaced ", "\x01control", "plain"]
    for key in keys:
        await origin.put(ObjectRef("main", REF.bucket, key), BytesBody(b"x"), {}, ANY)
    results = await origin.delete_many(REF.bucket, [(key, None) for key in keys])
    assert [result.key for result in results] == keys
    assert [result.error_code for result in results] == [None] * len(keys)
    page = await origin.list_objects(REF.bucket, prefix="", delimiter="", after="", limit=1000)
    assert page.objects == ()
    heads = [head for head in proxy.seen.heads if b"?delete " in head]
    assert len(heads) == 1
    assert header(heads[0], "content-md5") is not None


async def test_a_multipart_upload_carries_its_checksums(
    origin: S3Origin, proxy: FlakyOrigin
) -> None:
    upload = await origin.create_upload(REF, {}, checksum_algorithm="CRC32", checksum_type=None)
    value = checksum("CRC32", b"part")
    body = BytesBody(b"part", checksums={"CRC32": value})
    part = await origin.put_part(REF, upload, 1, body, {})
    assert part.checksums == {"CRC32": value}
    named = CompletedPart(number=1, etag=part.etag, checksums={"CRC32": value})
    result = await origin.complete_upload(
        REF,
        upload,
        [named],
        WriteConditions(if_none_match_any=True),
        checksums={"CRC32": f"{value}-1"},
        checksum_type="COMPOSITE",
        headers={"x-amz-mp-object-size": "4"},
    )
    assert result.etag.endswith("-1")
    wanted = {
        "if-none-match": "*",
        "x-amz-checksum-crc32": f"{value}-1",
        "x-amz-checksum-type": "COMPOSITE",
        "x-amz-mp-object-size": "4",
    }
    assert wanted.items() <= sent(proxy).items()
