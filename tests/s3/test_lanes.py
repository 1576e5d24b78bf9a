"""Two lanes, one way of being correct: whatever is asked, both give the same bytes, the same counts
and the same line in the log."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from tests.node.process import s3_origin_settings
from tests.origins import moto_server
from tests.s3.made_up_reads import MadeUpReads, Signer, Stored
from tests.s3.running import ACCESS_KEY, RESTRICTED, SECRET_KEY, Running, call, client_of, running
from tests.s3.twins import Door
from tests.waiting import until, until_it

_CHUNK_BYTES = 1024**2
_SMALL_BYTES = 65_536
_SIZES = {
    "empty": 0,
    "one": 1,
    "few": 777,
    "a b": 5000,
    "ü/ñ+%&=": 4096,
    "a//b'\"(!*)": 20_000,
    "tilde~-_.": 33,
    "small": _SMALL_BYTES - 1,
    "edge": _SMALL_BYTES,
    "beyond": _SMALL_BYTES + 1,
    "files": 200_000,
    "chunk": _CHUNK_BYTES,
    "chunks": 2 * _CHUNK_BYTES + 12_345,
}
_KINDS: dict[str, dict[str, Any]] = {
    "mutable": {"freshness_seconds": 3600},
    "fixed": {"immutable": True},
    "open": {"public_read": True, "freshness_seconds": 3600},
    "strict": {"freshness_seconds": 0},
}
_KEYS = {
    "mutable": [*_SIZES],
    "fixed": ["empty", "few", "ü/ñ+%&=", "small", "chunks"],
    "open": ["few", "files"],
    "strict": ["few"],
    "cloud": ["empty", "a b", "edge", "chunks"],
}
_PART_BYTES = 5 * _CHUNK_BYTES
_PARTS_BYTES = _PART_BYTES + 4321
_READS = 400
_SIGNERS = [
    Signer(ACCESS_KEY, SECRET_KEY),
    Signer(ACCESS_KEY, SECRET_KEY, expires_seconds=600),
    Signer(ACCESS_KEY, SECRET_KEY, expires_seconds=600),
    Signer(RESTRICTED, SECRET_KEY),
    Signer(RESTRICTED, SECRET_KEY, expires_seconds=600),
    Signer(ACCESS_KEY, "wrong"),
    Signer(ACCESS_KEY, "wrong", expires_seconds=600),
    Signer("stranger", SECRET_KEY),
    Signer(ACCESS_KEY, SECRET_KEY, timedelta(hours=-1)),
    Signer(ACCESS_KEY, SECRET_KEY, timedelta(days=2)),
    Signer(ACCESS_KEY, SECRET_KEY, timedelta(hours=-1), expires_seconds=600),
]
_DESCRIBED: dict[str, Any] = {
    "ContentType": "image/x-odd",
    "CacheControl": "max-age=1",
    "ContentDisposition": "attachment",
    "ContentLanguage": "de",
    "Metadata": {"epoch": "3", "text": "=?UTF-8?B?w7w=?="},
    "Tagging": "a=b&c=d",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _chance() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown where a test fails
    return random.Random(seed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A node over a directory and an S3 service."""
    folder = tmp_path_factory.mktemp("lanes")
    with moto_server(folder) as moto:
        async with running(
            folder,
            origins={"cloud": s3_origin_settings(moto.url, folder)},
            buckets={**_KINDS, "cloud": {"origin": "cloud", "freshness_seconds": 3600}},
            policy=[{"allow": ["GetObject"], "buckets": ["mutable/f*", "fixed"]}],
        ) as started:
            yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def objects(node: Running) -> list[Stored]:
    """Objects of many kinds, all of them held by the node."""
    chance = random.Random(1)
    s3 = node.client()
    (node.root / "mutable").mkdir()
    (node.root / "mutable" / "past").write_bytes(chance.randbytes(100_000))
    for bucket, keys in _KEYS.items():
        await call(s3.create_bucket, Bucket=bucket)
        for key in keys:
            described = _DESCRIBED if chance.random() < 0.5 else {}
            body = chance.randbytes(_SIZES[key])
            await call(s3.put_object, Bucket=bucket, Key=key, Body=body, **described)
    for bucket in ("mutable", "cloud"):
        await asyncio.to_thread(_put_in_parts, s3, bucket, chance.randbytes(_PARTS_BYTES))
    await call(
        s3.put_bucket_versioning, Bucket="cloud", VersioningConfiguration={"Status": "Enabled"}
    )
    for body in (b"old", b"new"):
        await call(s3.put_object, Bucket="cloud", Key="versions", Body=body)
    past = node.node.service.bucket("mutable").ref("past")

    async def is_cacheable() -> bool:
        return (await node.node.origins["main"].head(past)).cacheable

    # A file written just now may be written again unseen, so it is not kept yet.
    await until_it(is_cacheable, "the file is cacheable")
    found = []
    for bucket in _KEYS:
        listed = await call(s3.list_objects_v2, Bucket=bucket)
        found += [await _warm(s3, bucket, entry["Key"]) for entry in listed["Contents"]]
    await until(lambda: not node.node.service.fills())
    s3.close()
    return found


