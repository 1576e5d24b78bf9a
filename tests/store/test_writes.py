"""Writing: the origin first, the cache warm, and no old answer after the new one."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import BadDigest, NoSuchKey, PreconditionFailed, TierUnavailable
from gateway.model.body import BytesBody
from gateway.model.conditions import UNCONDITIONAL, UNCONDITIONAL_WRITE, WriteConditions
from gateway.model.objects import CompletedPart
from tests.store.gated import CHUNK_BYTES, Bench
from tests.waiting import until

LARGE = random.Random(1).randbytes(3 * CHUNK_BYTES + 12_345)
SMALL = random.Random(2).randbytes(5000)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as made:
        yield made


async def _put(bench: Bench, key: str, body: bytes) -> None:
    await bench.service.put("train", key, BytesBody(body), {}, UNCONDITIONAL_WRITE)


@pytest.mark.parametrize("body", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
async def test_what_was_put_is_read_back_without_the_origin(bench: Bench, body: bytes) -> None:
    await _put(bench, "k", body)
    assert await bench.read("k") == body
    assert bench.origin.calls == {"put": 1}


async def test_an_overwrite_is_never_followed_by_the_old_answer(bench: Bench) -> None:
    for generation in range(20):
        body = bytes([generation]) * (5000 if generation % 2 else CHUNK_BYTES + 7)
        await _put(bench, "k", body)
        assert await bench.read("k") == body


async def test_a_delete_is_never_followed_by_the_old_answer(bench: Bench) -> None:
    await _put(bench, "k", SMALL)
    await bench.service.delete("train", "k")
    with pytest.raises(NoSuchKey):
        await bench.read("k")
    await _put(bench, "k", SMALL)
    await bench.service.delete_many("train", [("k", None), ("gone", None)])
    with pytest.raises(NoSuchKey):
        await bench.read("k")


async def test_while_a_write_is_under_way_readers_ask_the_origin(bench: Bench) -> None:
    await _put(bench, "k", b"old")
    bench.origin.write_gate.clear()
    writing = asyncio.create_task(_put(bench, "k", b"new"))
    while bench.origin.calls["put"] < 2:
        await asyncio.sleep(0)
    heads = bench.origin.calls["head"] + bench.origin.calls["open"]
    assert await bench.read("k") in (b"old", b"new")
    assert bench.origin.calls["head"] + bench.origin.calls["open"] > heads
    bench.origin.write_gate.set()
    await writing
    assert await bench.read("k") == b"new"


async def test_a_question_older_than_a_write_does_not_outlive_it(bench: Bench) -> None:
    await _put(bench, "k", b"old")
    bench.seconds += 3600
    bench.origin.open_gate.clear()
    asking = asyncio.create_task(bench.service.head("train", "k"))
    while not bench.origin.calls["head"]:
        await asyncio.sleep(0)
    await _put(bench, "k", b"new")
    bench.origin.open_gate.set()
    await asking
    assert await bench.read("k") == b"new"


async def test_overlapping_writes_leave_what_the_origin_has(bench: Bench) -> None:
    for round_number in range(10):
        bodies = [bytes([round_number, n]) * 3000 for n in range(8)]
        await asyncio.gather(*(_put(bench, "k", body) for body in bodies))
        found = await bench.read("k")
        ref = bench.service.bucket("train").ref("k")
        opened = await bench.origin.inner.open(ref)
        assert found == b"".join([block async for block in opened.blocks()])
        await opened.close()


async def test_a_write_the_origin_refuses_changes_nothing(bench: Bench) -> None:
    await _put(bench, "k", SMALL)
    only_new = WriteConditions(if_none_match_any=True)
    with pytest.raises(PreconditionFailed):
        await bench.service.put("train", "k", BytesBody(b"other"), {}, only_new)
    bench.origin.down = True
    with pytest.raises(TierUnavailable):
        await _put(bench, "k", b"other")
    bench.origin.down = False
    assert await bench.read("k") == SMALL


class _BadBody(BytesBody):
    async def read(self, limit_bytes: int = 262_144) -> bytes:
        block = await super().read(limit_bytes)
        if not block:
            raise BadDigest
        return block


async def test_a_body_that_does_not_verify_is_stored_nowhere(bench: Bench) -> None:
    for body in (SMALL, LARGE):
        with pytest.raises(BadDigest):
            await bench.service.put("train", "k", _BadBody(body), {}, UNCONDITIONAL_WRITE)
        with pytest.raises(NoSuchKey):
            await bench.read("k")
    assert await bench.disk.held_bytes("main", "train", "") == 0


async def test_a_copy_answers_the_source_bytes_under_the_new_key(bench: Bench) -> None:
    await _put(bench, "a", LARGE)
    await bench.service.copy(
        "train",
        "a",
        None,
        "train",
        "c",
        headers=None,
        tagging=None,
        source_conditions=UNCONDITIONAL,
        conditions=UNCONDITIONAL_WRITE,
        checksum_algorithm=None,
    )
    assert await bench.read("c") == LARGE


@pytest.mark.parametrize("part_bytes", [5 * CHUNK_BYTES, 5 * CHUNK_BYTES + 333])
async def test_a_completed_upload_is_warm(bench: Bench, part_bytes: int) -> None:
    body = random.Random(3).randbytes(2 * part_bytes + 1000)
    upload = await bench.service.create_upload(
        "train", "k", {}, checksum_algorithm=None, checksum_type=None
    )
    parts = []
    for number in (1, 2, 3):
        piece = body[(number - 1) * part_bytes : number * part_bytes]
        result = await bench.service.put_part("train", "k", upload, number, BytesBody(piece), {})
        parts.append(CompletedPart(number=number, etag=result.etag))
    await bench.service.complete_upload(
        "train",
        "k",
        upload,
        parts,
        UNCONDITIONAL_WRITE,
        checksums={},
        checksum_type=None,
        headers={},
    )
    await bench.service.settle()
    assert await bench.read("k") == body
    assert not bench.origin.read_bytes


async def test_an_aborted_upload_leaves_nothing_on_the_cache_disk(bench: Bench) -> None:
    before = bench.disk.usage().bytes
    upload = await bench.service.create_upload(
        "train", "k", {}, checksum_algorithm=None, checksum_type=None
    )
    await bench.service.put_part("train", "k", upload, 1, BytesBody(LARGE), {})
    assert bench.disk.usage().bytes > before + 3 * CHUNK_BYTES
    await bench.service.abort_upload("train", "k", upload)
    # A removed file's room is free once a thread has closed it; the index may have grown by a page
    # or two meanwhile.
    await until(lambda: bench.disk.usage().bytes < before + CHUNK_BYTES // 4)


async def test_staged_parts_keep_to_their_share_of_the_cache(bench: Bench) -> None:
    uploads = []
    for n in range(12):
        uploads.append(
            await bench.service.create_upload(
                "train", f"k{n}", {}, checksum_algorithm=None, checksum_type=None
            )
        )
        await bench.service.put_part("train", f"k{n}", uploads[n], 1, BytesBody(LARGE), {})
    assert bench.disk.usage().bytes <= bench.disk.usage().capacity_bytes // 2
