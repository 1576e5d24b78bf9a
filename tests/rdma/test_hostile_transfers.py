"""What a slow, a dying or a hostile end can do to transfers, sessions and the memory under them."""

import asyncio
import os
import resource
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from gateway.rdma.device import Completion, VerbFailed
from gateway.rdma.mapped import FROM_BYTES, MappedFiles
from gateway.rdma.sessions import TooManySessions
from gateway.rdma.token import Token
from gateway.rdma.transfers import NoBuffer, Transfer, TransferFailed
from tests.rdma.soft import Fabric, SoftDevice, SoftPair, SoftRegistration
from tests.rdma.test_server import BUFFERS, Lab
from tests.waiting import until

MIB = 1024**2


class Ends(Lab):
    """A lab with one client's memory in it."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**{"transfer_timeout_seconds": 0.1, **config})
        self.memory = bytearray(8 * MIB)
        self.region = self.client.register(memoryview(self.memory), remote=True)
        self._number = 0

    def claim(self, session: str, size_bytes: int, tenant: str = "a") -> Transfer:
        self._number += 1
        token = Token(session, self._number, self.region.address, size_bytes, self.region.rkey)
        transfer = self.server.claim(tenant, token)
        assert transfer is not None
        return transfer


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends(depth=2)
    await ends.server.start()
    yield ends
    ends.fabric.held = False
    await ends.server.close()
    ends.client.close()


async def within(seconds: float, what: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await what


# Time


async def test_the_read_behind_the_last_write_has_a_time_limit_too(ends: Ends) -> None:
    session, _ = await ends.connect()
    transfer = ends.claim(session, 2 * MIB)
    ends.fabric.held = True
    # As many pieces as may be under way: the READ that is to follow has no place.
    await transfer.write(bytes(2 * MIB))
    with pytest.raises(TransferFailed):
        await within(3, transfer.finish())
    await within(8, transfer.close())
    assert ends.server.buffers_free == BUFFERS


async def test_reading_ahead_has_a_time_limit_too(ends: Ends) -> None:
    session, _ = await ends.connect()
    transfer = ends.claim(session, 4 * MIB)
    reader = transfer.reader()
    ends.fabric.held = True
    # Two are under way, and the third is asked for.
    with pytest.raises(TransferFailed):
        await within(3, reader.read())
    reader.close()
    await within(8, transfer.close())
    await until(lambda: ends.server.buffers_free == BUFFERS)


async def test_closing_does_not_wait_for_a_sign_of_life() -> None:
    ends = Ends(transfer_timeout_seconds=30.0)
    await ends.server.start()
    await ends.connect()
    ends.fabric.held = True
    ends.clock.now += 15
    await until(lambda: ends.fabric.posted > 0)
    # What a queue pair that fails may take to settle is five seconds.
    await within(8, ends.server.close())
    ends.client.close()


async def test_a_transfer_that_is_cut_is_over_soon() -> None:
    """At the end of a drain, of which an operator knows how long it may take."""
    ends = Ends(transfer_timeout_seconds=30.0)
    await ends.server.start()
    session, _ = await ends.connect()
    transfer = ends.claim(session, MIB)
    ends.fabric.held = True

    async def answer() -> None:
        try:
            await transfer.write(bytes(MIB))
            await transfer.finish()
        finally:
            await transfer.close()

    answering = asyncio.create_task(answer())
    await until(lambda: ends.fabric.posted == 2)
    answering.cancel()
    try:
        # What a queue pair that fails may take to settle is five seconds.
        done, _ = await asyncio.wait((answering,), timeout=8)
        assert done
    finally:
        ends.fabric.held = False
        for pair in list(ends.fabric.pairs.values()):
            pair.go_on()
        await asyncio.gather(answering, return_exceptions=True)
        await ends.server.close()
        ends.client.close()


# Memory


async def test_a_buffer_that_a_thread_still_fills_is_nobody_elses(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read from the disk goes on in its thread when whoever waits for it is cancelled."""
    (tmp_path / "f").write_bytes(b"x" * 1000)
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    preadv = os.preadv

    def slow(file: int, into: tuple[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        begun.set()
        go_on.wait(60)
        try:
            return preadv(file, into, offset)
        finally:
            over.set()

    monkeypatch.setattr(os, "preadv", slow)
    session, _ = await ends.connect()
    first = ends.claim(session, MIB)
    writing = asyncio.create_task(first.write_file(descriptor, 0, 1000))
    await until(begun.is_set)
    writing.cancel()
    await ends.sweeps()
    # All others take what buffers they can get, and gather in them what they are to send.
    pool = ends.server._pool
    assert pool is not None
    taken = []
    while (buffer := pool.take_now()) is not None:
        buffer.memory[:1000] = b"o" * 1000
        taken.append(buffer)
    go_on.set()
    await until(over.is_set)
    assert [bytes(each.memory[:1000]) for each in taken] == [b"o" * 1000] * len(taken)
    for buffer in taken:
        pool.give(buffer)
    await asyncio.gather(writing, return_exceptions=True)
    await within(8, first.close())
    os.close(descriptor)


async def test_a_transfer_that_is_closed_touches_no_memory_of_the_clients(ends: Ends) -> None:
    """What is read ahead too: `close` promises it, and the answer goes out right after."""
    session, _ = await ends.connect()
    transfer = ends.claim(session, 2 * MIB)
    reader = transfer.reader()
    ends.fabric.held = True
    reading = asyncio.create_task(reader.read())
    await until(lambda: ends.fabric.posted == 2)
    # A PUT that ends early: an origin that fails, a body that is too slow.
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    reader.close()
    closing = asyncio.create_task(transfer.close())
    await ends.sweeps()
    under_way = sum(len(pair.under_way) for pair in ends.fabric.pairs.values())
    assert closing.done() == (under_way == 0)
    await within(8, closing)


async def test_a_transfer_that_is_cancelled_while_it_waits_is_closed_once_nothing_moves(
    ends: Ends,
) -> None:
    """The very piece that it waited for is under way as well."""
    session, _ = await ends.connect()
    transfer = ends.claim(session, MIB)
    ends.fabric.held = True
    await transfer.write(b"x" * MIB)
    finishing = asyncio.create_task(transfer.finish())
    # The piece and the READ behind it.
    await until(lambda: ends.fabric.posted == 2)
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    await within(8, transfer.close())
    # The memory is its owner's again.
    ends.memory[:4] = b"mine"
    ends.fabric.held = False
    for pair in list(ends.fabric.pairs.values()):
        pair.go_on()
    assert ends.memory[:4] == b"mine"


async def test_a_queue_pair_that_cannot_be_destroyed_holds_up_nobody(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffers may be lost, but whoever waits must hear of it."""
    session, _ = await ends.connect()
    transfer = ends.claim(session, MIB)
    line = next(iter(ends.server._table)).line
    line._settle_seconds = 0.05
    ends.fabric.held = True
    await transfer.write(bytes(MIB))
    destroy = SoftPair.close

    def refuse(_: SoftPair) -> None:
        raise VerbFailed("the device is gone")

    monkeypatch.setattr(SoftPair, "close", refuse)
    with pytest.raises(TransferFailed):
        await within(3, transfer.finish())
    monkeypatch.setattr(SoftPair, "close", destroy)
    ends.fabric.held = False


# Devices that fail


async def test_a_node_ends_though_a_queue_pair_cannot_be_destroyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is raised here keeps a node from closing its cache."""
    ends = Ends()
    await ends.server.start()
    await ends.connect()

    def refuse(_: SoftPair) -> None:
        raise VerbFailed("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(SoftPair, "close", refuse)
        await within(8, ends.server.close())
    ends.client.close()


async def test_a_device_without_completions_is_no_device(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes is to be declined, not to wait for his time limit again and again."""
    session, _ = await ends.connect()

    def broken(_: SoftDevice) -> list[Completion]:
        raise VerbFailed("completions cannot be taken: Input/output error")

    monkeypatch.setattr(SoftDevice, "completions", broken)
    transfer = ends.claim(session, MIB)
    await transfer.write(bytes(MIB))
    with pytest.raises(TransferFailed):
        await within(8, transfer.finish())
    await within(8, transfer.close())
    assert not ends.server.available


async def test_sessions_are_looked_after_also_once_a_device_has_refused_something(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(FROM_BYTES))
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    files = ends.server._files
    assert files is not None
    part = files.part(descriptor, 0, FROM_BYTES)
    assert part is not None
    part.release()
    unregister = SoftRegistration.close
    refused = threading.Event()

    def refuse_once(registration: SoftRegistration) -> None:
        if not refused.is_set():
            refused.set()
            raise VerbFailed("Device or resource busy")
        unregister(registration)

    monkeypatch.setattr(SoftRegistration, "close", refuse_once)
    (tmp_path / "f").unlink()
    os.close(descriptor)
    await until(refused.is_set)
    session, _ = await ends.connect()
    ends.clock.now += 60
    await ends.until_gone(session)


# Mapped files


def _open(folder: Path, name: str, size_bytes: int) -> int:
    (folder / name).write_bytes(os.urandom(size_bytes))
    return os.open(folder / name, os.O_RDONLY)


def test_no_more_is_pinned_than_may_be(tmp_path: Path) -> None:
    """However many are read at the same moment: what finds no room is copied."""
    device = Fabric().device()
    limit = 8 * FROM_BYTES
    files = MappedFiles(device, limit)
    descriptors = [_open(tmp_path, str(number), 2 * FROM_BYTES) for number in range(12)]
    parts = [files.part(descriptor, 0, 2 * FROM_BYTES) for descriptor in descriptors]
    held = files.held_bytes
    for part in parts:
        if part is not None:
            part.release()
    after = files.held_bytes
    files.close()
    device.close()
    for descriptor in descriptors:
        os.close(descriptor)
    assert held <= limit
    assert after <= limit


def test_a_file_for_which_no_descriptor_is_left_is_copied(tmp_path: Path) -> None:
    device = Fabric().device()
    files = MappedFiles(device, 64 * FROM_BYTES)
    descriptor = _open(tmp_path, "a", 2 * FROM_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + 1, hard))
    spare = []
    try:
        while True:
            try:
                spare.append(os.dup(descriptor))
            except OSError:
                break
        try:
            part: object = files.part(descriptor, 0, 2 * FROM_BYTES)
        except OSError as error:
            part = error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in spare:
            os.close(each)
    left = dict(device.regions)
    files.close()
    os.close(descriptor)
    device.close()
    assert part is None
    # Nothing stays registered that nobody will ever let go of.
    assert not left


# Hostile ends


async def test_a_queue_pair_that_is_another_sessions_peer_is_refused(ends: Ends) -> None:
    """A thief names a victim's queue pair as his own: what he reads is then sent there, from the
    address that the victim expects it from."""
    session, pair = await ends.connect("victim")
    with pytest.raises((TooManySessions, VerbFailed)):
        await ends.server.prepare("thief", pair.address)
    assert session


async def test_what_waits_for_a_buffer_costs_no_session() -> None:
    """That others hold all buffers is nobody's fault whose client is well."""
    ends = Ends(depth=4)
    await ends.server.start()
    slow, _ = await ends.connect("slow")
    # Objects of slow origins: their first bytes have come.
    holding = []
    # All that a tenant may have of four, where there is no other.
    for _ in range(2):
        transfer = ends.claim(slow, MIB, "slow")
        await transfer.write(b"some")
        holding.append(transfer)
    fine, _ = await ends.connect("slow")
    late = ends.claim(fine, MIB, "slow")
    with pytest.raises(Exception, match="buffer"):
        await within(3, late.write(b"some"))
    await late.close()
    still_there = ends.is_there(fine, "slow")
    for transfer in holding:
        await transfer.close()
    await ends.server.close()
    ends.client.close()
    assert still_there


async def test_two_tenants_leave_a_third_something(ends: Ends) -> None:
    pool = ends.server._pool
    assert pool is not None
    holding = []
    for tenant in ("b", "c"):
        session, _ = await ends.connect(tenant)
        for _ in range(pool.count):
            transfer = ends.claim(session, MIB, tenant)
            holding.append(transfer)
            try:
                await within(0.05, transfer.write(b"some"))
            except (TimeoutError, NoBuffer, TransferFailed):
                break
    session, _ = await ends.connect("a")
    late = ends.claim(session, MIB)
    try:
        await within(3, late.write(b"some"))
        assert await late.finish() == 4
    finally:
        await late.close()
        for transfer in holding:
            await transfer.close()
