"""What this host tells of its RDMA, read from /sys, /proc and /dev; `checking` judges it.

Sources: Documentation/ABI/stable/sysfs-class-infiniband, Documentation/admin-guide/cgroup-v2.rst
(RDMA), Documentation/ABI/testing/sysfs-kernel-iommu_groups, proc(5), rdma-system(8).
"""

import errno
import mmap
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from gateway.config import RdmaConfig
from gateway.rdma import verbs
from gateway.rdma.device import RdmaUnavailable, VerbFailed

_TRIED_BYTES = 1024**2
# A GID index that was never filled answers with an error or with nothing but zeros.
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_CAP_IPC_LOCK = 14
_PYVERBS_PLACES = (
    "usr/lib/python3/dist-packages",
    "usr/lib/python3*/site-packages",
    "usr/lib64/python3*/site-packages",
)
_LIBRARY_PLACES = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "lib64")
_LIBRARY = re.compile(r"libibverbs\.so\.1\.\d+\.(\d+\.\d+)")
_BUILT_FOR = re.compile(r"device\.(cpython-\d+)-")


class Pyverbs(Struct, frozen=True, kw_only=True):
    """Where pyverbs is, if anywhere."""

    python: str
    """This Python, as file names of extensions have it: cpython-311."""
    here: str | None
    """The folder that this environment takes it from."""
    release: str = ""
    elsewhere: str | None = None
    """The folder of the system's own, which this environment does not look into."""
    elsewhere_python: str = ""
    rdma_core: str | None = None
    """The release of the libibverbs that is loaded, or would be: 44.0."""


class Gid(Struct, frozen=True, kw_only=True):
    """One entry of a port's table. `kind` is "RoCE v2" or "IB/RoCE v1"."""

    index: int
    gid: str
    kind: str
    netdev: str


class Port(Struct, frozen=True, kw_only=True):
    """`state` and `physical` are the kernel's words, `link` is Ethernet or InfiniBand."""

    number: int
    state: str
    physical: str
    link: str
    rate: str
    gids: tuple[Gid, ...]


class Node(Struct, frozen=True, kw_only=True):
    """A device's node in /dev; `problem` is why it cannot be opened, an errno's name."""

    path: str
    problem: str = ""


class HostDevice(Struct, frozen=True, kw_only=True):
    """A device as the kernel has it."""

    name: str
    driver: str
    """Empty where there is no hardware behind it."""
    transport: str
    """"CA", "RNIC" (iWARP), "unspecified"."""
    firmware: str
    node: Node | None
    iommu: str
    """How the IOMMU treats it: DMA, DMA-FQ, identity; empty without one."""
    ports: tuple[Port, ...]


class Netdev(Struct, frozen=True, kw_only=True):
    """A network device that carries RoCE. `ecn`: by `roce_np` (notifies) and `roce_rp` (reacts) the
    priorities for which it is on; None where the driver does not tell."""

    name: str
    mtu: int
    state: str
    ecn: Mapping[str, tuple[int, ...]] | None


class Opened(Struct, frozen=True, kw_only=True):
    """What became of opening a device as the gateway does, and of registering a little memory."""

    device: str = ""
    port: int = 0
    gid_index: int = 0
    gid: str = ""
    mtu: int = 0
    problem: str = ""
    no_verbs: bool = False
    """Whether the problem is that pyverbs itself cannot be used."""


class Facts(Struct, frozen=True, kw_only=True):
    """All that was read; see the functions below for the sources."""

    pyverbs: Pyverbs
    devices: tuple[HostDevice, ...]
    netdevs: Mapping[str, Netdev]
    opened: Opened
    lockable_bytes: int | None
    """How much memory this process may lock; None: as much as there is."""
    kernel: str
    """Its release, as uname(1) has it."""
    modules: frozenset[str]
    cgroup: Mapping[str, Mapping[str, int]]
    """By device, the limits that rdma.max sets; what has none is left out."""
    shares_devices: bool | None
    """Whether every network namespace sees every device; None where the kernel does not tell."""
    in_container: bool
    open_nvidia: bool
    """Whether NVIDIA's driver is the open one, which can export dma-buf."""


def open_as_gateway(config: RdmaConfig) -> Opened:
    """Opens the device that a gateway would, registers a little memory with it, and closes it."""
    try:
        device = verbs.open_device(config.device, config.port, config.gid_index)
    except RdmaUnavailable as error:
        return Opened(problem=str(error), no_verbs=error.verbs)
    problem = ""
    try:
        device.register(memoryview(mmap.mmap(-1, _TRIED_BYTES)), remote=False).close()
        device.pair(depth=config.depth, remote=False).close()
    except VerbFailed as error:
        problem = str(error)
    finally:
        device.close()
    return Opened(
        device=device.name,
        port=device.port,
        gid_index=device.gid_index,
        gid=device.gid,
        mtu=device.mtu,
        problem=problem,
    )


def gather(opened: Opened, root: Path = Path("/")) -> Facts:
    """All that can be told on the host whose / is `root`."""
    devices = tuple(_device(root, path) for path in _listed(root / "sys/class/infiniband"))
    names = {gid.netdev for device in devices for port in device.ports for gid in port.gids}
    return Facts(
        pyverbs=find_pyverbs(root),
        devices=devices,
        netdevs={
            name: _netdev(root / "sys/class/net" / name)
            for name in sorted(names)
            if name and (root / "sys/class/net" / name).is_dir()
        },
        opened=opened,
        lockable_bytes=_lockable(root),
        kernel=_text(root / "proc/sys/kernel/osrelease"),
        modules=frozenset(line.split(" ")[0] for line in _text(root / "proc/modules").splitlines()),
        cgroup=_cgroup(root),
        shares_devices={"Y": True, "N": False}.get(
            _text(root / "sys/module/ib_core/parameters/netns_mode")
        ),
        in_container=(root / ".dockerenv").exists() or (root / "run/.containerenv").exists(),
        open_nvidia="Open Kernel Module" in _text(root / "proc/driver/nvidia/version"),
    )


