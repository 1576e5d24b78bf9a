"""The soft device keeps the contract of devices, so that what is tested over it is tested."""

from collections.abc import Iterator

import pytest

from gateway.rdma.device import Device
from tests.rdma.device_contract import DeviceContract
from tests.rdma.soft import Fabric


class TestSoftDevice(DeviceContract):
    @pytest.fixture
    def fabric(self) -> Fabric:
        return Fabric()

    @pytest.fixture
    def near(self, fabric: Fabric) -> Iterator[Device]:
        device = fabric.device()
        yield device
        device.close()
        device.close()

    @pytest.fixture
    def far(self, fabric: Fabric) -> Iterator[Device]:
        device = fabric.device()
        yield device
        device.close()
