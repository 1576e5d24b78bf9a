"""What is read of a host, over a tree of files as the kernel has them."""

import sys
from pathlib import Path

import pytest

from gateway.config import RdmaConfig
from gateway.rdma import verbs
from gateway.rdma.device import Device, RdmaUnavailable
from gateway.rdma.facts import Netdev, Node, Opened, gather, open_as_gateway

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
_IPV4 = "0000:0000:0000:0000:0000:ffff:0a01:0001"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a card of two ports, of which the first carries RoCE."""
    card, net = "sys/class/infiniband/mlx5_0", "sys/class/net/ens1"
    _write(
        tmp_path,
        {
            f"{card}/node_type": "1: CA",
            f"{card}/fw_ver": "22.40.1000",
            f"{card}/device/iommu_group/type": "DMA-FQ",
            f"{card}/ports/1/state": "4: ACTIVE",
            f"{card}/ports/1/phys_state": "5: LinkUp",
            f"{card}/ports/1/link_layer": "Ethernet",
            f"{card}/ports/1/rate": "100 Gb/sec (4X EDR)",
            f"{card}/ports/1/gids/0": _LOCAL,
            f"{card}/ports/1/gids/2": _IPV4,
            f"{card}/ports/1/gids/10": _IPV4,
            f"{card}/ports/1/gids/11": _NO_GID,
            f"{card}/ports/1/gid_attrs/types/0": "IB/RoCE v1",
            f"{card}/ports/1/gid_attrs/types/2": "RoCE v2",
            f"{card}/ports/1/gid_attrs/ndevs/0": "ens1",
            f"{card}/ports/1/gid_attrs/ndevs/2": "ens1",
            f"{card}/ports/2/state": "1: DOWN",
            f"{card}/ports/2/link_layer": "InfiniBand",
            "sys/class/infiniband_verbs/abi_version": "6",
            "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
            "dev/infiniband/uverbs0": "",
            f"{net}/mtu": "9000",
            f"{net}/operstate": "up",
            f"{net}/ecn/roce_np/enable/3": "1",
            f"{net}/ecn/roce_np/enable/4": "0",
            f"{net}/ecn/roce_rp/enable/3": "0",
            "sys/module/ib_core/parameters/netns_mode": "N",
            "sys/fs/cgroup/rdma.max": "mlx5_0 hca_handle=max hca_object=5000",
            "sys/fs/cgroup/a/rdma.max": "mlx5_0 hca_handle=4 hca_object=9000\nmlx5_1 hca_handle=2",
            "proc/self/cgroup": "12:rdma:/old\n0::/a",
            "proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000",
            "proc/self/limits": "Limit  Soft  Hard  Units\n"
            "Max locked memory         8388608              unlimited            bytes     \n"
            "Max file locks            unlimited            unlimited            locks     ",
            "proc/sys/kernel/osrelease": "6.12.5-amd64",
            "proc/modules": "mlx5_ib 1 0 - Live 0x0\nnvidia 2 0 - Live 0x0",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64",
        },
    )
    driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (tmp_path / card / "device/driver").symlink_to(driver)
    return tmp_path


def test_a_card_is_read_with_its_ports_and_gids(root: Path) -> None:
    (device,) = gather(Opened(), root).devices
    assert (device.name, device.driver, device.transport) == ("mlx5_0", "mlx5_core", "CA")
    assert (device.firmware, device.iommu) == ("22.40.1000", "DMA-FQ")
    first, second = device.ports
    assert (first.number, first.state, first.physical) == (1, "ACTIVE", "LinkUp")
    assert (first.link, first.rate) == ("Ethernet", "100 Gb/sec (4X EDR)")
    # By number, and without what was never filled.
    assert [(gid.index, gid.kind, gid.netdev) for gid in first.gids] == [
        (0, "IB/RoCE v1", "ens1"),
        (2, "RoCE v2", "ens1"),
        (10, "", ""),
    ]
    assert (second.number, second.state, second.link, second.gids) == (2, "DOWN", "InfiniBand", ())


def test_the_network_devices_are_those_that_gids_name(root: Path) -> None:
    _write(root, {"sys/class/net/eth0/mtu": "1500"})
    assert gather(Opened(), root).netdevs == {
        "ens1": Netdev(name="ens1", mtu=9000, state="up", ecn={"roce_np": (3,), "roce_rp": ()})
    }


def test_a_driver_that_tells_nothing_of_ecn_is_not_taken_for_one_that_has_it_off(
    root: Path,
) -> None:
    (root / "sys/class/net/ens1/ecn").rename(root / "elsewhere")
    assert gather(Opened(), root).netdevs["ens1"].ecn is None


def test_a_device_without_hardware_has_no_driver(root: Path) -> None:
    (root / "sys/class/infiniband/mlx5_0/device/driver").unlink()
    assert gather(Opened(), root).devices[0].driver == ""


def test_a_device_node_is_tried_and_not_only_looked_at(root: Path) -> None:
    path = root / "dev/infiniband/uverbs0"
    assert gather(Opened(), root).devices[0].node == Node(path=str(path))
    path.unlink()
    assert gather(Opened(), root).devices[0].node == Node(path=str(path), problem="ENOENT")
    # Whatever is in the way is told by its name.
    path.mkdir()
    assert gather(Opened(), root).devices[0].node == Node(path=str(path), problem="EISDIR")


def test_a_device_that_uverbs_does_not_know_has_no_node(root: Path) -> None:
    _write(root, {"sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_7"})
    assert gather(Opened(), root).devices[0].node is None


def test_the_tightest_limit_of_all_cgroups_above_counts(root: Path) -> None:
    assert gather(Opened(), root).cgroup == {
        "mlx5_0": {"hca_handle": 4, "hca_object": 5000},
        "mlx5_1": {"hca_handle": 2},
    }


@pytest.mark.parametrize(
    ("capabilities", "soft", "lockable"),
    [
        ("0000000000000000", "8388608", 8_388_608),
        ("0000000000000000", "unlimited", None),
        # CAP_IPC_LOCK is above the limit.
        ("0000000000004000", "8388608", None),
        ("ffffffffffffbfff", "8388608", 8_388_608),
    ],
)
def test_how_much_may_be_locked_is_the_limit_or_a_capability(
    root: Path, capabilities: str, soft: str, lockable: int | None
) -> None:
    _write(
        root,
        {
            "proc/self/status": f"CapEff:\t{capabilities}",
            "proc/self/limits": f"Max locked memory         {soft}     unlimited   bytes",
        },
    )
    assert gather(Opened(), root).lockable_bytes == lockable


@pytest.mark.parametrize(("mode", "shared"), [("Y", True), ("N", False), ("", None)])
def test_whether_network_namespaces_share_devices_is_the_kernels_word(
    root: Path, mode: str, shared: bool | None
) -> None:
    _write(root, {"sys/module/ib_core/parameters/netns_mode": mode})
    assert gather(Opened(), root).shares_devices is shared


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_a_container_is_known_by_its_mark(root: Path, mark: str) -> None:
    assert not gather(Opened(), root).in_container
    _write(root, {mark: ""})
    assert gather(Opened(), root).in_container


def test_what_is_loaded_and_of_what_kind_is_read(root: Path) -> None:
    facts = gather(Opened(), root)
    assert facts.modules == {"mlx5_ib", "nvidia"}
    assert facts.open_nvidia
    assert facts.kernel == "6.12.5-amd64"


def test_a_host_with_nothing_tells_nothing_and_does_not_fail(tmp_path: Path) -> None:
    facts = gather(Opened(problem="none"), tmp_path)
    assert facts.devices == ()
    assert facts.netdevs == {}
    assert facts.opened.problem == "none"
    assert facts.lockable_bytes is None
    assert facts.cgroup == {}


def test_the_systems_own_pyverbs_is_found_with_the_python_it_is_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.rdma.facts.find_spec", lambda _: None)
    assert gather(Opened(), root).pyverbs.elsewhere is None
    folder = root / "usr/lib/python3/dist-packages/pyverbs"
    tag = sys.implementation.cache_tag
    _write(folder, {"device.cpython-39-x86_64-linux-gnu.so": ""})
    told = gather(Opened(), root).pyverbs
    assert (told.here, told.elsewhere, told.elsewhere_python) == (None, str(folder), "cpython-39")
    # Debian builds it for each Python that it has.
    _write(folder, {f"device.{tag}-x86_64-linux-gnu.so": ""})
    assert gather(Opened(), root).pyverbs.elsewhere_python == tag


def test_pyverbs_that_this_environment_sees_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "path", {"pyverbs/__init__.py": "raise SystemExit('imported')"})
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    assert gather(Opened(), tmp_path).pyverbs.here == str(tmp_path / "path/pyverbs")


def test_rdma_cores_release_is_in_its_librarys_name(root: Path) -> None:
    assert gather(Opened(), root).pyverbs.rdma_core is None
    _write(root, {"usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0": ""})
    (root / "usr/lib/x86_64-linux-gnu/libibverbs.so.1").symlink_to("libibverbs.so.1.14.44.0")
    assert gather(Opened(), root).pyverbs.rdma_core == "44.0"
    # What is loaded counts more than what lies there.
    _write(root, {"proc/self/maps": "7f00-7f10 r-xp 0 0 1  /opt/lib/libibverbs.so.1.15.59.0"})
    assert gather(Opened(), root).pyverbs.rdma_core == "59.0"


def test_where_nothing_can_be_opened_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Device:
        raise RdmaUnavailable("no port of mlx5_0 is active")

    monkeypatch.setattr(verbs, "open_device", refuse)
    assert open_as_gateway(RdmaConfig()) == Opened(problem="no port of mlx5_0 is active")


def test_a_pyverbs_that_cannot_be_imported_is_told_apart_from_a_device_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, {"pyverbs/__init__.py": "raise ImportError('version not found')"})
    monkeypatch.syspath_prepend(str(tmp_path))
    opened = open_as_gateway(RdmaConfig())
    assert opened.no_verbs
    assert "version not found" in opened.problem
