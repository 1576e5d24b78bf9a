"""What RDMA needs of a host, against what the host says of itself: facts in, findings out. Pure.

See docs/rdma.md.
"""

import re
from collections.abc import Iterator

from gateway.config import RdmaConfig
from gateway.rdma.facts import Facts, HostDevice, Opened, Port, Pyverbs
from gateway.rdma.findings import Finding
from gateway.rdma.mapped import FROM_BYTES, MOST_PARTS
from gateway.rdma.roce import check_roce

# Rings of queue pairs and of the completion queue are locked too.
_RINGS_BYTES = 16 * 1024**2
# What a gateway has of a device besides queue pairs, parts of files and buffers of peers.
_OBJECTS_BESIDE = 16
# Drivers of a network card, and what makes RDMA of it.
_COMPANIONS = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "qede": "qedr",
    "mana": "mana_ib",
    "hns3": "hns_roce_hw_v2",
}
_NO_RELIABLE_CONNECTION = ("efa", "usnic_verbs")
_NVIDIA_PEERS = ("nvidia_peermem", "nv_peer_mem")
# Before it, a mapping that may only be read cannot be registered.
_MAPS_FILES_FROM = (6, 3)
# As `verbs` says it: the kernel has a device that the library has no provider for.
_UNLISTED = "there is no RDMA device"
_MIB = 1024**2


def check(facts: Facts, config: RdmaConfig, *, peer_bytes: int = 0) -> list[Finding]:
    """Everything that was looked at, in the order in which an operator would see to it.

    `peer_bytes`: what the buffers take that other nodes write into."""
    findings = [_mode(config), _pyverbs(facts.pyverbs, facts.opened), *_devices(facts, config)]
    device = _chosen(facts, config)
    if device is not None:
        findings += _device(facts, config, device)
    findings += (_memory(facts, config, peer_bytes), _chunk_files(facts, config))
    # Said already, where there is nothing to open or nothing to open it with.
    if (facts.devices or facts.opened.device) and not facts.opened.no_verbs:
        findings.append(_opening(facts))
    return findings


def _mode(config: RdmaConfig) -> Finding:
    if config.mode == "off":
        return Finding(
            name="rdma.mode", state="error", found="off", why="the configuration says so",
            do='mode = "auto" under [rdma]',
        )  # fmt: skip
    return Finding(name="rdma.mode", state="ok", found=config.mode)


def _pyverbs(pyverbs: Pyverbs, opened: Opened) -> Finding:
    core = f"rdma-core {pyverbs.rdma_core}" if pyverbs.rdma_core else "no libibverbs"
    if pyverbs.here is not None and opened.no_verbs:
        return Finding(
            name="pyverbs",
            state="error",
            found=f"{pyverbs.here}, {core}: {opened.problem}",
            why="pyverbs loads with the rdma-core alone that it was built for: the index's 59 with "
            "59 to 63",
            do="take both from the distribution, or rdma-core from where it has that release",
        )
    if pyverbs.here is not None:
        release = f"{pyverbs.release}, " if pyverbs.release else ""
        return Finding(name="pyverbs", state="ok", found=f"{release}{pyverbs.here}, {core}")
    if pyverbs.elsewhere is None:
        return Finding(
            name="pyverbs",
            state="error",
            found=f"none, {core}",
            why="the gateway speaks to devices through it",
            do="apt install python3-pyverbs ibverbs-providers (Debian, Ubuntu), or pip install "
            "'feedrack[rdma]' where rdma-core 59 or later, its headers and a compiler are",
        )
    if pyverbs.elsewhere_python != pyverbs.python:
        return Finding(
            name="pyverbs",
            state="error",
            found=f"{pyverbs.elsewhere} is for {pyverbs.elsewhere_python}, this is "
            f"{pyverbs.python}",
            why="its extensions load in the Python alone that they were built for",
            do="make feedrack's environment with the system's Python: /usr/bin/python3 -m venv "
            "--system-site-packages DIR",
        )
    return Finding(
        name="pyverbs",
        state="error",
        found=f"{pyverbs.elsewhere} is there, and this environment does not look there",
        why="an environment sees its own packages alone unless it is told otherwise",
        do="include-system-site-packages = true in the environment's pyvenv.cfg, or make it with "
        "/usr/bin/python3 -m venv --system-site-packages DIR",
    )


def _devices(facts: Facts, config: RdmaConfig) -> Iterator[Finding]:
    names = [each.name for each in facts.devices] or [
        each for each in (facts.opened.device,) if each
    ]
    if config.device is not None and names and config.device not in names:
        yield Finding(
            name="device", state="error", found=f"no {config.device}, but {', '.join(names)}",
            why="rdma.device names it", do="name one of these, or none",
        )  # fmt: skip
    elif names:
        yield Finding(name="device", state="ok", found=", ".join(names))
    else:
        yield _no_device(facts)


