"""Memory of this node's that other nodes may write into: few buffers, each as large as a chunk.

Its device is open a second time for it, so in a protection domain of its own: a key of this memory
means nothing to a client's queue pair, nor one of a client's to a node's. Each buffer has a key of
its own, so what is given to one transfer opens no other.
"""

import mmap
from collections import deque

from gateway.rdma.device import Device, Pair, Registration
from gateway.rdma.wire import PairAddress

# Nothing is ever posted here: peers write, and read the last byte back.
_DEPTH = 1
# Less than this is not worth a question by RDMA.
LEAST_BYTES = 256 * 1024
_MOST_BYTES = 8 * 1024**2


def target_bytes(chunk_bytes: int) -> int:
    """How large a buffer is where chunks are of that size."""
    return min(max(chunk_bytes, LEAST_BYTES), _MOST_BYTES)


class Target:
    """One buffer; `memory` is the same for the processor."""

    __slots__ = ("memory", "region")

    def __init__(self, memory: memoryview, region: Registration) -> None:
        self.memory = memory
        self.region = region


class TargetMemory:
    """`count` buffers on a device, which is closed with them. VerbFailed where they cannot be
    registered.

    A buffer is its taker's until it is given back: not before whoever was told of it is through
    with it, or the queue pair that it was told of is closed.
    """

    def __init__(self, device: Device, *, count: int, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._device = device
        self._whole = memoryview(mmap.mmap(-1, count * buffer_bytes))
        self._free: deque[Target] = deque()
        self._regions: list[Registration] = []
        try:
            for start in range(0, count * buffer_bytes, buffer_bytes):
                memory = self._whole[start : start + buffer_bytes]
                region = device.register(memory, remote=True)
                self._regions.append(region)
                self._free.append(Target(memory, region))
        except BaseException:
            self.close()
            raise

    @property
    def free(self) -> int:
        """How many buffers nobody has."""
        return len(self._free)

    def take(self) -> Target | None:
        """A buffer, if one is free."""
        return self._free.popleft() if self._free else None

    def give(self, target: Target) -> None:
        """Takes a buffer back."""
        # The one used last: its pages are in the processor's cache yet.
        self._free.appendleft(target)

    def pair(self) -> Pair:
        """A queue pair whose peer may write into these buffers. VerbFailed."""
        return self._device.pair(depth=_DEPTH, remote=True)

    async def reach(self, peer: PairAddress) -> None:
        """As `Device.reach`."""
        await self._device.reach(peer)

    def close(self) -> None:
        """Ends it; call when no queue pair is left. Who still has a buffer may read it."""
        self._free.clear()
        for region in self._regions:
            region.close()
        self._device.close()
