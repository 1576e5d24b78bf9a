"""Many at once: conditions hold, and an object that is there is never seen missing or wrong."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import (
    BucketNotEmpty,
    NoSuchBucket,
    NoSuchKey,
    OperationAborted,
    PreconditionFailed,
)
from gateway.model.body import BytesBody
from gateway.model.conditions import WriteConditions
from gateway.model.objects import CompletedPart, ObjectRef
from gateway.telemetry.metrics import Metrics
from gateway.tiers.origin_directory import DirectoryOrigin
from tests.tiers.origin_contract import ANY, ONLY_NEW, PART_BYTES, listed, md5, put, read_all


@pytest.fixture(params=["full", "plain"])
async def origin(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[DirectoryOrigin]:
    able = request.param == "full"
    origin = DirectoryOrigin("nas", tmp_path, Metrics(), attributes=able, exchanges=able)
    await origin.start()
    await origin.create_bucket("data")
    yield origin
    await origin.close()


def ref(key: str) -> ObjectRef:
    return ObjectRef("nas", "data", key)


async def test_of_many_first_writers_one_wins(origin: DirectoryOrigin) -> None:
    async def write(number: int) -> int | None:
        try:
            await put(origin, ref("a/b"), str(number).encode(), conditions=ONLY_NEW)
        except PreconditionFailed:
            return None
        return number

    won = [n for n in await asyncio.gather(*map(write, range(16))) if n is not None]
    assert len(won) == 1
    assert await read_all(origin, ref("a/b")) == str(won[0]).encode()


async def test_no_update_is_lost_to_another(origin: DirectoryOrigin) -> None:
    await put(origin, ref("count"), b"0")

    async def add() -> None:
        while True:
            etag = (await origin.head(ref("count"))).etag
            opened = await origin.open(ref("count"))
            value = int(b"".join([block async for block in opened.blocks()]))
            await opened.close()
            if opened.info.etag != etag:
                continue
            try:
                condition = WriteConditions(if_match=etag)
                await put(origin, ref("count"), str(value + 1).encode(), conditions=condition)
            except PreconditionFailed:
                continue
            return

    await asyncio.gather(*(add() for _ in range(8)))
    assert await read_all(origin, ref("count")) == b"8"


async def test_readers_never_miss_an_object_that_becomes_a_folder(
    origin: DirectoryOrigin,
) -> None:
    done = asyncio.Event()

    async def read() -> int:
        reads = 0
        while not done.is_set():
            assert await read_all(origin, ref("a")) == b"kept"
            assert (await origin.head(ref("a"))).etag == md5(b"kept")
            assert (await listed(origin, "data"))[0] == "a"
            reads += 1
        return reads

    await put(origin, ref("a"), b"kept")
    readers = [asyncio.create_task(read()) for _ in range(3)]
    for _ in range(25):
        await put(origin, ref("a/b"), b"x")
        await origin.delete(ref("a/b"), ANY)
        # Renamed over, it is a file again only once the folder is gone.
        await put(origin, ref("a"), b"kept")
        folder = await origin.list_objects("data", prefix="a/", delimiter="", after="", limit=1)
        assert folder.objects == ()
    done.set()
    assert min(await asyncio.gather(*readers)) > 0


async def test_readers_never_miss_an_object_while_it_moves(
    origin: DirectoryOrigin, tmp_path: Path
) -> None:
    """Each round begins with a file, so that each write below it is a relocation."""
    for number in range(15):
        key = f"round{number}"
        await put(origin, ref(key), b"kept")
        assert (tmp_path / "data" / key).is_file()
        done = asyncio.Event()

        async def read(key: str = key, done: asyncio.Event = done) -> None:
            while not done.is_set():
                assert await read_all(origin, ref(key)) == b"kept"
                assert key in await listed(origin, "data")

        readers = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.gather(*(put(origin, ref(f"{key}/{below}"), b"x") for below in "pqr"))
        done.set()
        await asyncio.gather(*readers)
        assert (tmp_path / "data" / key).is_dir()


async def test_a_key_and_its_folder_come_and_go_together(origin: DirectoryOrigin) -> None:
    keys = ("a", "a/b", "a/b/c", "a/d")

    async def churn(key: str) -> None:
        for number in range(25):
            data = f"{key} {number}".encode()
            await put(origin, ref(key), data)
            assert await read_all(origin, ref(key)) == data
            await origin.delete(ref(key), ANY)
            with pytest.raises(NoSuchKey):
                await origin.head(ref(key))

    await asyncio.gather(*map(churn, keys))
    assert await listed(origin, "data") == []
    await origin.delete_bucket("data")


async def test_writers_of_one_key_leave_one_of_their_objects(origin: DirectoryOrigin) -> None:
    async def write(number: int) -> None:
        for _ in range(10):
            data = bytes([number]) * 70_000
            await put(origin, ref("a"), data, {"x-amz-meta-n": str(number)})
            opened = await origin.open(ref("a"))
            seen = b"".join([block async for block in opened.blocks()])
            await opened.close()
            assert opened.info.headers["x-amz-meta-n"] == str(seen[0])
            assert opened.info.etag == md5(seen)
            assert len(set(seen)) == 1

    await asyncio.gather(*map(write, range(6)))


async def test_a_bucket_is_deleted_or_written_to_but_not_both(origin: DirectoryOrigin) -> None:
    for number in range(15):
        bucket = f"bucket{number}"
        await origin.create_bucket(bucket)
        target = ObjectRef("nas", bucket, "a/b")
        results = await asyncio.gather(
            put(origin, target, b"x"),
            origin.delete_bucket(bucket),
            put(origin, target, b"x"),
            return_exceptions=True,
        )
        deleted = results[1] is None
        if deleted:
            with pytest.raises(NoSuchBucket):
                await origin.head(target)
            assert all(isinstance(results[i], NoSuchBucket | str) for i in (0, 2)), results
        else:
            assert isinstance(results[1], BucketNotEmpty)
        if any(isinstance(results[i], str) for i in (0, 2)):
            assert not deleted
            assert await read_all(origin, target) == b"x"


async def test_an_upload_ends_once(origin: DirectoryOrigin) -> None:
    upload = await origin.create_upload(ref("a"), {}, checksum_algorithm=None, checksum_type=None)
    data = b"x" * PART_BYTES
    result = await origin.put_part(ref("a"), upload, 1, BytesBody(data), {})
    parts = [CompletedPart(number=1, etag=result.etag)]
    outcomes = await asyncio.gather(
        *(
            origin.complete_upload(
                ref("a"), upload, parts, ANY, checksums={}, checksum_type=None, headers={}
            )
            for _ in range(4)
        ),
        origin.abort_upload(ref("a"), upload),
        return_exceptions=True,
    )
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(failed) == 4
    assert all(
        isinstance(outcome, OperationAborted) or type(outcome).__name__ == "NoSuchUpload"
        for outcome in failed
    )
    if outcomes[4] is not None:
        assert await read_all(origin, ref("a")) == data
