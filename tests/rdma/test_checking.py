"""What RDMA needs of a host, told from what the host says of itself."""

from typing import Any

import msgspec
import pytest

from gateway.config import Bytes, RdmaConfig
from gateway.rdma.checking import check
from gateway.rdma.facts import Facts, Gid, HostDevice, Netdev, Node, Opened, Port, Pyverbs
from gateway.rdma.findings import Finding, is_used, verdict

_V1 = Gid(index=0, gid="fe80::1", kind="IB/RoCE v1", netdev="ens1")
_V2_LOCAL = Gid(index=1, gid="fe80::1", kind="RoCE v2", netdev="ens1")
_V2 = Gid(index=3, gid="::ffff:10.1.0.1", kind="RoCE v2", netdev="ens1")
_PORT = Port(
    number=1,
    state="ACTIVE",
    physical="LinkUp",
    link="Ethernet",
    rate="100 Gb/sec (4X EDR)",
    gids=(_V1, _V2_LOCAL, _V2),
)
_DEVICE = HostDevice(
    name="mlx5_0",
    driver="mlx5_core",
    transport="CA",
    firmware="22.40.1000",
    node=Node(path="/dev/infiniband/uverbs0"),
    iommu="identity",
    ports=(_PORT,),
)
_NETDEV = Netdev(name="ens1", mtu=9000, state="up", ecn={"roce_np": (3,), "roce_rp": (3,)})
_OPENED = Opened(device="mlx5_0", port=1, gid_index=3, gid="::ffff:10.1.0.1", mtu=4096)
_WELL = Facts(
    pyverbs=Pyverbs(python="cpython-311", here="/venv/pyverbs", release="59.0", rdma_core="59.0"),
    devices=(_DEVICE,),
    netdevs={"ens1": _NETDEV},
    opened=_OPENED,
    lockable_bytes=None,
    kernel="6.12.5-amd64",
    modules=frozenset({"mlx5_core", "mlx5_ib", "ib_uverbs"}),
    cgroup={},
    shares_devices=True,
    in_container=False,
    open_nvidia=False,
)
_CLOSED = Opened(problem="there is no RDMA device")
_CONFIG = RdmaConfig()


def _with(facts: Facts = _WELL, **changes: Any) -> Facts:
    return msgspec.structs.replace(facts, **changes)


def _with_device(**changes: Any) -> Facts:
    return _with(devices=(msgspec.structs.replace(_DEVICE, **changes),))


def _with_port(**changes: Any) -> Facts:
    return _with_device(ports=(msgspec.structs.replace(_PORT, **changes),))


def _with_netdev(**changes: Any) -> Facts:
    return _with(netdevs={"ens1": msgspec.structs.replace(_NETDEV, **changes)})


def _found(name: str, facts: Facts, config: RdmaConfig = _CONFIG) -> Finding:
    (found,) = (each for each in check(facts, config) if each.name == name)
    return found


def test_a_host_with_all_of_it_uses_rdma_and_is_told_what_cannot_be_seen() -> None:
    findings = check(_WELL, _CONFIG)
    assert is_used(findings)
    assert verdict(findings, required=False) == "RDMA will be used."
    assert {each.name for each in findings if each.state != "ok"} == {"PFC"}
    assert not any(each.why or each.do for each in findings if each.state == "ok")


def test_what_is_not_well_says_why_and_what_to_do() -> None:
    facts = _with(
        pyverbs=Pyverbs(python="cpython-311", here=None),
        devices=(
            msgspec.structs.replace(
                _DEVICE, driver="", node=None, iommu="DMA", ports=(
                    msgspec.structs.replace(_PORT, state="DOWN", gids=(_V1,)),
                ),
            ),
        ),
        netdevs={"ens1": msgspec.structs.replace(_NETDEV, mtu=1500)},
        opened=Opened(problem="pyverbs cannot be imported", no_verbs=True),
        lockable_bytes=65_536,
        modules=frozenset({"nvidia"}),
        cgroup={"mlx5_0": {"hca_handle": 0}},
    )  # fmt: skip
    findings = check(facts, RdmaConfig(mode="off"))
    assert not is_used(findings)
    bad = [each for each in findings if each.state != "ok"]
    assert len(bad) == 11
    assert all(each.why and each.do for each in bad)


def test_pfc_is_never_told_to_be_well() -> None:
    found = _found("PFC", _WELL)
    assert found.state == "unknown"
    assert "dcb pfc show dev ens1" in found.do


def test_a_configuration_that_says_off_is_the_reason() -> None:
    config = RdmaConfig(mode="off")
    findings = check(_WELL, config)
    assert _found("rdma.mode", _WELL, config).state == "error"
    assert verdict(findings, required=False).startswith(
        "RDMA will not be used: rdma.mode: off. HTTP"
    )