def _no_device(facts: Facts) -> Finding:
    why, do = "the kernel has none", "RDMA needs a card that can, and its driver"
    lacking = [
        f"modprobe {provider}"
        for card, provider in _COMPANIONS.items()
        if card in facts.modules and provider not in facts.modules
    ]
    if lacking:
        why, do = "the card's driver is loaded, its RDMA part is not", " && ".join(lacking)
    elif facts.shares_devices is False:
        why = "each network namespace has devices of its own here, and this one has none"
        do = "on the host: rdma dev set DEVICE netns NAME, or rdma system set netns shared"
    elif facts.in_container:
        do = "look on the host; /sys of a container shows what the host has"
    return Finding(name="device", state="error", found="none", why=why, do=do)


def _chosen(facts: Facts, config: RdmaConfig) -> HostDevice | None:
    """The device that is opened, or would be."""
    wanted = facts.opened.device or config.device
    named = [each for each in facts.devices if wanted in ("", None, each.name)]
    active = [each for each in named if any(port.state == "ACTIVE" for port in each.ports)]
    return next(iter([*active, *named]), None)


def _device(facts: Facts, config: RdmaConfig, device: HostDevice) -> Iterator[Finding]:
    yield _kind(device)
    yield _node(facts, device)
    wanted = facts.opened.port or config.port
    ports = [each for each in device.ports if wanted in (0, None, each.number)]
    port = next((each for each in ports if each.state == "ACTIVE"), ports[0] if ports else None)
    if port is None:
        yield Finding(
            name="port", state="error", found=f"{device.name} has no port {wanted}",
            why="rdma.port names it", do="name one that is there, or none",
        )  # fmt: skip
        return
    yield _port(device, port)
    if port.link == "Ethernet":
        yield from check_roce(facts, config, device, port)
    yield _cgroup(facts, config, device)
    yield _iommu(device)
    yield _gpu(facts)


def _kind(device: HostDevice) -> Finding:
    found = f"{device.driver or 'software'}, {device.transport}"
    if device.firmware:
        found += f", firmware {device.firmware}"
    if device.transport == "RNIC":
        return Finding(
            name="transport", state="error", found=f"iWARP ({found})",
            why="its queue pairs are connected by its own manager alone", do="RoCE or InfiniBand",
        )  # fmt: skip
    if device.driver in _NO_RELIABLE_CONNECTION:
        return Finding(
            name="transport", state="error", found=found,
            why="it has no reliable connections (RC)", do="RoCE or InfiniBand",
        )  # fmt: skip
    if not device.driver:
        return Finding(
            name="transport", state="warning", found="soft-RoCE (rdma_rxe): no hardware behind it",
            why="it works, and the processor copies every byte: nothing is gained",
            do='good for tests; mode = "off" under [rdma] elsewhere',
        )  # fmt: skip
    return Finding(name="transport", state="ok", found=found)


def _node(facts: Facts, device: HostDevice) -> Finding:
    node = device.node
    if node is None:
        return Finding(
            name="device node", state="error", found=f"{device.name} has none",
            why="programs reach a device through /dev/infiniband/uverbs*", do="modprobe ib_uverbs",
        )  # fmt: skip
    if not node.problem:
        return Finding(name="device node", state="ok", found=node.path)
    number = node.path.rpartition("uverbs")[2]
    where = (
        f"start the container with --device={node.path}"
        if facts.in_container
        else f"DeviceAllow=/dev/infiniband/uverbs{number} rw in its unit, if that limits devices"
    )
    do = {
        "ENOENT": f"{where}; on a host, udev makes it",
        "EACCES": f"chmod 0666 {node.path}, as rdma-core's udev rules do",
        "EPERM": where,
    }.get(node.problem, "see dmesg")
    return Finding(
        name="device node", state="error", found=f"{node.path}: {node.problem}",
        why="it cannot be opened for reading and writing", do=do,
    )  # fmt: skip


def _port(device: HostDevice, port: Port) -> Finding:
    found = f"{device.name} port {port.number}, {port.link}, {port.state}, {port.rate}"
    if port.state == "ACTIVE":
        return Finding(name="port", state="ok", found=found)
    if port.link == "InfiniBand" and port.state == "INIT":
        why, do = "no subnet manager has seen to it", "run one in the fabric: opensm, or a switch's"
    elif port.link == "InfiniBand":
        why, do = f"the link is {port.physical or 'down'}", "see to cable and switch: ibstat"
    else:
        names = sorted({gid.netdev for gid in port.gids if gid.netdev})
        why = "its network device is down"
        do = f"ip link set {names[0] if names else 'DEV'} up; then see to cable and switch"
    return Finding(name="port", state="error", found=found, why=why, do=do)


