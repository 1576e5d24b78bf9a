"""Pieces of memory: lent, looked at from many places, and back in the pool when nobody looks."""

import asyncio
import mmap
import random
import threading

import pytest

from gateway.tiers.pieces import Piece, Pieces

PIECE_BYTES = 4 * mmap.PAGESIZE


def pool(pieces: int) -> Pieces:
    return Pieces(pieces * PIECE_BYTES, PIECE_BYTES)


async def test_a_piece_is_whole_and_writable_and_begins_on_a_page() -> None:
    memory = await pool(1).take()
    assert (len(memory), memory.format, memory.readonly) == (PIECE_BYTES, "B", False)
    memory[:3] = b"abc"
    assert bytes(memory[1:3]) == b"bc"


async def test_a_piece_is_out_as_long_as_any_view_of_it() -> None:
    pieces = pool(1)
    memory = await pieces.take()
    slices = [memory[10:20], memoryview(memory)[5:]]
    del memory
    while slices:
        assert pieces.lent_bytes == PIECE_BYTES
        assert pieces.take_now() is None
        slices.pop()
    assert pieces.lent_bytes == 0
    assert pieces.take_now() is not None


async def test_whoever_waits_is_served_in_turn_as_pieces_come_back() -> None:
    pieces = pool(2)
    held = [await pieces.take(), await pieces.take()]
    order: list[int] = []

    async def taker(number: int) -> None:
        await pieces.take()
        order.append(number)

    takers = [asyncio.create_task(taker(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert not order
    held.clear()
    await asyncio.gather(*takers)
    assert order == [0, 1, 2, 3, 4]


async def test_a_piece_that_another_thread_lets_go_of_wakes_who_waits() -> None:
    pieces = pool(1)
    held = [await pieces.take()]
    waiting = asyncio.create_task(pieces.take())
    await asyncio.sleep(0)
    thread = threading.Thread(target=held.clear)
    thread.start()
    async with asyncio.timeout(60):
        assert len(await waiting) == PIECE_BYTES
    thread.join()


async def test_who_leaves_the_line_passes_its_turn_on() -> None:
    pieces = pool(1)
    held = [await pieces.take()]
    leaver, stayer = (asyncio.create_task(pieces.take()) for _ in range(2))
    await asyncio.sleep(0)
    held.clear()
    await asyncio.sleep(0)
    leaver.cancel()
    async with asyncio.timeout(60):
        await stayer
    await asyncio.gather(leaver, return_exceptions=True)


async def test_what_is_spare_is_taken_back_oldest_first_and_only_in_need() -> None:
    pieces = pool(3)
    held = [Piece(await pieces.take()) for _ in range(3)]
    for piece in held[:2]:
        pieces.spare(piece)
    assert all(piece.memory is not None for piece in held)
    taken = [await pieces.take()]
    assert [piece.memory is None for piece in held] == [True, False, False]
    taken.append(await pieces.take())
    assert [piece.memory is None for piece in held] == [True, True, False]
    assert pieces.take_now() is None


async def test_what_nobody_reads_any_more_goes_before_the_pool_grows() -> None:
    pieces = pool(4)
    held = [Piece(await pieces.take()) for _ in range(3)]
    for piece in held:
        pieces.spare(piece)
    pieces.spare(held[1], wanted=False)
    taken = [await pieces.take()]
    assert [piece.memory is None for piece in held] == [False, True, False]
    taken.append(await pieces.take())
    assert [piece.memory is None for piece in held] == [False, True, False]
    assert pieces.lent_bytes == 4 * PIECE_BYTES
    taken.append(await pieces.take())
    assert [piece.memory is None for piece in held] == [True, True, False]


async def test_what_is_spare_but_looked_at_is_not_filled_anew() -> None:
    pieces = pool(1)
    memory = await pieces.take()
    memory[:3] = b"old"
    view = memory[:3]
    piece = Piece(memory)
    del memory
    pieces.spare(piece)
    waiting = asyncio.create_task(pieces.take())
    await asyncio.sleep(0)
    assert piece.memory is None
    assert not waiting.done()
    assert bytes(view) == b"old"
    del view
    await waiting


async def test_a_piece_whose_holder_is_gone_needs_no_taking_back() -> None:
    pieces = pool(1)
    piece = Piece(await pieces.take())
    pieces.spare(piece)
    del piece
    assert pieces.lent_bytes == 0


async def test_becoming_spare_wakes_who_waits() -> None:
    pieces = pool(1)
    piece = Piece(await pieces.take())
    waiting = asyncio.create_task(pieces.take())
    await asyncio.sleep(0)
    pieces.spare(piece)
    async with asyncio.timeout(60):
        await waiting


async def test_views_may_be_held_while_half_the_pool_is_left() -> None:
    pieces = pool(4)
    held = []
    seen = []
    for _ in range(4):
        held.append(await pieces.take())
        seen.append(pieces.ample)
    assert seen == [True, True, False, False]


@pytest.mark.parametrize("seed", range(5))
async def test_never_more_than_the_limit_is_out_and_nobody_waits_for_ever(seed: int) -> None:
    pieces = pool(4)
    rng = random.Random(seed)

    async def worker(number: int) -> None:
        stamp = bytes([number])
        for _ in range(20):
            piece = Piece(await pieces.take())
            assert pieces.lent_bytes <= 4 * PIECE_BYTES
            memory = piece.memory
            assert memory is not None
            memory[:1] = stamp
            await asyncio.sleep(0)
            assert memory[:1] == stamp
            if rng.random() < 0.5:
                pieces.spare(piece)
                await asyncio.sleep(0)
            else:
                await asyncio.to_thread(lambda: None)
            del memory, piece

    tasks = [asyncio.create_task(worker(number)) for number in range(16)]
    for task in rng.sample(tasks, 4):
        await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        assert task.cancelled() or task.exception() is None
