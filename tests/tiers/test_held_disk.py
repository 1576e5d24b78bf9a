"""The cache read by other processes while this one keeps it: they find what is held, and this one
hears what they read and what they found corrupt."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.index.records import chunk_key
from gateway.model.objects import ObjectVersion
from gateway.s3.frames import LIMIT_BYTES as FRAME_BYTES
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.held_disk import HeldDisk
from gateway.tiers.notes import Notebook, Notes
from gateway.tiers.packed import growing
from tests.beside import Other, other_process
from tests.tiers.cached import (
    CHUNK_BYTES,
    KIB,
    MIB,
    SMALL_BYTES,
    cache_config,
    chunks,
    content,
    files,
    get,
    info,
    opened,
    put,
    sample,
    settled,
    version,
)
from tests.waiting import until, until_it

SMALL = version("small", 4 * KIB)
BLOCK = version("block", SMALL_BYTES)
LARGE = version("large", 2 * CHUNK_BYTES + 5)
ALL = [SMALL, BLOCK, LARGE]


def reading(path: Path) -> AbstractAsyncContextManager[Other]:
    return other_process("tests.tiers.other_process", path)


async def read(other: Other, of: ObjectVersion) -> Any:
    return await other.ask("read", key=of.ref.key, size=of.size_bytes, etag=of.etag)


async def notes_of(other: Other) -> Notes:
    raw = await other.ask("notes")
    return Notes(
        {bytes.fromhex(key): times for key, times in raw["small_reads"].items()},
        {bytes.fromhex(key): times for key, times in raw["chunk_uses"].items()},
        {bytes.fromhex(key): bytes.fromhex(of) for key, of in raw["corrupt_small"].items()},
        {bytes.fromhex(key): inode for key, inode in raw["corrupt_chunks"].items()},
    )


async def keep(tier: DiskTier) -> None:
    for one in ALL:
        await put(tier, one)
        await tier.remember(one.ref, info(one))
    await settled(tier)


async def test_what_is_held_is_found_read_and_sent_by_another_process(tmp_path: Path) -> None:
    async with reading(tmp_path) as other:
        # Before there is any cache.
        assert await read(other, SMALL) == [None]
        async with opened(cache_config(tmp_path)) as tier:
            await keep(tier)

            async def is_there() -> bool:
                return bool(await read(other, SMALL) == ["now"])

            await until_it(is_there)
            assert await read(other, BLOCK) in (["now"], ["thread"])
            assert await read(other, BLOCK) == ["sent"]
            assert set(await read(other, LARGE)) <= {"now", "thread"}
            assert await read(other, LARGE) == ["sent"] * 3
            assert await read(other, version("small", 4 * KIB, "e2")) == [None]
            assert await other.ask("recall", key="small") == "e1"
            assert await other.ask("recall", key="nothing") is None
        # The keeper may go and come back.
        assert await read(other, LARGE) == ["sent"] * 3
        async with opened(cache_config(tmp_path)):
            assert await read(other, LARGE) == ["sent"] * 3


async def test_what_is_not_written_yet_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_FLUSH_SECONDS", 1000)
    async with opened(cache_config(tmp_path)) as tier, reading(tmp_path) as other:
        await put(tier, SMALL)
        assert await read(other, SMALL) == [None]
        await settled(tier)
        assert await read(other, SMALL) != [None]


async def test_what_is_forgotten_is_not_recalled_by_anyone(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier, reading(tmp_path) as other:
        await keep(tier)
        assert await other.ask("recall", key="small") == "e1"
        await tier.forget(SMALL.ref)
        assert await other.ask("recall", key="small") is None


async def test_files_that_were_removed_are_let_go_of_soon(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier, reading(tmp_path) as other:
        await keep(tier)
        for one in ALL:
            await read(other, one)
        assert await other.ask("hold", key="large", size=LARGE.size_bytes)
        assert await other.ask("removed") == 0
        assert tier._holding is not None
        for one in ALL:
            await tier.forget(one.ref)
        await tier._holding.chunks.settle()
        assert not files(tmp_path, "chunks")

        async def one_left() -> bool:
            return bool(await other.ask("removed") == 1)

        # All but the one that is being read.
        await until_it(one_left)
        await other.ask("let go")

        async def none_left() -> bool:
            return bool(await other.ask("removed") == 0)

        await until_it(none_left)


async def test_what_another_process_reads_counts_as_read(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier, reading(tmp_path) as other:
        await keep(tier)
        holding = tier._holding
        assert holding is not None
        for _ in range(3):
            await read(other, SMALL)
            await read(other, LARGE)
        notes = await notes_of(other)
        assert notes.small_reads == {SMALL.digest: 3}
        # Reads that follow on each other are one use of a chunk.
        assert notes.chunk_uses == {chunk_key(LARGE.digest, number): 1 for number in range(3)}
        assert not await notes_of(other)
        [shard] = [item for item in holding.policy._entries if isinstance(item, int)]
        before = holding.policy._entries[shard].reads
        tier.note(notes)
        worth = 3 * SMALL.size_bytes / holding.small._shard_bytes
        assert holding.policy._entries[shard].reads == pytest.approx(before + worth)
        # Counted up to the most that counts.
        tier.note(notes)
        assert holding.policy._entries[shard].reads == pytest.approx(before + worth)


async def test_chunks_that_only_others_read_stay_when_room_is_needed(tmp_path: Path) -> None:
    clock = [0.0]
    config = cache_config(tmp_path, 8 * MIB)
    tier = DiskTier(config, Metrics(), now=lambda: clock[0])
    await tier.start()
    objects = [version(f"k{number}", CHUNK_BYTES) for number in range(100)]
    before, wanted, passing = objects[:40], objects[40:44], objects[44:]
    uses = {chunk_key(one.digest, 0): 1 for one in wanted}
    for one in before:
        await put(tier, one)
    for one in (*wanted, *passing):
        await put(tier, one)
        # Later than what counts as one use with the chunks' coming.
        clock[0] += 3
        tier.note(Notes({}, uses, {}, {}))
    for one in wanted:
        assert await get(tier, one) == content(one)
    assert await get(tier, passing[0]) is None
    await tier.close()


@pytest.mark.parametrize("of", [SMALL, BLOCK, version("chunk", CHUNK_BYTES)], ids=str)
async def test_what_another_process_finds_corrupt_is_dropped_once(
    tmp_path: Path, of: ObjectVersion
) -> None:
    metrics = Metrics()
    async with opened(cache_config(tmp_path), metrics) as tier, reading(tmp_path) as other:
        await put(tier, of)
        await settled(tier)
        [path] = files(tmp_path, "chunks", "shards")
        raw = path.read_bytes()
        at = raw.index(content(of)[:100])
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert await read(other, of) in ([None], ["corrupt"])
        notes = await notes_of(other)
        assert len(notes.corrupt_small) + len(notes.corrupt_chunks) == 1
        assert sample(metrics, "feedrack_cache_corrupt_total") == 0
        tier.note(notes)
        assert sample(metrics, "feedrack_cache_corrupt_total") == 1
        assert await tier.open(chunks(of)[0]) is None
        # It comes in anew; the note of the old one, told again, does it no harm.
        await put(tier, of)
        await settled(tier)
        tier.note(notes)
        assert sample(metrics, "feedrack_cache_corrupt_total") == 1
        assert await get(tier, of) == content(of)
        # It may have the old file open still: that is nothing to tell the keeper.
        await read(other, of)
        assert await read(other, of) not in ([None], ["corrupt"])
        assert not (await notes_of(other)).corrupt_chunks


async def test_a_cache_that_starts_over_is_found_again(tmp_path: Path) -> None:
    config = cache_config(tmp_path)
    async with (
        opened(config, look_seconds=0.05) as tier,
        reading(tmp_path) as other,
    ):
        await keep(tier)
        await read(other, SMALL)
        first = tier._holding
        assert first is not None
        tier._lost = "a test has it so"
        tier._look_now.set()
        await until(lambda: tier._holding not in (None, first) and tier.accepting)

        async def gone() -> bool:
            return bool(await read(other, SMALL) == [None])

        await until_it(gone)
        await keep(tier)

        async def back() -> bool:
            return bool(await read(other, LARGE) == ["sent"] * 3)

        await until_it(back)

        async def small_too() -> bool:
            return bool(await read(other, SMALL) == ["now"])

        await until_it(small_too)


async def test_a_reader_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path), look_seconds=0.05) as tier:
        await keep(tier)
        for _ in range(3):
            async with reading(tmp_path) as other:
                assert await other.ask("hold", key="large", size=LARGE.size_bytes)
                await other.kill()
        for one in ALL:
            assert await get(tier, one) == content(one)
        assert tier.accepting


async def test_many_processes_read_what_is_taken_in_and_evicted_beside_them(
    tmp_path: Path,
) -> None:
    objects = [version(f"k{number}", 1000 + number * 9000) for number in range(40)]
    metrics = Metrics()
    async with (
        opened(cache_config(tmp_path, 6 * MIB), metrics) as tier,
        reading(tmp_path) as one,
        reading(tmp_path) as two,
    ):

        async def follow(other: Other) -> int:
            found = 0
            for turn in range(150):
                of = objects[(turn * 7) % len(objects)]
                for how in await read(other, of):
                    assert how not in ("wrong", "corrupt")
                    found += how is not None
                tier.note(await notes_of(other))
            return found

        following = [asyncio.create_task(follow(other)) for other in (one, two)]
        turn = 0
        while not all(task.done() for task in following):
            of = objects[turn % len(objects)]
            if await get(tier, of) is None:
                await put(tier, of)
            turn += 1
            await asyncio.sleep(0)
        assert sum([await task for task in following]) > 0
        assert sample(metrics, "feedrack_cache_corrupt_total") == 0
        assert tier.accepting


async def test_notes_are_bounded(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await keep(tier)
        holding = tier._holding
        assert holding is not None
        record = holding.small._lookup.decode(SMALL.digest)
        assert record is not None
        # Ten entries in each table but for that of records, which are longer.
        book = Notebook(limit_bytes=10 * 18)
        for number in range(100):
            book.small.read(b"%d" % number, record)
            book.small.read(b"5", record)
            book.small.corrupt(b"%d" % number, record, "test")
            book.chunks.used(b"%d" % number)
        notes = book.take()
        assert len(notes.small_reads) == len(notes.chunk_uses) == 10
        assert 1 <= len(notes.corrupt_small) < 10
        assert notes.small_reads[b"5"] == 101
        assert not book.take()
        # They travel as bytes, and what names nothing does no harm.
        raw = msgspec.msgpack.encode(notes)
        tier.note(msgspec.msgpack.decode(raw, type=Notes))
        assert await get(tier, SMALL) == content(SMALL)


async def test_the_largest_notes_fit_a_frame(tmp_path: Path) -> None:
    async with opened(cache_config(tmp_path)) as tier:
        await keep(tier)
        holding = tier._holding
        assert holding is not None
        record = holding.small._lookup.decode(SMALL.digest)
        assert record is not None
        book = Notebook()
        for number in range(100_000):
            digest = number.to_bytes(32)
            key = chunk_key(digest, number)
            book.small.corrupt(digest, record, "test")
            for table in (book.small.reads, book.chunks.uses, book.chunks.corrupted):
                # The longest that a number can be.
                table.add(digest if table is book.small.reads else key, 2**63)
        notes = book.take()
        for told in (notes.small_reads, notes.chunk_uses, notes.corrupt_chunks):
            assert 5000 < len(told) < 100_000
        assert 1000 < len(notes.corrupt_small) < 100_000
        assert FRAME_BYTES // 8 < len(msgspec.msgpack.encode(notes)) <= FRAME_BYTES
        assert not book.take()
        book.small.read(SMALL.digest, record)
        assert book.take().small_reads == {SMALL.digest: 1}


async def test_a_disk_without_a_keeper_holds_nothing(tmp_path: Path) -> None:
    disk = HeldDisk(cache_config(tmp_path / "none"))
    await disk.start()
    assert disk.name == "disk"
    assert disk.open_now(chunks(SMALL)[0]) is None
    assert await disk.open(chunks(LARGE)[0]) is None
    assert disk.recall(SMALL.ref) is None
    assert not disk.take_notes()
    await disk.close()
    assert disk.open_now(chunks(SMALL)[0]) is None