def test_a_node_that_must_have_rdma_does_not_start_without() -> None:
    config = RdmaConfig(mode="required")
    said = verdict(check(_with(devices=(), opened=_CLOSED), config), required=True)
    assert said == "RDMA will not be used: device: none. feedrack serve will not start."


@pytest.mark.parametrize(
    ("pyverbs", "found", "do"),
    [
        (Pyverbs(python="cpython-311", here=None), "none, no libibverbs", "python3-pyverbs"),
        (
            Pyverbs(
                python="cpython-311", here=None, rdma_core="44.0",
                elsewhere="/usr/lib/python3/dist-packages/pyverbs", elsewhere_python="cpython-311",
            ),
            "does not look there",
            "include-system-site-packages = true",
        ),
        (
            Pyverbs(
                python="cpython-312", here=None,
                elsewhere="/usr/lib/python3/dist-packages/pyverbs", elsewhere_python="cpython-311",
            ),
            "is for cpython-311, this is cpython-312",
            "/usr/bin/python3 -m venv --system-site-packages",
        ),
    ],
)  # fmt: skip
def test_pyverbs_that_is_not_seen_is_told_by_where_it_is(
    pyverbs: Pyverbs, found: str, do: str
) -> None:
    facts = _with(
        pyverbs=pyverbs, opened=Opened(problem="pyverbs cannot be imported", no_verbs=True)
    )
    told = _found("pyverbs", facts)
    assert told.state == "error"
    assert found in told.found
    assert do in told.do
    # Said once: that opening failed as well is no news.
    assert "opening" not in {each.name for each in check(facts, _CONFIG)}


def test_pyverbs_that_was_built_for_another_rdma_core_is_told_in_its_own_words() -> None:
    problem = "libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found"
    facts = _with(opened=Opened(problem=problem, no_verbs=True))
    told = _found("pyverbs", facts)
    assert told.state == "error"
    assert problem in told.found
    assert "59 to 63" in told.why
    assert "opening" not in {each.name for each in check(facts, _CONFIG)}


@pytest.mark.parametrize(
    ("changes", "why", "do"),
    [
        ({"modules": frozenset()}, "the kernel has none", "needs a card"),
        ({"modules": frozenset({"mlx5_core"})}, "its RDMA part is not", "modprobe mlx5_ib"),
        ({"modules": frozenset({"bnxt_en"})}, "its RDMA part is not", "modprobe bnxt_re"),
        ({"shares_devices": False}, "network namespace", "rdma dev set DEVICE netns"),
        ({"in_container": True}, "the kernel has none", "look on the host"),
    ],
)
def test_a_host_without_a_device_is_told_what_may_be_missing(
    changes: dict[str, Any], why: str, do: str
) -> None:
    found = _found("device", _with(devices=(), opened=_CLOSED, **changes))
    assert found.state == "error"
    assert why in found.why
    assert do in found.do


def test_a_device_that_is_open_is_one_though_its_folder_cannot_be_read() -> None:
    facts = _with(devices=())
    assert _found("device", facts).found == "mlx5_0"
    assert is_used(check(facts, _CONFIG))


def test_a_device_that_the_configuration_names_must_be_there() -> None:
    found = _found("device", _with(opened=_CLOSED), RdmaConfig(device="mlx5_9"))
    assert (found.state, found.found) == ("error", "no mlx5_9, but mlx5_0")


def test_the_device_that_is_judged_is_the_one_that_was_opened() -> None:
    down = msgspec.structs.replace(
        _DEVICE, name="mlx5_1", ports=(msgspec.structs.replace(_PORT, state="DOWN"),)
    )
    assert _found("port", _with(devices=(down, _DEVICE))).state == "ok"
    # Without one, the first with an active port; else any.
    assert _found("port", _with(devices=(down, _DEVICE), opened=_CLOSED)).state == "ok"
    assert _found("port", _with(devices=(down,), opened=_CLOSED)).state == "error"
    config = RdmaConfig(device="mlx5_1")
    assert _found("port", _with(devices=(_DEVICE, down), opened=_CLOSED), config).state == "error"


@pytest.mark.parametrize(
    ("changes", "state", "found"),
    [
        ({"driver": ""}, "warning", "soft-RoCE"),
        ({"transport": "RNIC", "driver": "iw_cxgb4"}, "error", "iWARP"),
        ({"transport": "unspecified", "driver": "efa"}, "error", "efa"),
        ({}, "ok", "mlx5_core, CA, firmware 22.40.1000"),
    ],
)
def test_what_a_device_speaks_decides_whether_it_can_be_used(
    changes: dict[str, Any], state: str, found: str
) -> None:
    told = _found("transport", _with_device(**changes))
    assert told.state == state
    assert found in told.found