def find_pyverbs(root: Path) -> Pyverbs:
    """Where pyverbs is; nothing of it is imported."""
    python = sys.implementation.cache_tag or ""
    spec = find_spec("pyverbs")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    here = places[0] if places else None
    elsewhere = elsewhere_python = None
    if here is None:
        for folder in _matching(root, _PYVERBS_PLACES):
            built = [
                found[1]
                for each in _listed(folder / "pyverbs")
                if (found := _BUILT_FOR.match(each.name))
            ]
            if built:
                elsewhere = str(folder / "pyverbs")
                elsewhere_python = python if python in built else built[0]
                break
    return Pyverbs(
        python=python,
        here=here,
        release=_release(),
        elsewhere=elsewhere,
        elsewhere_python=elsewhere_python or "",
        rdma_core=_rdma_core(root),
    )


def _release() -> str:
    """The installed distribution's; Debian's package has none."""
    try:
        return metadata.version("pyverbs")
    except metadata.PackageNotFoundError:
        return ""


def _rdma_core(root: Path) -> str | None:
    loaded = _LIBRARY.search(_text(root / "proc/self/maps"))
    if loaded:
        return loaded[1]
    for folder in _matching(root, _LIBRARY_PLACES):
        for path in folder.glob("libibverbs.so.1*"):
            found = _LIBRARY.fullmatch(path.name)
            if found:
                return found[1]
    return None


def _matching(root: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(root.glob(pattern)) if path.is_dir()]


def _device(root: Path, path: Path) -> HostDevice:
    behind = path / "device"
    driver = (behind / "driver").resolve().name if (behind / "driver").exists() else ""
    return HostDevice(
        name=path.name,
        driver=driver,
        transport=_after_colon(_text(path / "node_type")),
        firmware=_text(path / "fw_ver"),
        node=_node(root, path.name),
        iommu=_text(behind / "iommu_group" / "type"),
        ports=tuple(
            _port(each) for each in sorted(_listed(path / "ports"), key=lambda port: int(port.name))
        ),
    )


def _port(path: Path) -> Port:
    gids = []
    for each in sorted(_listed(path / "gids"), key=lambda entry: int(entry.name)):
        gid = _text(each)
        if gid and gid != _NO_GID:
            gids.append(
                Gid(
                    index=int(each.name),
                    gid=gid,
                    kind=_text(path / "gid_attrs" / "types" / each.name),
                    netdev=_text(path / "gid_attrs" / "ndevs" / each.name),
                )
            )
    return Port(
        number=int(path.name),
        state=_after_colon(_text(path / "state")),
        physical=_after_colon(_text(path / "phys_state")),
        link=_text(path / "link_layer"),
        rate=_text(path / "rate"),
        gids=tuple(gids),
    )


def _node(root: Path, device: str) -> Node | None:
    """None where the kernel has no uverbs for the device."""
    for each in _listed(root / "sys/class/infiniband_verbs"):
        if _text(each / "ibdev") == device:
            path = root / "dev/infiniband" / each.name
            try:
                # Whether a device cgroup lets it through, only opening it tells.
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            except OSError as error:
                return Node(path=str(path), problem=errno.errorcode.get(error.errno or 0, "EIO"))
            return Node(path=str(path))
    return None


def _netdev(path: Path) -> Netdev:
    mtu = _text(path / "mtu")
    ecn = None
    if (path / "ecn").is_dir():
        ecn = {
            role: tuple(
                int(each.name)
                for each in _listed(path / "ecn" / role / "enable")
                if _text(each) == "1"
            )
            for role in ("roce_np", "roce_rp")
        }
    return Netdev(
        name=path.name,
        mtu=int(mtu) if mtu.isdigit() else 0,
        state=_text(path / "operstate"),
        ecn=ecn,
    )


def _lockable(root: Path) -> int | None:
    for line in _text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        # The kernel asks for this capability when a registration goes past the limit.
        if key == "CapEff" and int(value, 16) >> _CAP_IPC_LOCK & 1:
            return None
    for line in _text(root / "proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            return None if soft == "unlimited" else int(soft)
    return None


def _cgroup(root: Path) -> dict[str, dict[str, int]]:
    """The tightest rdma.max on the way from this process's cgroup up."""
    found: dict[str, dict[str, int]] = {}
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, path = line.split(":", 2)
        if number != "0":
            continue
        folder = top / path.strip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                _tighten(found, _text(each / "rdma.max"))
    return found


def _tighten(found: dict[str, dict[str, int]], text: str) -> None:
    for line in text.splitlines():
        device, *limits = line.split()
        for limit in limits:
            key, _, value = limit.partition("=")
            if value.isdigit():
                known = found.setdefault(device, {})
                known[key] = min(known.get(key, int(value)), int(value))


def _after_colon(text: str) -> str:
    """ACTIVE of "4: ACTIVE"."""
    return text.partition(":")[2].strip() or text


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """What a file of the kernel's says; nothing where it is not there or does not want to."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
