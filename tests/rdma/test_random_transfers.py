"""Sessions and transfers of several tenants in random order, with ends that hold, fail, die and
give up: in the end all buffers are back, no queue pair is left, and no memory was touched that no
token named, nor any after its transfer had ended."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Bytes, RdmaConfig
from gateway.rdma.mapped import FROM_BYTES
from gateway.rdma.server import RdmaServer
from gateway.rdma.sessions import TooManySessions
from gateway.rdma.token import Token
from gateway.rdma.transfers import NoBuffer, Transfer, TransferFailed
from gateway.telemetry.metrics import Metrics
from tests.rdma.soft import Fabric, SoftDevice, SoftPair

KIB = 1024
SLICE = 3 * 1024 * KIB
SLICES = 3


class Client:
    """A tenant's process: one device, memory in slices with a guard before each."""

    def __init__(self, world: "World", tenant: str) -> None:
        self.world = world
        self.tenant = tenant
        self.device: SoftDevice = world.fabric.device()
        self.memory = bytearray(SLICES * (SLICE + KIB))
        self.region = self.device.register(memoryview(self.memory), remote=True)
        self.session = ""
        self.pair: SoftPair | None = None
        self.numbers = iter(range(1 << 20))
        self.free = list(range(SLICES))

    async def connect(self) -> None:
        if self.pair is not None:
            self.pair.close()
        self.pair = self.device.pair(depth=1, remote=True)
        prepared = await self.world.server.prepare(self.tenant, self.pair.address)
        self.pair.connect(prepared.address)
        assert self.world.server.ready(self.tenant, prepared.session)
        self.session = prepared.session

    def part(self, number: int) -> tuple[int, memoryview]:
        start = number * (SLICE + KIB) + KIB
        return start, memoryview(self.memory)[start : start + SLICE]


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.fabric = Fabric()
        self.server = RdmaServer(
            RdmaConfig(
                buffers=Bytes(4 * 1024 * KIB),
                mapped=Bytes(4 * 1024 * KIB),
                depth=self.random.choice((1, 2, 16)),
                transfer_timeout_seconds=0.5,
            ),
            Metrics(),
            open_device=lambda *_: self.fabric.device(),
            sweep_seconds=0.01,
        )
        self.data = self.random.randbytes(SLICE)
        (folder / "f").write_bytes(self.data[: 900 * KIB])
        self.file = os.open(folder / "f", os.O_RDONLY)
        self.outcomes: dict[str, int] = {}

    async def get(self, client: Client) -> None:
        if not client.free:
            return
        number = client.free.pop()
        start, part = client.part(number)
        size = self.random.choice((0, 1, 5 * KIB, 900 * KIB, SLICE - 1, SLICE))
        mark = self.random.randrange(256)
        part[:] = bytes((mark,)) * SLICE
        transfer = await self.claim(client, start, size)
        try:
            if transfer is not None:
                await self.write(transfer, size)
                assert part[:size] == self.data[:size]
                self.tell("moved")
        except (NoBuffer, TransferFailed):
            self.tell("failed")
        except asyncio.CancelledError:
            self.tell("cancelled")
            raise
        finally:
            if transfer is not None:
                await transfer.close()
                # Nothing behind the token, and nothing from now on.
                assert not bytes(part[size:]).strip(bytes((mark,)))
                after = bytes(part)
                for _ in range(self.random.randrange(4)):
                    await asyncio.sleep(0.001)
                assert part == after
            client.free.append(number)

    async def write(self, transfer: Transfer, size: int) -> None:
        position = 0
        while position < size:
            left = size - position
            if left >= 900 * KIB and position == 0 and self.random.random() < 0.5:
                await transfer.write_file(self.file, 0, 900 * KIB)
                position += 900 * KIB
                continue
            block = min(left, self.random.choice((1, 100, FROM_BYTES, 256 * KIB)))
            block = left if position > size // 2 else block
            await transfer.write(self.data[position : position + block])
            position += block
            if self.random.random() < 0.1:
                await asyncio.sleep(0.001)
        assert await transfer.finish() == size

    async def put(self, client: Client) -> None:
        if not client.free:
            return
        number = client.free.pop()
        start, part = client.part(number)
        size = self.random.choice((0, 1, 900 * KIB, SLICE))
        part[:] = self.data
        transfer = await self.claim(client, start, size)
        try:
            if transfer is not None:
                reader = transfer.reader()
                try:
                    found = bytearray()
                    while block := await reader.read():
                        found += block
                        if self.random.random() < 0.2:
                            break
                    assert self.data[: len(found)] == found
                    self.tell("read")
                finally:
                    reader.close()
        except (NoBuffer, TransferFailed):
            self.tell("failed")
        except asyncio.CancelledError:
            self.tell("cancelled")
            raise
        finally:
            if transfer is not None:
                await transfer.close()
            assert part == self.data
            client.free.append(number)

    async def claim(self, client: Client, start: int, size: int) -> Transfer | None:
        token = Token(
            client.session,
            next(client.numbers),
            client.region.address + start,
            size,
            client.region.rkey,
        )
        transfer = self.server.claim(client.tenant, token)
        if transfer is None:
            try:
                await client.connect()
            except TooManySessions:
                self.tell("full")
        return transfer

    def tell(self, what: str) -> None:
        self.outcomes[what] = self.outcomes.get(what, 0) + 1

    def let_go(self) -> None:
        self.fabric.held = False
        for pair in list(self.fabric.pairs.values()):
            pair.go_on()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_nothing_is_lost_and_nothing_touched(
    seed: int, tmp_path: Path
) -> None:
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: troubles.append(told))
    world = World(seed, tmp_path)
    chance = world.random
    await world.server.start()
    clients = [Client(world, tenant) for tenant in ("a", "a", "b", "c")]
    tasks: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            failures.append(task.exception())  # type: ignore[arg-type]

    for _ in range(250):
        client = chance.choice(clients)
        dice = chance.random()
        if dice < 0.6:
            act = world.get if chance.random() < 0.6 else world.put
            task = asyncio.create_task(act(client))
            tasks.add(task)
            task.add_done_callback(ended)
        elif dice < 0.7 and tasks:
            chance.choice(sorted(tasks, key=id)).cancel()
        elif dice < 0.8:
            world.fabric.held = True
        elif dice < 0.92:
            world.let_go()
        elif dice < 0.94:
            world.server.cancel(client.tenant, client.session)
        elif dice < 0.96 and client.pair is not None:
            client.pair.close()
        elif dice < 0.97:
            client.region.close()
            client.region = client.device.register(memoryview(client.memory), remote=True)
        await asyncio.sleep(chance.choice((0, 0, 0.001)))
    world.let_go()
    async with asyncio.timeout(60):
        while tasks:
            world.let_go()
            await asyncio.sleep(0.005)
    assert not failures
    async with asyncio.timeout(60):
        while world.server.buffers_free != world.server._pool.count:  # type: ignore[union-attr]
            world.let_go()
            await asyncio.sleep(0.005)
    assert not any(session.transfers for session in world.server._table)
    shares = [share._held for share in world.server._shares.values()]
    assert shares == [0] * len(shares)
    files = world.server._files
    assert files is not None
    assert not any(mapping.users for mapping in files._mappings.values())
    await world.server.close()
    mine = {client.device for client in clients}
    assert all(pair.device in mine for pair in world.fabric.pairs.values())
    for client in clients:
        for number in range(SLICES):
            start, _ = client.part(number)
            assert not any(client.memory[start - KIB : start])
        client.device.close()
    os.close(world.file)
    assert not troubles
    assert world.outcomes.get("moved", 0) > 3
