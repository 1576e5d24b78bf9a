"""The index: reads see every write at once, what `flush` confirmed survives, and trouble with the
file is told as what it is."""

import asyncio
import errno
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.held import HeldIndex, IndexLost, translated
from gateway.index.records import Table
from tests.waiting import until

MAX_BYTES = 16 * 1024**2
Error = OSError | IndexLost


class Owner:
    """Who gives the index room, and what the index told it."""

    def __init__(self, room_bytes: int = MAX_BYTES) -> None:
        self.room_bytes = room_bytes
        self.errors: list[Error] = []
        self.commits = 0

    async def grow(self, step_bytes: int) -> bool:
        if step_bytes > self.room_bytes:
            return False
        self.room_bytes -= step_bytes
        return True

    def committed(self) -> None:
        self.commits += 1


@asynccontextmanager
async def opened(
    path: Path, owner: Owner | None = None, *, max_bytes: int = MAX_BYTES
) -> AsyncIterator[HeldIndex]:
    owner = owner or Owner()
    index = HeldIndex(path / "index.lmdb", max_bytes)
    index.serve(grow=owner.grow, on_error=owner.errors.append, on_commit=owner.committed)
    try:
        yield index
    finally:
        await index.close()


async def test_a_write_is_seen_at_once_and_committed_a_little_later(tmp_path: Path) -> None:
    owner = Owner()
    async with opened(tmp_path, owner) as index:
        index.put(Table.CHUNKS, b"k", b"v")
        assert index.get(Table.CHUNKS, b"k") == b"v"
        assert index.get(Table.SMALL, b"k") is None
        assert index.committed(Table.CHUNKS, b"k") is None
        await until(lambda: index.committed(Table.CHUNKS, b"k") == b"v")
        index.delete(Table.CHUNKS, b"k")
        assert index.get(Table.CHUNKS, b"k") is None
        assert index.committed(Table.CHUNKS, b"k") == b"v"
        assert await index.flush()
        assert index.committed(Table.CHUNKS, b"k") is None
        assert owner.commits == 2


async def test_what_was_flushed_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as index:
        for number in range(100):
            index.put(Table.OBJECTS, b"%d" % number, b"v%d" % number)
        assert await index.flush()
        index.put(Table.OBJECTS, b"last", b"closing commits too")
    async with opened(tmp_path) as index:
        assert index.entries(Table.OBJECTS) == 101
        assert index.get(Table.OBJECTS, b"7") == b"v7"
        assert sorted(index.keys(Table.OBJECTS))[-1] == b"last"
        index.clear(Table.OBJECTS)
        assert index.entries(Table.OBJECTS) == 0


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "flush", "pause", "restart"]),
        st.sampled_from(list(Table)),
        st.sampled_from([b"a", b"b", b"c", b"d"]),
        st.binary(max_size=5000),
    ),
    max_size=40,
)


@given(operations=operations)
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_writes_reads_like_a_dict(
    operations: list[tuple[str, Table, bytes, bytes]],
) -> None:
    async def run(path: Path) -> None:
        expected: dict[tuple[Table, bytes], bytes] = {}
        following = iter(operations)
        more = True
        while more:
            more = False
            async with opened(path) as index:
                for operation, table, key, value in following:
                    match operation:
                        case "put":
                            index.put(table, key, value)
                            expected[table, key] = value
                        case "delete":
                            index.delete(table, key)
                            expected.pop((table, key), None)
                        case "flush":
                            assert await index.flush()
                            assert index.committed(table, key) == expected.get((table, key))
                        case "pause":
                            await asyncio.sleep(0)
                        case _:
                            more = True
                            break
                    for one in Table:
                        for name in (b"a", b"b", b"c", b"d"):
                            assert index.get(one, name) == expected.get((one, name))
        async with opened(path) as index:
            found = {
                (table, key): index.get(table, key) for table in Table for key in index.keys(table)
            }
        assert found == expected

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(run(Path(path)))


async def test_a_scan_shows_every_committed_entry_once_and_others_are_written_meanwhile(
    tmp_path: Path,
) -> None:
    expected = {b"%05d" % number: b"%d" % number for number in range(9000)}
    async with opened(tmp_path) as index:
        for key, value in expected.items():
            index.put(Table.SMALL, key, value)
        assert await index.flush()
        seen: list[tuple[bytes, bytes]] = []

        def visit(key: bytes, value: bytes) -> None:
            seen.append((key, value))

        scan = asyncio.create_task(index.scan(Table.SMALL, visit))
        index.put(Table.CHUNKS, b"meanwhile", b"v")
        assert await index.flush()
        await scan
        assert seen == sorted(expected.items())
        seen.clear()
        await index.scan(Table.SMALL, visit, limit=4000)
        assert len(seen) == 4000
        await index.scan(Table.EXTENTS, visit)
        assert len(seen) == 4000


async def test_the_map_grows_with_the_room_it_is_given_and_says_when_there_is_none(
    tmp_path: Path,
) -> None:
    owner = Owner(room_bytes=1024**2)
    rng = random.Random(1)
    async with opened(tmp_path, owner) as index:
        started = index.map_bytes
        number = 0
        while await index.flush():
            for _ in range(100):
                index.put(Table.CHUNKS, b"%08d" % number, rng.randbytes(1000))
                number += 1
        assert index.map_bytes - started == 1024**2 - owner.room_bytes
        assert (tmp_path / "index.lmdb").stat().st_size <= index.map_bytes
        assert isinstance(owner.errors[-1], OSError)
        assert owner.errors[-1].errno == errno.ENOSPC
        # What could not be committed is still answered, and committed once there is room.
        last = b"%08d" % (number - 1)
        assert index.get(Table.CHUNKS, last) is not None
        assert index.committed(Table.CHUNKS, last) is None
        owner.room_bytes = 4 * 1024**2
        assert await index.flush()
        assert index.committed(Table.CHUNKS, last) is not None


