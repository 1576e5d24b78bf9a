"""The machine that these tests run in is what they take it for."""

import resource

import pytest
from pyverbs.device import Context, get_device_list

# ibv_port_state and ibv_mtu; their home differs from one release of pyverbs to the next.
_PORT_ACTIVE = 4
_MTU_4096 = 5
_ADDRESS_GID = "0000:0000:0000:0000:0000:ffff:0a4d:0001"


@pytest.fixture
def device() -> Context:
    return Context(name="rxe0")


def test_there_is_one_device() -> None:
    assert [each.name.decode() for each in get_device_list()] == ["rxe0"]


def test_its_port_is_active_with_the_largest_packets(device: Context) -> None:
    port = device.query_port(1)
    assert (port.state, port.active_mtu) == (_PORT_ACTIVE, _MTU_4096)


def test_its_second_gid_is_the_address_of_the_machine(device: Context) -> None:
    assert device.query_gid(1, 1).gid == _ADDRESS_GID


def test_memory_may_be_registered_without_limit() -> None:
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
