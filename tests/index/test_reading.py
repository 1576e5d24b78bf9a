"""The index read by another process while this one writes it: what is committed is found, and the
writer is never in its way nor it in the writer's."""

import asyncio
import errno
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gateway.index.held import HeldIndex, IndexLost
from gateway.index.reading import HeldReader
from gateway.index.records import Table
from tests.beside import Other, other_process
from tests.waiting import until_it

MAX_BYTES = 16 * 1024**2


async def room(step_bytes: int) -> bool:
    return True


def writing(path: Path, errors: list[object] | None = None) -> HeldIndex:
    index = HeldIndex(path, MAX_BYTES)
    noted: list[object] = [] if errors is None else errors
    index.serve(grow=room, on_error=noted.append, on_commit=lambda: None)
    return index


def reading(path: Path, map_bytes: int = 1024**2) -> AbstractAsyncContextManager[Other]:
    return other_process("tests.index.other_process", path, map_bytes)


async def until_found(other: Other, key: str, value: str | None) -> None:
    async def is_found() -> bool:
        found: str | None = await other.ask("get", table="SMALL", key=key)
        return found == value

    await until_it(is_found, f"{key} is {value}")


async def test_what_is_committed_is_found_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    async with reading(path) as other:
        # Before there is any index.
        assert await other.ask("get", table="SMALL", key="k") is None
        index = writing(path)
        index.put(Table.SMALL, b"k", b"v")
        assert await index.flush()
        await until_found(other, "k", "v")
        assert await other.ask("get", table="CHUNKS", key="k") is None
        index.put(Table.SMALL, b"k", b"w")
        assert await index.flush()
        assert await other.ask("get", table="SMALL", key="k") == "w"
        index.delete(Table.SMALL, b"k")
        assert await index.flush()
        assert await other.ask("get", table="SMALL", key="k") is None
        assert await index.close()


async def test_a_map_that_grows_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    index = writing(path)
    began = index.map_bytes
    async with reading(path, map_bytes=65_536) as other:
        for turn in range(8):
            for number in range(200):
                index.put(Table.SMALL, b"%d-%d" % (turn, number), b"x" * 2000)
            index.put(Table.SMALL, b"last", b"%d" % turn)
            assert await index.flush()
            await until_found(other, "last", str(turn))
            assert await other.ask("get", table="SMALL", key=f"{turn}-199") == "x" * 2000
        assert index.map_bytes > 4 * began
        assert await index.close()


@pytest.mark.parametrize("map_bytes", [65_536, 1024**3])
async def test_reads_beside_writes_see_each_value_whole_and_none_grow_older(
    tmp_path: Path, map_bytes: int
) -> None:
    path = tmp_path / "index.lmdb"
    errors: list[object] = []
    index = writing(path, errors)
    rng = random.Random(1)
    async with reading(path, map_bytes) as one, reading(path, map_bytes) as two:
        watching = [
            asyncio.create_task(other.ask("watch", seconds=2, keys=200)) for other in (one, two)
        ]
        turn = 0
        while not all(task.done() for task in watching):
            for number in rng.sample(range(200), 50):
                index.put(Table.SMALL, b"%d" % number, b"%08d" % turn + bytes(rng.randrange(3000)))
            assert await index.flush(), errors
            turn += 1
        for task in watching:
            seen = await task
            assert seen["reads"] > 1000
            assert seen["backwards"] == 0
            assert seen["damaged"] == 0
    assert not errors
    assert turn > 10
    assert await index.close()


async def test_the_slot_of_a_reader_that_was_killed_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    index = writing(path)
    index.put(Table.SMALL, b"k", b"v")
    assert await index.flush()
    async with reading(path) as killed, reading(path) as living:
        assert await killed.ask("die reading") == "reading"
        assert await living.ask("get", table="SMALL", key="k") == "v"
        assert await index.clear_dead_readers() == 0
        await killed.kill()
        assert await index.clear_dead_readers() == 1
        assert await index.clear_dead_readers() == 0
        index.put(Table.SMALL, b"k", b"w")
        assert await index.flush()
        assert await living.ask("get", table="SMALL", key="k") == "w"
    assert await index.close()


