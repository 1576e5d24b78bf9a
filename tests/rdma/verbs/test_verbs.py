"""The real device keeps the contract of devices."""

from collections.abc import Iterator

import pytest

from gateway.rdma.device import Device, RdmaUnavailable
from gateway.rdma.verbs import open_device
from tests.rdma.device_contract import DeviceContract


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
