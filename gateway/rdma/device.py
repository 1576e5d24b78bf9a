"""What a device promises that moves memory. `verbs.py` is the real one; tests hold another one to
the same contract (`tests/rdma/device_contract.py`)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.rdma.wire import PairAddress


class RdmaUnavailable(Exception):  # noqa: N818 - named as the other refusals are
    """There is no RDMA here; the message says why. `verbs`: not even the library."""

    def __init__(self, message: str, *, verbs: bool = False) -> None:
        super().__init__(message)
        self.verbs = verbs


class VerbFailed(Exception):  # noqa: N818 - named as the other refusals are
    """A device refused something: a registration, a connection, a post."""


class Completion(NamedTuple):
    """A work request that is over. `status` is 0 where it succeeded, else ibv_wc_status."""

    work: int
    status: int


class Registration(Protocol):
    """Memory that a device may read and write, until `close`."""

    @property
    def address(self) -> int:
        """Where it begins, as work requests name it."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def lkey(self) -> int: ...

    @property
    def rkey(self) -> int: ...

    def close(self) -> None:
        """Ends it; nobody reads or writes the memory any more. Safe to call twice. VerbFailed."""
        ...


class Pair(Protocol):
    """One end of a connection: a queue pair (RC)."""

    @property
    def address(self) -> PairAddress: ...

    def connect(self, peer: PairAddress) -> None:
        """Expects `peer`, and may send to it. VerbFailed."""
        ...

    def write(
        self, work: int, address: int, size_bytes: int, lkey: int, *, to: int, rkey: int
    ) -> None:
        """Posts an RDMA WRITE of local memory to the peer's memory at `to`. 0 bytes are a sign of
        life, and need no keys. VerbFailed."""
        ...

    def read(
        self, work: int, address: int, size_bytes: int, lkey: int, *, source: int, rkey: int
    ) -> None:
        """Posts an RDMA READ of the peer's memory at `source` into local memory. VerbFailed."""
        ...

    def fail(self) -> None:
        """Moves it to the error state: what is under way completes with an error, and nothing of
        the peer's comes in any more. Safe in any state. VerbFailed."""
        ...

    def close(self) -> None:
        """Ends it: nothing is under way any more, and no completions come of what was. Safe to
        call twice. VerbFailed, and it is as it was."""
        ...


def end_pair(pair: Pair) -> None:
    """Ends a queue pair, in whatever state it is: once this returns nothing of its peer's comes in.
    VerbFailed where the device does neither of the two that would see to that."""
    stopped = True
    try:
        pair.fail()
    except VerbFailed:
        # Being destroyed stops as much.
        stopped = False
    try:
        pair.close()
    except VerbFailed:
        # In the error state it lets nothing in; what is left of it goes with its device.
        if not stopped:
            raise


class Device(Protocol):
    """An open device: one protection domain, one completion queue, one port."""

    @property
    def name(self) -> str: ...

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def max_completions(self) -> int:
        """How many work requests may be under way on all queue pairs together."""
        ...

    @property
    def descriptor(self) -> int:
        """Readable once there are completions; `completions` takes them, and arms it again."""
        ...

    def register(self, memory: memoryview, *, remote: bool) -> Registration:
        """Registers host memory, which must outlive it. `remote`: peers may read and write it.
        Memory that cannot be written must not be `remote`. VerbFailed."""
        ...

    def register_address(
        self, address: int, size_bytes: int, *, remote: bool, writable: bool = True
    ) -> Registration:
        """As `register`, of memory given by its address. Not `writable`: it is only ever read, by
        this device."""
        ...

    def register_dmabuf(
        self, descriptor: int, offset: int, size_bytes: int, *, remote: bool
    ) -> Registration:
        """Registers a part of a dma-buf, a GPU's memory for one. VerbFailed."""
        ...

    async def reach(self, peer: PairAddress) -> None:
        """Returns once a pair can be connected to that address without waiting for anybody's
        answer. VerbFailed where there is no way to it."""
        ...

    def pair(self, *, depth: int, remote: bool) -> Pair:
        """A queue pair with room for `depth` work requests. `remote`: the peer may read and write
        what is registered so. VerbFailed."""
        ...

    def completions(self) -> Sequence[Completion]:
        """What is over since the last call, without waiting. VerbFailed."""
        ...

    def close(self) -> None:
        """Ends everything of it. Safe to call twice. VerbFailed."""
        ...
