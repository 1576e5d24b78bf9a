"""The real device keeps the contract of devices."""

import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from gateway.rdma.device import Completion, RdmaUnavailable
from gateway.rdma.verbs import VerbsDevice, open_device
from tests.rdma.device_contract import DeviceContract, completions, connected

_THREADS = 8
# ibv_qp_attr_mask; their home differs from one release of pyverbs to the next.
IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13
IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17


class TestVerbsDevice(DeviceContract):
    @pytest.fixture
    def near(self) -> Iterator[VerbsDevice]:
        device = open_device()
        yield device
        device.close()
        device.close()

    @pytest.fixture
    def far(self) -> Iterator[VerbsDevice]:
        device = open_device()
        yield device
        device.close()

    def test_it_tells_what_it_is(self) -> None:
        device = open_device("rxe0")
        assert (device.name, device.link, device.mtu) == ("rxe0", "ethernet", 4096)
        # RoCE v2 over the address that the machine has.
        assert device.gid.startswith("::ffff:")
        assert device.max_message_bytes >= 1024**2
        device.close()

    @pytest.mark.parametrize(
        ("name", "port", "gid_index"), [("mlx5_9", None, None), (None, 7, None), (None, None, 500)]
    )
    def test_what_is_not_there_is_said(
        self, name: str | None, port: int | None, gid_index: int | None
    ) -> None:
        with pytest.raises(RdmaUnavailable):
            open_device(name, port, gid_index)

    def test_no_more_reads_are_under_way_than_the_peer_answers(
        self, near: VerbsDevice, far: VerbsDevice
    ) -> None:
        one, other = near.pair(depth=8, remote=False), far.pair(depth=2, remote=True)
        assert other.address.reads == far.reads > 1
        one.connect(replace(other.address, reads=1))
        other.connect(one.address)
        states, _ = one._pair.query(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC)
        assert (states.max_rd_atomic, states.max_dest_rd_atomic) == (1, near.reads)
        one.close()
        other.close()

    def test_threads_open_and_close_devices_at_once(self) -> None:
        """Each has an event channel of its own, found among the others'."""
        together = threading.Barrier(_THREADS)

        def open_some(_: int) -> None:
            together.wait(60)
            for _ in range(5):
                device = open_device()
                one, other = connected(device, device)
                one.write(1, 0, 0, 0, to=0, rkey=0)
                # It is told by this channel, and by no other's.
                assert select.select((device.descriptor,), (), (), 60)[0]
                assert completions(device, 1) == [Completion(1, 0)]
                for each in (one, other, device):
                    each.close()

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(open_some, range(_THREADS)))
