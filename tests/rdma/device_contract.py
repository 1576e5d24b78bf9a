"""What every `Device` keeps to: the soft one in the ordinary suite, the real one in the virtual
machine (`tests/rdma/verbs/test_verbs.py`)."""

import mmap
import os
import select
import time
from collections.abc import Iterator

import pytest

from gateway.rdma.device import Completion, Device, Pair, VerbFailed

SIZE = 3 * 1024**2
FLUSHED = 5
GONE = 12
_SECONDS = 60


def completions(device: Device, count: int) -> list[Completion]:
    """As many as are to come."""
    found: list[Completion] = []
    until = time.monotonic() + _SECONDS
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} came"
        select.select((device.descriptor,), (), (), 1)
        found += device.completions()
    return found


def connected(near: Device, far: Device, *, depth: int = 8) -> tuple[Pair, Pair]:
    """Two ends; the far one lets the near one at its memory."""
    one, other = near.pair(depth=depth, remote=False), far.pair(depth=2, remote=True)
    one.connect(other.address)
    other.connect(one.address)
    return one, other


class Bench:
    """Memory at both ends, registered, and two ends connected: what `one` writes from `here` goes
    to `there`, whose bytes are `far_bytes`."""

    def __init__(self, near: Device, far: Device) -> None:
        self.near, self.far = near, far
        self.near_bytes, self.far_bytes = mmap.mmap(-1, SIZE), mmap.mmap(-1, SIZE)
        self.near_bytes[:] = os.urandom(SIZE)
        self.here = near.register(memoryview(self.near_bytes), remote=False)
        self.there = far.register(memoryview(self.far_bytes), remote=True)
        self.one, self.other = connected(near, far)

    def write(
        self,
        work: int,
        size: int,
        *,
        start: int = 0,
        to: int | None = None,
        rkey: int | None = None,
    ) -> None:
        """Writes part of the near end's memory to the same place at the far one, or elsewhere."""
        self.one.write(
            work,
            self.here.address + start,
            size,
            self.here.lkey,
            to=self.there.address + start if to is None else to,
            rkey=self.there.rkey if rkey is None else rkey,
        )

    def read(self, work: int, size: int) -> None:
        self.one.read(
            work,
            self.here.address,
            size,
            self.here.lkey,
            source=self.there.address,
            rkey=self.there.rkey,
        )

    def close(self) -> None:
        for each in (self.one, self.other, self.here, self.there):
            each.close()


class DeviceContract:
    """Derive and give `near` and `far`."""

    @pytest.fixture
    def near(self) -> Device:
        raise NotImplementedError

    @pytest.fixture
    def far(self) -> Device:
        raise NotImplementedError

    @pytest.fixture
    def bench(self, near: Device, far: Device) -> Iterator[Bench]:
        bench = Bench(near, far)
        yield bench
        bench.close()

    def test_what_is_written_is_in_the_peers_memory(self, bench: Bench) -> None:
        half = SIZE // 2
        bench.write(0, half)
        bench.write(1, half, start=half)
        # A READ on the same pair is answered after what was written before it.
        bench.read(2, 1)
        found = completions(bench.near, 3)
        assert found == [Completion(0, 0), Completion(1, 0), Completion(2, 0)]
        assert bench.far_bytes[1:] == bench.near_bytes[1:]

    def test_what_is_read_is_the_peers_memory(self, bench: Bench) -> None:
        bench.far_bytes[:] = os.urandom(SIZE)
        bench.read(7, SIZE)
        assert completions(bench.near, 1) == [Completion(7, 0)]
        assert bench.near_bytes[:] == bench.far_bytes[:]

    async def test_there_is_a_way_to_a_peer(self, bench: Bench) -> None:
        await bench.near.reach(bench.other.address)

    def test_an_empty_write_is_a_sign_of_life(self, bench: Bench) -> None:
        bench.one.write(1, 0, 0, 0, to=0, rkey=0)
        assert completions(bench.near, 1) == [Completion(1, 0)]

    def test_an_end_that_is_gone_is_noticed(self, bench: Bench) -> None:
        bench.other.close()
        bench.one.write(1, 0, 0, 0, to=0, rkey=0)
        assert completions(bench.near, 1) == [Completion(1, GONE)]

    @pytest.mark.parametrize("wrong", ["key", "end", "closed"])
    def test_memory_that_was_not_given_is_not_touched(self, bench: Bench, wrong: str) -> None:
        there = bench.there
        if wrong == "key":
            bench.write(1, 4096, rkey=there.rkey ^ 1)
        elif wrong == "end":
            bench.write(1, 4096, to=there.address + SIZE - 100)
        else:
            there.close()
            bench.write(1, 4096)
        [found] = completions(bench.near, 1)
        assert found.status not in (0, FLUSHED)
        # The pair is of no use from then on.
        bench.write(2, 4096)
        assert completions(bench.near, 1) == [Completion(2, FLUSHED)]
        assert not any(bench.far_bytes[:])

    def test_a_key_of_another_domain_opens_nothing(self, bench: Bench) -> None:
        """Each opening of a device is a domain: one tenant's keys mean nothing in another's."""
        own = mmap.mmap(-1, SIZE)
        # The victim's memory is registered with the near device, the pair ends at the far one.
        victims = bench.near.register(memoryview(own), remote=True)
        bench.write(1, 64, to=victims.address, rkey=victims.rkey)
        [found] = completions(bench.near, 1)
        assert found.status not in (0, FLUSHED)
        assert not any(own[:])
        victims.close()

    def test_an_end_without_remote_rights_lets_nobody_in(self, bench: Bench) -> None:
        here, there = bench.here, bench.there
        before = bench.near_bytes[:]
        # The far end guesses the key of memory that was never offered.
        bench.other.write(1, there.address, 64, there.lkey, to=here.address, rkey=here.lkey)
        [found] = completions(bench.far, 1)
        assert found.status not in (0, FLUSHED)
        assert bench.near_bytes[:] == before

    def test_a_failed_pair_gives_everything_back(self, bench: Bench) -> None:
        for work in range(8):
            bench.write(work, SIZE)
        bench.one.fail()
        found = completions(bench.near, 8)
        assert [each.work for each in found] == list(range(8))
        assert {each.status for each in found} <= {0, FLUSHED}
        bench.one.fail()

    def test_a_failed_end_lets_nothing_in(self, bench: Bench) -> None:
        bench.other.fail()
        bench.write(1, 4096)
        [found] = completions(bench.near, 1)
        assert found.status not in (0, FLUSHED)
        assert not any(bench.far_bytes[:])

    def test_things_are_closed_twice_without_harm(self, near: Device, far: Device) -> None:
        one, other = connected(near, far)
        here = near.register(memoryview(bytearray(4096)), remote=True)
        for _ in range(2):
            one.close()
            other.close()
            here.close()

    def test_memory_that_cannot_be_written_is_refused(self, near: Device) -> None:
        for memory in (memoryview(b"fixed"), memoryview(bytearray())):
            with pytest.raises(VerbFailed):
                near.register(memory, remote=True)

    def test_a_pair_of_another_kind_of_link_is_refused(self, near: Device, far: Device) -> None:
        one, other = near.pair(depth=2, remote=False), far.pair(depth=2, remote=True)
        address = other.address
        strange = type(address)(
            address.qpn, address.psn, address.gid, address.mtu, "infiniband", address.lid
        )
        with pytest.raises(VerbFailed):
            one.connect(strange)
        one.close()
        other.close()