async def test_an_index_at_its_limit_is_lost(tmp_path: Path) -> None:
    owner = Owner()
    async with opened(tmp_path, owner, max_bytes=512 * 1024) as index:
        for number in range(1000):
            index.put(Table.CHUNKS, b"%d" % number, bytes(1000))
        assert not await index.flush()
        assert isinstance(owner.errors[-1], IndexLost)
        assert (tmp_path / "index.lmdb").stat().st_size <= 512 * 1024


async def test_entries_kept_below_the_limit_can_be_rewritten_forever(tmp_path: Path) -> None:
    owner = Owner()
    rng = random.Random(1)
    live: list[bytes] = []
    async with opened(tmp_path, owner, max_bytes=1024**2) as index:
        for turn in range(150):
            for number in range(100):
                key = rng.randbytes(16)
                live.append(key)
                index.put(Table.SMALL, key, bytes(200))
                if index.used_bytes() > index.limit_bytes:
                    for _ in range(len(live) // 8):
                        index.delete(Table.SMALL, live.pop(rng.randrange(len(live))))
                    assert await index.flush(), f"turn {turn}, entry {number}: {owner.errors}"
            assert await index.flush(), f"turn {turn}: {owner.errors}"
        assert index.used_bytes() > index.limit_bytes // 2
        assert not owner.errors


async def test_newer_writes_win_over_those_that_failed(tmp_path: Path) -> None:
    owner = Owner(room_bytes=0)
    async with opened(tmp_path, owner) as index:
        for number in range(1000):
            index.put(Table.CHUNKS, b"%d" % number, b"old" * 300)
        assert not await index.flush()
        index.put(Table.CHUNKS, b"5", b"new")
        index.delete(Table.CHUNKS, b"6")
        owner.room_bytes = MAX_BYTES
        assert await index.flush()
        assert index.committed(Table.CHUNKS, b"5") == b"new"
        assert index.committed(Table.CHUNKS, b"6") is None
        assert index.committed(Table.CHUNKS, b"7") == b"old" * 300


async def test_flushes_that_wait_together_are_all_told(tmp_path: Path) -> None:
    owner = Owner()
    async with opened(tmp_path, owner) as index:

        async def write(number: int) -> bool:
            index.put(Table.CHUNKS, b"%d" % number, b"v")
            return await index.flush()

        assert all(await asyncio.gather(*(write(number) for number in range(200))))
        assert index.entries(Table.CHUNKS) == 200
        assert owner.commits < 20


async def test_a_closed_index_answers_nothing_and_takes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as index:
        index.put(Table.CHUNKS, b"k", b"v")
        assert await index.close()
        index.put(Table.CHUNKS, b"k2", b"v")
        assert index.get(Table.CHUNKS, b"k") is None
        assert index.entries(Table.CHUNKS) == 0
        assert not await index.flush()
    async with opened(tmp_path) as index:
        assert index.keys(Table.CHUNKS) == [b"k"]


@pytest.mark.parametrize("raw", [b"x" * 10, b"garbage" * 2000])
def test_a_file_that_is_no_index_cannot_be_opened(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "index.lmdb").write_bytes(raw)
    with pytest.raises(lmdb.Error):
        HeldIndex(tmp_path / "index.lmdb", MAX_BYTES)


def test_lmdbs_errors_are_told_as_the_disks_or_as_a_lost_file(tmp_path: Path) -> None:
    path = tmp_path / "none" / "index.lmdb"
    with pytest.raises(lmdb.Error) as missing:
        lmdb.open(str(path), subdir=False)
    found = translated(missing.value, path)
    assert isinstance(found, OSError)
    assert found.errno == errno.ENOENT
    (tmp_path / "bad").write_bytes(b"garbage" * 2000)
    with pytest.raises(lmdb.Error) as bad:
        lmdb.open(str(tmp_path / "bad"), subdir=False)
    assert isinstance(translated(bad.value, path), IndexLost)


async def test_a_value_the_disk_has_changed_is_absent_whichever_bit_it_was(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    value = b"\x94\xa1k\x05remembered-value"
    index = HeldIndex(path, 1 << 20)
    index.put(Table.OBJECTS, b"key-of-it", value)
    assert await index.close()
    sound = path.read_bytes()
    at = sound.index(value)
    for bit in range(8 * len(value)):
        raw = bytearray(sound)
        raw[at + bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        index = HeldIndex(path, 1 << 20)
        assert index.get(Table.OBJECTS, b"key-of-it") is None
        assert index.damaged == 1
        index.abandon()


async def test_a_file_that_is_damaged_while_it_is_used_is_lost_and_answers_nothing(
    tmp_path: Path,
) -> None:
    owner = Owner()
    async with opened(tmp_path, owner) as index:
        for number in range(3000):
            index.put(Table.SMALL, b"%d" % number, bytes(50))
        assert await index.flush()
        path = tmp_path / "index.lmdb"
        with path.open("r+b") as file:
            file.seek(2 * 4096)
            file.write(bytes(path.stat().st_size - 2 * 4096))
        assert index.get(Table.SMALL, b"7") is None
        seen: list[bytes] = []
        await index.scan(Table.SMALL, lambda key, _: seen.append(key))
        assert seen == []
        assert len(owner.errors) == 2
        assert all(isinstance(error, IndexLost) for error in owner.errors)