def test_soft_roce_is_used_and_not_asked_for_what_cards_have() -> None:
    findings = check(_with_device(driver=""), _CONFIG)
    assert is_used(findings)
    assert not {"PFC", "ECN"} & {each.name for each in findings}


@pytest.mark.parametrize(
    ("node", "in_container", "do"),
    [
        (None, False, "modprobe ib_uverbs"),
        (Node(path="/dev/infiniband/uverbs0", problem="ENOENT"), True, "--device=/dev/infiniband"),
        (Node(path="/dev/infiniband/uverbs0", problem="EPERM"), True, "--device=/dev/infiniband"),
        (Node(path="/dev/infiniband/uverbs0", problem="EPERM"), False, "DeviceAllow="),
        (Node(path="/dev/infiniband/uverbs0", problem="EACCES"), False, "chmod 0666"),
        (Node(path="/dev/infiniband/uverbs0", problem="EIO"), False, "dmesg"),
    ],
)
def test_a_device_node_that_cannot_be_opened_is_told_by_its_reason(
    node: Node | None, in_container: bool, do: str
) -> None:
    (device,) = _with_device(node=node).devices
    found = _found("device node", _with(devices=(device,), in_container=in_container))
    assert found.state == "error"
    assert do in found.do


@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({"state": "DOWN"}, "ip link set ens1 up"),
        ({"state": "DOWN", "gids": ()}, "ip link set DEV up"),
        ({"state": "INIT", "link": "InfiniBand"}, "opensm"),
        ({"state": "DOWN", "link": "InfiniBand", "physical": "Polling"}, "ibstat"),
    ],
)
def test_a_port_that_is_not_active_is_told_by_its_link(changes: dict[str, Any], do: str) -> None:
    found = _found("port", _with(_with_port(**changes), opened=_CLOSED))
    assert found.state == "error"
    assert do in found.do


def test_a_port_that_the_configuration_names_must_be_there() -> None:
    found = _found("port", _with(opened=_CLOSED), RdmaConfig(port=2))
    assert (found.state, found.found) == ("error", "mlx5_0 has no port 2")


def test_infiniband_is_asked_for_nothing_of_ethernets() -> None:
    names = {each.name for each in check(_with_port(link="InfiniBand"), _CONFIG)}
    assert not {"GID", "MTU", "ECN", "PFC"} & names


@pytest.mark.parametrize(
    ("gids", "config", "state", "found", "do"),
    [
        ((), _CONFIG, "error", "none", "an address"),
        ((_V1, _V2), RdmaConfig(gid_index=7), "error", "none at index 7", "gid_index = 3"),
        ((_V1, _V2), RdmaConfig(gid_index=0), "warning", "IB/RoCE v1", "gid_index = 3"),
        ((_V1,), _CONFIG, "warning", "IB/RoCE v1", "RoCE v2"),
        ((_V1, _V2_LOCAL), _CONFIG, "warning", "fe80::1 at index 1", "ip addr add"),
        ((_V2_LOCAL, _V2), RdmaConfig(gid_index=1), "warning", "fe80::1", "gid_index = 3"),
        ((_V1, _V2_LOCAL, _V2), _CONFIG, "ok", "10.1.0.1 at index 3, RoCE v2, ens1", ""),
    ],
)
def test_the_gid_should_be_roce_v2_with_ipv4(
    gids: tuple[Gid, ...], config: RdmaConfig, state: str, found: str, do: str
) -> None:
    told = _found("GID", _with(_with_port(gids=gids), opened=_CLOSED), config)
    assert told.state == state
    assert found in told.found
    assert do in told.do


def test_a_network_device_of_another_namespace_is_told() -> None:
    found = _found("network device", _with(netdevs={}))
    assert found.state == "warning"
    assert "ens1" in found.found


@pytest.mark.parametrize(
    ("netdev_mtu", "opened_mtu", "state", "found"),
    [
        (9000, 4096, "ok", "ens1 9000, RDMA's packets 4096"),
        (4200, 4096, "ok", "4096"),
        (4200, 0, "ok", "4096"),
        (4191, 0, "warning", "2048"),
        (1500, 1024, "warning", "1024"),
        (9000, 1024, "warning", "1024"),
        (68, 0, "warning", "packets 0"),
    ],
)
def test_packets_should_carry_4096_bytes(
    netdev_mtu: int, opened_mtu: int, state: str, found: str
) -> None:
    opened = msgspec.structs.replace(_OPENED, mtu=opened_mtu)
    told = _found("MTU", _with(_with_netdev(mtu=netdev_mtu), opened=opened))
    assert told.state == state
    assert found in told.found


