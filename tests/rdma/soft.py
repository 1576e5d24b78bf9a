"""A device in memory, for tests of what stands on one; `test_device.py` holds it to the contract
that the real one keeps. Devices of one `Fabric` reach each other.

Posted work is over at once, but seen only when `completions` is called, unless the fabric is told
to hold it (`held`), which is how tests make a peer that does not answer.
"""

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gateway.rdma.device import Completion, VerbFailed
from gateway.rdma.wire import PairAddress

# ibv_wc_status
REMOTE_ACCESS = 10
REMOTE_INVALID = 9
FLUSHED = 5
RETRIES_EXCEEDED = 12
LOCAL_PROTECTION = 4
MAX_MESSAGE_BYTES = 8 * 1024**2


class Fabric:
    """What connects soft devices. `held`: work that is posted stays under way."""

    def __init__(self) -> None:
        self.pairs: dict[int, SoftPair] = {}
        self.held = False
        self.posted = 0
        # Called with each piece before it is moved; may do anything to either end.
        self.on_move: Callable[[_Work], None] = lambda _: None
        # Awaited before a pair is connected; raises VerbFailed where there is no way.
        self.on_reach: Callable[[PairAddress], Awaitable[None]] = _at_once
        self._numbers = iter(range(17, 1 << 24))
        self._keys = iter(range(0x1000, 1 << 32))

    def device(self) -> "SoftDevice":
        return SoftDevice(self)

    def number(self) -> int:
        return next(self._numbers)

    def key(self) -> int:
        return next(self._keys)


async def _at_once(_: PairAddress) -> None:
    """There is a way to everybody."""


class _Work(NamedTuple):
    work: int
    writes: bool
    address: int
    size_bytes: int
    lkey: int
    far: int
    rkey: int


class SoftDevice:
    """A `Device`."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.name = "soft0"
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.max_completions = 16_384
        self.regions: dict[int, SoftRegistration] = {}
        self.pairs: list[SoftPair] = []
        self.done: deque[Completion] = deque()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self._open = True

    def register(self, memory: memoryview, *, remote: bool) -> "SoftRegistration":
        if memory.readonly or not memory.nbytes:
            raise VerbFailed("no memory that can be written")
        held = (ctypes.c_char * memory.nbytes).from_buffer(memory)
        return SoftRegistration(self, ctypes.addressof(held), memory.nbytes, remote, held)

    def register_address(
        self, address: int, size_bytes: int, *, remote: bool, writable: bool = True
    ) -> "SoftRegistration":
        return SoftRegistration(self, address, size_bytes, remote, None, writable=writable)

    def register_dmabuf(
        self, descriptor: int, offset: int, size_bytes: int, *, remote: bool
    ) -> "SoftRegistration":
        raise VerbFailed("a soft device knows no dma-buf")

    async def reach(self, peer: PairAddress) -> None:
        await self.fabric.on_reach(peer)

    def pair(self, *, depth: int, remote: bool) -> "SoftPair":
        return SoftPair(self, depth, remote)

    def completions(self) -> list[Completion]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        found = list(self.done)
        self.done.clear()
        return found

    def complete(self, work: int, status: int) -> None:
        self.done.append(Completion(work, status))
        os.eventfd_write(self.descriptor, 1)

    def covers(self, key: int, address: int, size_bytes: int, *, remote: bool) -> bool:
        region = self.regions.get(key)
        return (
            region is not None
            and (region.remote or not remote)
            and region.address <= address
            and address + size_bytes <= region.address + region.size_bytes
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            for pair in list(self.pairs):
                pair.close()
            os.close(self.descriptor)


class SoftRegistration:
    """A `Registration`."""

    def __init__(
        self,
        device: SoftDevice,
        address: int,
        size_bytes: int,
        remote: bool,
        held: object,
        *,
        writable: bool = True,
    ) -> None:
        self._device = device
        self._held = held
        self.address = address
        self.size_bytes = size_bytes
        self.remote = remote
        self.writable = writable
        self.lkey = self.rkey = device.fabric.key()
        device.regions[self.rkey] = self

    def close(self) -> None:
        self._device.regions.pop(self.rkey, None)
        self._held = None


class SoftPair:
    """A `Pair`."""

    def __init__(self, device: SoftDevice, depth: int, remote: bool) -> None:
        self.device = device
        self.remote = remote
        self.peer: PairAddress | None = None
        self.failed = False
        self.closed = False
        self.under_way: deque[_Work] = deque()
        self._depth = depth
        number = device.fabric.number()
        self.address = PairAddress(number, number, "::ffff:10.0.0.1", 4096, "ethernet")
        device.fabric.pairs[number] = self
        device.pairs.append(self)

    def connect(self, peer: PairAddress) -> None:
        if peer.link != "ethernet" or self.peer is not None or self.closed:
            raise VerbFailed("it cannot be connected")
        self.peer = peer

    def write(
        self, work: int, address: int, size_bytes: int, lkey: int, *, to: int, rkey: int
    ) -> None:
        self._post(_Work(work, True, address, size_bytes, lkey, to, rkey))

    def read(
        self, work: int, address: int, size_bytes: int, lkey: int, *, source: int, rkey: int
    ) -> None:
        self._post(_Work(work, False, address, size_bytes, lkey, source, rkey))

    def fail(self) -> None:
        if not self.closed:
            self.failed = True
            while self.under_way and not self.device.fabric.held:
                self.device.complete(self.under_way.popleft().work, FLUSHED)

    def close(self) -> None:
        if not self.closed:
            self.closed = self.failed = True
            self.under_way.clear()
            self.device.fabric.pairs.pop(self.address.qpn, None)
            self.device.pairs.remove(self)

    def go_on(self) -> None:
        """Moves what was held."""
        while self.under_way:
            self._move(self.under_way.popleft())

    def _post(self, work: _Work) -> None:
        if self.peer is None or self.closed:
            raise VerbFailed("it is not connected")
        if len(self.under_way) >= self._depth:
            raise VerbFailed("there is no room")
        if work.size_bytes > MAX_MESSAGE_BYTES:
            raise VerbFailed("the message is too large")
        self.device.fabric.posted += 1
        self.under_way.append(work)
        if not self.device.fabric.held:
            self.go_on()

    def _move(self, work: _Work) -> None:
        fabric = self.device.fabric
        fabric.on_move(work)
        status = self._status(work)
        if status == 0 and work.size_bytes:
            to, source = (work.far, work.address) if work.writes else (work.address, work.far)
            ctypes.memmove(to, source, work.size_bytes)
        if status:
            self.failed = True
        self.device.complete(work.work, status)

    def _status(self, work: _Work) -> int:
        if self.failed:
            return FLUSHED
        assert self.peer is not None
        other = self.device.fabric.pairs.get(self.peer.qpn)
        if other is None or other.failed or other.peer is None:
            return RETRIES_EXCEEDED
        if work.size_bytes and not self.device.covers(
            work.lkey, work.address, work.size_bytes, remote=False
        ):
            return LOCAL_PROTECTION
        if not other.remote:
            return REMOTE_INVALID
        if work.size_bytes and not other.device.covers(
            work.rkey, work.far, work.size_bytes, remote=True
        ):
            other.failed = True
            return REMOTE_ACCESS
        return 0
