"""Memory of this node's that its device may read and write: one arena, cut into buffers of a size.

Registering takes long (a page table's worth of work), so it is done once. Nobody else can reach the
arena: it is registered without remote access.
"""

import asyncio
import mmap
from collections import deque
from collections.abc import Callable

from gateway.rdma.device import Device

BUFFER_BYTES = 1024**2


class Buffer:
    """`size_bytes` of registered memory; `memory` is the same for the processor."""

    __slots__ = ("address", "lkey", "memory")

    def __init__(self, memory: memoryview, address: int, lkey: int) -> None:
        self.memory = memory
        self.address = address
        self.lkey = lkey


class BufferPool:
    """Buffers for all transfers of a node. VerbFailed where they cannot be registered.

    A buffer is its taker's until it is given back; only the device's word that it is through with
    it (a completion, or the end of its queue pair) is reason to.
    """

    def __init__(
        self, device: Device, size_bytes: int, *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self.buffer_bytes = min(buffer_bytes, device.max_message_bytes)
        self.count = max(1, size_bytes // self.buffer_bytes)
        self._arena = mmap.mmap(-1, self.count * self.buffer_bytes)
        self._whole = memoryview(self._arena)
        self._region = device.register(self._whole, remote=False)
        self._free = deque(self._cut())
        self._waiting: deque[asyncio.Future[Buffer]] = deque()

    @property
    def free(self) -> int:
        """How many buffers nobody has."""
        return len(self._free)

    def take_now(self) -> Buffer | None:
        """A buffer, where one is free and nobody waits for it."""
        if self._free and not self._waiting:
            return self._free.popleft()
        return None

    async def take(self) -> Buffer:
        """A buffer; who asks first has it first."""
        buffer = self.take_now()
        if buffer is not None:
            return buffer
        waiter: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It was given while this was being cancelled.
                self.give(waiter.result())
            raise

    def give(self, buffer: Buffer) -> None:
        """Takes a buffer back."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(buffer)
                return
        self._free.append(buffer)

    def close(self) -> None:
        """Ends it; call when no queue pair is left."""
        self._region.close()
        self._free.clear()

    def _cut(self) -> list[Buffer]:
        size = self.buffer_bytes
        return [
            Buffer(
                self._whole[start : start + size], self._region.address + start, self._region.lkey
            )
            for start in range(0, self.count * size, size)
        ]


class Share:
    """A pool as one tenant has it: `most()` of its buffers at a time, at least one, so that clients
    who take nothing do not keep all of them from everybody else."""

    def __init__(self, pool: BufferPool, most: Callable[[], int]) -> None:
        self.buffer_bytes = pool.buffer_bytes
        self._pool = pool
        self._most = most
        # Buffers, and places of those who wait for one of the pool's.
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> Buffer | None:
        """As `BufferPool.take_now`, within the share."""
        if self._held >= self._most() or self._waiting:
            return None
        buffer = self._pool.take_now()
        if buffer is not None:
            self._held += 1
        return buffer

    async def take(self) -> Buffer:
        """As `BufferPool.take`, within the share."""
        if self._held < self._most() and not self._waiting:
            self._held += 1
        else:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._let_go()
                raise
        try:
            return await self._pool.take()
        except BaseException:
            self._let_go()
            raise

    def give(self, buffer: Buffer) -> None:
        """Takes a buffer back."""
        self._pool.give(buffer)
        self._let_go()

    def _let_go(self) -> None:
        """One is held less; whoever waits may have it now."""
        self._held -= 1
        while self._waiting and self._held < self._most():
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._held += 1
                waiter.set_result(None)