def _put_in_parts(s3: Any, bucket: str, body: bytes) -> None:
    where = {"Bucket": bucket, "Key": "parts"}
    upload = s3.create_multipart_upload(**where, **_DESCRIBED)["UploadId"]
    parts = [
        {
            "PartNumber": number,
            "ETag": s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=part)["ETag"],
        }
        for number, part in enumerate((body[:_PART_BYTES], body[_PART_BYTES:]), 1)
    ]
    s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})


def _read(s3: Any, **where: str) -> None:
    s3.get_object(**where)["Body"].read()


async def _warm(s3: Any, bucket: str, key: str) -> Stored:
    """Reads an object in all ways that bring something to the node."""
    where = {"Bucket": bucket, "Key": key}
    told = await call(s3.head_object, **where, ChecksumMode="ENABLED")
    versions = [told.get("VersionId", "null")]
    for version in ({}, {"VersionId": versions[0]}):
        await call(s3.head_object, **where, **version, ChecksumMode="ENABLED")
        await call(_read, s3=s3, **where, **version, ChecksumMode="ENABLED")
    date = format_datetime(told["LastModified"].astimezone(UTC), usegmt=True)
    return Stored(bucket, key, told["ContentLength"], told["ETag"].strip('"'), date, versions)


@pytest_asyncio.fixture(loop_scope="module")
async def doors(node: Running) -> AsyncIterator[tuple[Door, Door]]:
    """The way in that may be fast, and the way in that never is."""
    now = time.time()
    async with Door(node, shut=False, now=now) as fast, Door(node, shut=True, now=now) as long:
        yield fast, long


async def test_every_read_is_answered_alike_on_both_lanes(
    doors: tuple[Door, Door], objects: list[Stored]
) -> None:
    chance = _chance()
    fast, long = doors
    reads = MadeUpReads(chance, objects, _SIGNERS, f"127.0.0.1:{fast.door.port}")
    asked = 0
    while asked < _READS:
        requests = [reads.draw() for _ in range(chance.choice([1, 1, 1, 2, 5]))]
        ours, theirs = await fast.ask(*requests), await long.ask(*requests)
        for request, one, other in zip(requests, ours, theirs, strict=False):
            assert one == other, request
        assert len(ours) == len(theirs), requests
        asked += len(ours)
        told = await fast.told(len(ours)), await long.told(len(theirs))
        assert told[0] == told[1], requests
    assert fast.counted() == long.counted()
    assert long.watched.answered == 0
    # Else nothing was compared.
    assert fast.watched.answered > _READS / 4


async def test_what_boto3_sends_goes_the_fast_lane_on_one_connection(
    doors: tuple[Door, Door], objects: list[Stored]
) -> None:
    fast, long = doors
    held = [stored for stored in objects if stored.bucket in ("fixed", "mutable", "cloud")]
    requests = await _sent_by_boto3(held)
    for request in requests:
        assert await fast.ask(request) == await long.ask(request), request
    count = len(requests)
    assert await fast.told(count) == await long.told(count)
    assert fast.counted() == long.counted()
    assert (fast.watched.answered, fast.watched.refused) == (count, 0)


async def _sent_by_boto3(objects: list[Stored]) -> list[tuple[str, bytes]]:
    """The requests that boto3 makes of reads of these objects, byte by byte."""
    sent: list[tuple[str, bytes]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        sent.append((request.split()[0].decode(), request))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        s3 = client_of(f"http://127.0.0.1:{port}")
        for stored in objects:
            where = {"Bucket": stored.bucket, "Key": stored.key}
            for read, how in (
                (s3.get_object, {}),
                (s3.head_object, {}),
                (s3.get_object, {"Range": "bytes=0-"} if stored.size_bytes else {}),
                (s3.get_object, {"IfMatch": stored.etag, "ResponseContentType": "a/b"}),
            ):
                with contextlib.suppress(ClientError):
                    await call(read, **where, **how)
        s3.close()
    return sent