def _cgroup(facts: Facts, config: RdmaConfig, device: HostDevice) -> Finding:
    limits = facts.cgroup.get(device.name, {})
    if not limits:
        return Finding(name="rdma cgroup", state="ok", found="no limit")
    found = ", ".join(f"{key} {value}" for key, value in sorted(limits.items()))
    parts = min(MOST_PARTS, config.mapped // FROM_BYTES)
    needed = config.sessions + parts + config.peer_buffers + _OBJECTS_BESIDE
    has_handle = limits.get("hca_handle", 1) > 0
    objects = limits.get("hca_object", needed)
    if has_handle and objects >= needed:
        return Finding(name="rdma cgroup", state="ok", found=found)
    return Finding(
        name="rdma cgroup",
        state="warning" if has_handle and objects >= _OBJECTS_BESIDE else "error",
        found=found,
        why=f"{config.sessions} sessions take one object each, {parts} parts of chunk files "
        f"(rdma.mapped), {config.peer_buffers} buffers for other nodes, and the gateway "
        f"{_OBJECTS_BESIDE}",
        do=f"echo '{device.name} hca_handle=max hca_object=max' > its cgroup's rdma.max",
    )


def _iommu(device: HostDevice) -> Finding:
    if device.iommu.startswith("DMA"):
        return Finding(
            name="IOMMU", state="warning", found=f"translates ({device.iommu})",
            why="each page that is registered is mapped once more, and each access looked up",
            do="iommu=pt on the kernel's command line, where nothing else needs it",
        )  # fmt: skip
    return Finding(name="IOMMU", state="ok", found=device.iommu or "none in the way")


def _gpu(facts: Facts) -> Finding:
    acs = "; ACS on the PCIe switches between (lspci -vvv: ACSCtl) makes it pass the processor"
    if "amdgpu" in facts.modules:
        return Finding(name="GPU memory", state="ok", found=f"amdgpu, by dma-buf{acs}")
    if "nvidia" not in facts.modules:
        return Finding(name="GPU memory", state="ok", found="no GPU here: host memory alone")
    peers = [each for each in _NVIDIA_PEERS if each in facts.modules]
    if facts.open_nvidia or peers:
        how = "dma-buf" if facts.open_nvidia else peers[0]
        return Finding(name="GPU memory", state="ok", found=f"nvidia, by {how}{acs}")
    return Finding(
        name="GPU memory", state="warning", found="nvidia, and nothing that lets a card reach it",
        why="a GPU's memory cannot be registered; a gateway needs none, a client may",
        do="modprobe nvidia_peermem, or NVIDIA's open kernel modules",
    )  # fmt: skip


def _memory(facts: Facts, config: RdmaConfig, peer_bytes: int) -> Finding:
    if facts.lockable_bytes is None:
        return Finding(name="locked memory", state="ok", found="no limit for this process")
    needed = config.buffers + _RINGS_BYTES
    found = f"{facts.lockable_bytes // 1024} KiB for this process"
    if facts.lockable_bytes >= needed + config.mapped + peer_bytes:
        return Finding(name="locked memory", state="ok", found=found)
    return Finding(
        name="locked memory",
        state="error" if facts.lockable_bytes < needed else "warning",
        found=found,
        why=f"buffers and rings take {-(-needed // _MIB)} MiB (rdma.buffers), chunk files that are "
        f"sent where they lie {config.mapped // _MIB} MiB (rdma.mapped), buffers for other nodes "
        f"{peer_bytes // _MIB} MiB (rdma.peer_buffers); "
        "a service may have another limit than this shell",
        do="LimitMEMLOCK=infinity in the unit; ulimit -l unlimited in a shell; "
        "--ulimit memlock=-1 for a container",
    )


def _chunk_files(facts: Facts, config: RdmaConfig) -> Finding:
    """No matter of right and wrong: both work, and one takes less of the processor."""
    release = re.match(r"(\d+)\.(\d+)", facts.kernel)
    if not config.mapped:
        found = "copied into buffers, as rdma.mapped = 0 says"
    elif release is not None and (int(release[1]), int(release[2])) >= _MAPS_FILES_FROM:
        found = "sent from where they lie, if the device can"
    else:
        found = f"copied into buffers by Linux {facts.kernel}; from 6.3 on sent from where they lie"
    return Finding(name="chunk files", state="ok", found=found)


def _opening(facts: Facts) -> Finding:
    opened = facts.opened
    if opened.problem:
        return Finding(
            name="opening", state="error", found=opened.problem,
            why="tried as the gateway does",
            do="see to what is said above" if _UNLISTED not in opened.problem
            else "ibv_devices must list it: apt install ibverbs-providers on Debian and Ubuntu",
        )  # fmt: skip
    return Finding(
        name="opening", state="ok",
        found=f"{opened.device} port {opened.port}, GID {opened.gid} at {opened.gid_index}; "
        "memory was registered",
    )  # fmt: skip
