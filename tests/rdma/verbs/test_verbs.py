"""The real device keeps the contract of devices."""

import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.rdma.device import Completion, Device, RdmaUnavailable
from gateway.rdma.verbs import open_device
from tests.rdma.device_contract import DeviceContract, completions, connected

_THREADS = 8


class TestVerbsDevice(DeviceContract):
    @pytest.fixture
    def near(self) -> Iterator[Device]:
        device = open_device()
        yield device
        device.close()
        device.close()

    @pytest.fixture
    def far(self) -> Iterator[Device]:
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
