"""Buffers are had in the order they are asked for, by nobody twice, and never all by one tenant."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.rdma.buffers import Buffer, BufferPool, Share
from tests.rdma.soft import MAX_MESSAGE_BYTES, Fabric, SoftDevice

KIB = 1024


@pytest.fixture
def device() -> Iterator[SoftDevice]:
    device = Fabric().device()
    yield device
    device.close()


@pytest.fixture
def pool(device: SoftDevice) -> Iterator[BufferPool]:
    pool = BufferPool(device, 16 * KIB, buffer_bytes=4 * KIB)
    yield pool
    pool.close()


def take_all(pool: BufferPool | Share) -> list[Buffer]:
    found = []
    while (buffer := pool.take_now()) is not None:
        found.append(buffer)
    return found


def test_buffers_lie_side_by_side_in_one_registration(pool: BufferPool, device: SoftDevice) -> None:
    buffers = take_all(pool)
    assert len(buffers) == pool.count == 4
    assert len(device.regions) == 1
    for number, buffer in enumerate(buffers):
        buffer.memory[:] = bytes([number]) * 4 * KIB
    assert [buffer.memory[-1] for buffer in buffers] == [0, 1, 2, 3]
    assert not any(region.remote for region in device.regions.values())


def test_no_buffer_is_larger_than_a_message(device: SoftDevice) -> None:
    pool = BufferPool(device, 4 * MAX_MESSAGE_BYTES, buffer_bytes=2 * MAX_MESSAGE_BYTES)
    assert pool.buffer_bytes == MAX_MESSAGE_BYTES
    pool.close()


async def test_who_asks_first_has_it_first(pool: BufferPool) -> None:
    buffers = take_all(pool)
    asking = [asyncio.create_task(pool.take()) for _ in range(3)]
    await asyncio.sleep(0)
    # What is given back while others wait is theirs.
    pool.give(buffers[0])
    assert pool.take_now() is None
    pool.give(buffers[1])
    assert await asyncio.gather(*asking[:2]) == buffers[:2]
    asking[2].cancel()
    await asyncio.gather(asking[2], return_exceptions=True)
    pool.give(buffers[2])
    assert pool.free == 1


async def test_what_was_given_to_one_that_gives_up_is_not_lost(pool: BufferPool) -> None:
    buffers = take_all(pool)
    asking = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    pool.give(buffers[0])
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert pool.free == 1


async def test_a_share_leaves_some_to_others(pool: BufferPool) -> None:
    one, other = Share(pool, lambda: 3), Share(pool, lambda: 3)
    mine = take_all(one)
    assert len(mine) == 3
    waiting = asyncio.create_task(one.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(take_all(other)) == 1
    one.give(mine[0])
    assert await waiting is mine[0]


async def test_a_share_loses_nothing_to_those_who_give_up(pool: BufferPool) -> None:
    share = Share(pool, lambda: 2)
    mine = take_all(share)
    waiting = [asyncio.create_task(share.take()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    share.give(mine[0])
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    share.give(mine[1])
    assert pool.free == 4
    assert len(take_all(share)) == 2


async def test_a_share_waits_for_the_pool_too(pool: BufferPool) -> None:
    buffers = take_all(pool)
    share = Share(pool, lambda: 1)
    waiting = asyncio.create_task(share.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    pool.give(buffers[0])
    # The place within the share was given back with the attempt.
    assert share.take_now() is buffers[0]


async def test_a_share_that_becomes_smaller_gives_up_by_and_by(pool: BufferPool) -> None:
    most = 3
    share = Share(pool, lambda: most)
    mine = take_all(share)
    most = 1
    waiting = asyncio.create_task(share.take())
    await asyncio.sleep(0)
    for buffer in mine[:2]:
        share.give(buffer)
        await asyncio.sleep(0)
        assert not waiting.done()
    share.give(mine[2])
    assert await waiting is not None