@pytest.mark.parametrize(
    ("ecn", "state", "said"),
    [
        ({"roce_np": (3,), "roce_rp": (3, 4)}, "ok", "priorities 3"),
        ({"roce_np": (3,), "roce_rp": (4,)}, "warning", "no priority"),
        ({"roce_np": (3,), "roce_rp": ()}, "warning", "roce_rp"),
        ({"roce_np": (), "roce_rp": ()}, "warning", "roce_np, roce_rp"),
        (None, "unknown", "does not tell"),
    ],
)
def test_ecn_should_be_on_at_both_roles_for_one_priority(
    ecn: dict[str, tuple[int, ...]] | None, state: str, said: str
) -> None:
    told = _found("ECN", _with_netdev(ecn=ecn))
    assert told.state == state
    assert said in told.found


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        ({}, "ok"),
        ({"hca_handle": 4, "hca_object": 5000}, "ok"),
        ({"hca_object": 2000}, "warning"),
        ({"hca_object": 100}, "warning"),
        ({"hca_object": 3}, "error"),
        ({"hca_handle": 0}, "error"),
    ],
)
def test_a_cgroup_should_let_it_have_an_object_for_each_session_and_part_of_a_file(
    limits: dict[str, int], state: str
) -> None:
    assert _found("rdma cgroup", _with(cgroup={"mlx5_0": limits})).state == state


@pytest.mark.parametrize(
    ("iommu", "state"),
    [("", "ok"), ("identity", "ok"), ("DMA", "warning"), ("DMA-FQ", "warning")],
)
def test_an_iommu_that_translates_is_in_the_way(iommu: str, state: str) -> None:
    assert _found("IOMMU", _with_device(iommu=iommu)).state == state


@pytest.mark.parametrize(
    ("modules", "open_nvidia", "state", "found"),
    [
        (set(), False, "ok", "no GPU here"),
        ({"nvidia"}, False, "warning", "nothing that lets"),
        ({"nvidia", "nvidia_peermem"}, False, "ok", "by nvidia_peermem"),
        ({"nvidia"}, True, "ok", "by dma-buf"),
        ({"amdgpu"}, False, "ok", "by dma-buf"),
    ],
)
def test_a_gpus_memory_needs_somebody_who_lends_it(
    modules: set[str], open_nvidia: bool, state: str, found: str
) -> None:
    told = _found("GPU memory", _with(modules=frozenset(modules), open_nvidia=open_nvidia))
    assert told.state == state
    assert found in told.found


@pytest.mark.parametrize(
    ("lockable_bytes", "state"),
    [
        (None, "ok"),
        (336 * 1024**2, "ok"),
        (336 * 1024**2 - 1, "warning"),
        (80 * 1024**2, "warning"),
        (80 * 1024**2 - 1, "error"),
    ],
)
def test_as_much_memory_must_be_lockable_as_the_gateway_registers(
    lockable_bytes: int | None, state: str
) -> None:
    config = RdmaConfig(buffers=Bytes(64 * 1024**2), mapped=Bytes(256 * 1024**2))
    told = _found("locked memory", _with(lockable_bytes=lockable_bytes), config)
    assert told.state == state
    if state != "ok":
        assert "LimitMEMLOCK=infinity" in told.do
        assert "80 MiB" in told.why


def test_buffers_for_other_nodes_are_locked_too() -> None:
    config = RdmaConfig(buffers=Bytes(64 * 1024**2), mapped=Bytes(256 * 1024**2))
    facts = _with(lockable_bytes=336 * 1024**2)
    told = {each.name: each for each in check(facts, config, peer_bytes=64 * 1024**2)}
    assert told["locked memory"].state == "warning"
    assert "64 MiB (rdma.peer_buffers)" in told["locked memory"].why


@pytest.mark.parametrize(
    ("kernel", "mapped", "found"),
    [
        ("6.12.5-amd64", 1024**2, "sent from where they lie, if the device can"),
        ("6.3.0", 1024**2, "sent from where they lie, if the device can"),
        ("6.1.0-57-amd64", 1024**2, "copied into buffers by Linux 6.1.0-57-amd64"),
        ("", 1024**2, "copied into buffers"),
        ("6.12.5-amd64", 0, "as rdma.mapped = 0 says"),
    ],
)
def test_how_chunk_files_go_out_is_told(kernel: str, mapped: int, found: str) -> None:
    told = _found("chunk files", _with(kernel=kernel), RdmaConfig(mapped=Bytes(mapped)))
    assert told.state == "ok"
    assert found in told.found


def test_a_device_that_cannot_be_opened_is_told_in_its_own_words() -> None:
    found = _found("opening", _with(opened=Opened(problem="mlx5_0 cannot be used: ENOMEM")))
    assert (found.state, found.found) == ("error", "mlx5_0 cannot be used: ENOMEM")
    assert "ibverbs-providers" in _found("opening", _with(opened=_CLOSED)).do
    assert "ibverbs-providers" not in found.do
    assert "at 3" in _found("opening", _WELL).found
