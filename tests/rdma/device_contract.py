"""What every `Device` keeps to: the soft one in the ordinary suite, the real one in the virtual
machine (`tests/rdma/verbs/test_verbs.py`)."""

import mmap
import os
import select
import time

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


class DeviceContract:
    """Derive and give `near` and `far`."""

    @pytest.fixture
    def near(self) -> Device:
        raise NotImplementedError

    @pytest.fixture
    def far(self) -> Device:
        raise NotImplementedError

    @pytest.fixture
    def memory(self) -> mmap.mmap:
        memory = mmap.mmap(-1, SIZE)
        memory[:] = os.urandom(SIZE)
        return memory

    def test_what_is_written_is_in_the_peers_memory(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(memory), remote=False)
        there = far.register(memoryview(target), remote=True)
        one, other = connected(near, far)
        half = SIZE // 2
        for work, start in enumerate((0, half)):
            one.write(
                work,
                here.address + start,
                half,
                here.lkey,
                to=there.address + start,
                rkey=there.rkey,
            )
        # A READ on the same pair is answered after what was written before it.
        one.read(2, here.address, 1, here.lkey, source=there.address, rkey=there.rkey)
        found = completions(near, 3)
        assert found == [Completion(0, 0), Completion(1, 0), Completion(2, 0)]
        assert target[:] == memory[:]
        for each in (one, other, here, there):
            each.close()

    def test_what_is_read_is_the_peers_memory(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(target), remote=False)
        there = far.register(memoryview(memory), remote=True)
        one, other = connected(near, far)
        one.read(7, here.address, SIZE, here.lkey, source=there.address, rkey=there.rkey)
        assert completions(near, 1) == [Completion(7, 0)]
        assert target[:] == memory[:]
        for each in (one, other, here, there):
            each.close()

    async def test_there_is_a_way_to_a_peer(self, near: Device, far: Device) -> None:
        other = far.pair(depth=2, remote=True)
        await near.reach(other.address)
        other.close()

    def test_an_empty_write_is_a_sign_of_life(self, near: Device, far: Device) -> None:
        one, other = connected(near, far)
        one.write(1, 0, 0, 0, to=0, rkey=0)
        assert completions(near, 1) == [Completion(1, 0)]
        one.close()
        other.close()

    def test_an_end_that_is_gone_is_noticed(self, near: Device, far: Device) -> None:
        one, other = connected(near, far)
        other.close()
        one.write(1, 0, 0, 0, to=0, rkey=0)
        assert completions(near, 1) == [Completion(1, GONE)]
        one.close()

    @pytest.mark.parametrize("wrong", ["key", "end", "closed"])
    def test_memory_that_was_not_given_is_not_touched(
        self, near: Device, far: Device, memory: mmap.mmap, wrong: str
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(memory), remote=False)
        there = far.register(memoryview(target), remote=True)
        one, other = connected(near, far)
        to, rkey = there.address, there.rkey
        if wrong == "key":
            rkey ^= 1
        elif wrong == "end":
            to += SIZE - 100
        else:
            there.close()
        one.write(1, here.address, 4096, here.lkey, to=to, rkey=rkey)
        [found] = completions(near, 1)
        assert found.status not in (0, FLUSHED)
        # The pair is of no use from then on.
        one.write(2, here.address, 4096, here.lkey, to=there.address, rkey=there.rkey)
        assert completions(near, 1) == [Completion(2, FLUSHED)]
        assert not any(target[:])
        for each in (one, other, here, there):
            each.close()

    def test_a_key_of_another_domain_opens_nothing(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        """Each opening of a device is a domain: one tenant's keys mean nothing in another's."""
        target, own = mmap.mmap(-1, SIZE), mmap.mmap(-1, SIZE)
        here = near.register(memoryview(memory), remote=False)
        there = far.register(memoryview(target), remote=True)
        # The victim's memory is registered with the near device, the pair ends at the far one.
        victims = near.register(memoryview(own), remote=True)
        one, other = connected(near, far)
        one.write(1, here.address, 64, here.lkey, to=victims.address, rkey=victims.rkey)
        [found] = completions(near, 1)
        assert found.status not in (0, FLUSHED)
        assert not any(own[:])
        for each in (one, other, here, there, victims):
            each.close()

    def test_an_end_without_remote_rights_lets_nobody_in(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(target), remote=False)
        there = far.register(memoryview(memory), remote=True)
        one, other = connected(near, far)
        # The far end guesses the key of memory that was never offered.
        other.write(1, there.address, 64, there.lkey, to=here.address, rkey=here.lkey)
        [found] = completions(far, 1)
        assert found.status not in (0, FLUSHED)
        assert not any(target[:])
        for each in (one, other, here, there):
            each.close()

    def test_a_failed_pair_gives_everything_back(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(memory), remote=False)
        there = far.register(memoryview(target), remote=True)
        one, other = connected(near, far)
        for work in range(8):
            one.write(work, here.address, SIZE, here.lkey, to=there.address, rkey=there.rkey)
        one.fail()
        found = completions(near, 8)
        assert [each.work for each in found] == list(range(8))
        assert {each.status for each in found} <= {0, FLUSHED}
        one.fail()
        for each in (one, other, here, there):
            each.close()

    def test_a_failed_end_lets_nothing_in(
        self, near: Device, far: Device, memory: mmap.mmap
    ) -> None:
        target = mmap.mmap(-1, SIZE)
        here = near.register(memoryview(memory), remote=False)
        there = far.register(memoryview(target), remote=True)
        one, other = connected(near, far)
        other.fail()
        one.write(1, here.address, 4096, here.lkey, to=there.address, rkey=there.rkey)
        [found] = completions(near, 1)
        assert found.status not in (0, FLUSHED)
        assert not any(target[:])
        for each in (one, other, here, there):
            each.close()

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