async def test_pages_are_used_again_once_a_killed_reader_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    index = writing(path)

    async def rewrite() -> None:
        for turn in range(30):
            for number in range(50):
                index.put(Table.SMALL, b"%d" % number, b"%d" % turn * 500)
            assert await index.flush()

    await rewrite()
    async with reading(path) as killed:
        await killed.ask("die reading")
        await killed.kill()
    await index.clear_dead_readers()
    await rewrite()
    settled = path.stat().st_size
    for _ in range(3):
        await rewrite()
    assert path.stat().st_size == settled
    assert await index.close()


async def test_a_reader_that_is_held_up_costs_a_wait_and_not_the_index(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    errors: list[OSError | IndexLost] = []
    index = HeldIndex(path, 512 * 1024)
    index.serve(grow=room, on_error=errors.append, on_commit=lambda: None)
    async with reading(path) as stuck:
        await stuck.ask("die reading")
        turn = 0
        while not errors:
            for number in range(50):
                index.put(Table.SMALL, b"%d" % number, b"%d" % turn * 500)
            await index.flush()
            turn += 1
            assert turn < 200
        assert isinstance(errors[0], OSError)
        assert errors[0].errno == errno.EBUSY
        assert index.get(Table.SMALL, b"7") == b"%d" % (turn - 1) * 500
        await stuck.kill()
    # What could not be written waits, and nothing of it is lost.
    assert await index.flush()
    assert index.committed(Table.SMALL, b"7") == b"%d" % (turn - 1) * 500
    assert await index.close()


async def test_an_index_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    async with reading(path) as other:
        for turn in range(4):
            index = writing(path)
            assert index.keys(Table.SMALL) == []
            index.put(Table.SMALL, b"turn", b"%d" % turn)
            assert await index.flush()
            await until_found(other, "turn", str(turn))
            assert await index.close()
            path.unlink()
            path.with_name("index.lmdb-lock").unlink()
            await until_found(other, "turn", None)


async def test_a_keeper_that_comes_back_finds_its_index_while_others_read_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index.lmdb"
    async with reading(path) as other:
        for turn in range(4):
            index = writing(path)
            if turn:
                assert index.get(Table.SMALL, b"turn") == b"%d" % (turn - 1)
            index.put(Table.SMALL, b"turn", b"%d" % turn)
            assert await index.flush()
            await until_found(other, "turn", str(turn))
            assert await index.close()
            assert await other.ask("get", table="SMALL", key="turn") == str(turn)


async def test_a_value_the_disk_has_changed_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "index.lmdb"
    index = writing(path)
    index.put(Table.SMALL, b"key", b"value" * 10)
    assert await index.close()
    raw = path.read_bytes()
    at = raw.rindex(b"value")
    path.write_bytes(raw[:at] + b"VALUE" + raw[at + 5 :])
    reader = HeldReader(path)
    assert reader.get(Table.SMALL, b"key") is None
    assert reader.damaged == 1
    reader.close()
    assert reader.get(Table.SMALL, b"key") is None


@pytest.mark.parametrize("raw", [b"", b"x" * 10, b"garbage" * 2000])
def test_a_file_that_is_no_index_is_read_as_if_there_were_none(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "index.lmdb"
    path.write_bytes(raw)
    reader = HeldReader(path)
    assert reader.get(Table.SMALL, b"key") is None
    reader.close()


def test_whether_the_file_was_replaced_is_asked_a_few_times_a_second_at_most(
    tmp_path: Path,
) -> None:
    clock = [0.0]
    reader = HeldReader(tmp_path / "index.lmdb", now=lambda: clock[0])
    assert reader.get(Table.SMALL, b"k") is None

    async def write() -> None:
        index = writing(tmp_path / "index.lmdb")
        index.put(Table.SMALL, b"k", b"v")
        assert await index.close()

    asyncio.run(write())
    assert reader.get(Table.SMALL, b"k") is None
    clock[0] += 0.25
    assert reader.get(Table.SMALL, b"k") == b"v"
    reader.close()
