"""RoCE's checklist: the GID, the MTU, and what keeps Ethernet from losing packets. Pure.

See docs/rdma.md; IBTA's RoCE annexes A16 and A17, IEEE 802.1Qbb (PFC) and 802.1Qau's kin, DCQCN.
"""

import ipaddress
from collections.abc import Iterator

from gateway.config import RdmaConfig
from gateway.rdma.facts import Facts, Gid, HostDevice, Netdev, Opened, Port
from gateway.rdma.findings import Finding
from gateway.rdma.wire import MTUS

# What RoCE v2 puts around a payload, as the kernel counts it when it chooses a port's MTU.
_ROCE_HEADER_BYTES = 96
_ROCE_MTU = 4096
ADVISED_NETDEV_MTU = 9000
_ECN_ROLES = ("roce_np", "roce_rp")
_DCQCN = "with it (DCQCN) senders slow down before switches have to pause them"


def check_roce(
    facts: Facts, config: RdmaConfig, device: HostDevice, port: Port
) -> Iterator[Finding]:
    """What a port on Ethernet needs besides."""
    index = facts.opened.gid_index if facts.opened.device else config.gid_index
    gid = _gid_of(port, index)
    yield _gid(port, gid, index)
    if gid is None or not gid.netdev:
        return
    netdev = facts.netdevs.get(gid.netdev)
    if netdev is None:
        yield Finding(
            name="network device", state="warning",
            found=f"{gid.netdev} is not in this network namespace",
            why="its MTU and ECN cannot be read, and the device may refuse to send from there",
            do="give the container the host's network, or the device: rdma dev set",
        )  # fmt: skip
    else:
        yield _mtu(facts.opened, netdev)
        if device.driver:
            yield _ecn(netdev)
    if device.driver:
        yield Finding(
            name="PFC", state="unknown", found="cannot be seen from here",
            why="where neither hosts nor switches pause, packets are lost, and each costs a burst",
            do=f"dcb pfc show dev {gid.netdev}; on for one priority, on the switches for the same",
        )  # fmt: skip


def _gid_of(port: Port, index: int | None) -> Gid | None:
    """The entry at an index, or the one that the gateway would choose."""
    if index is not None:
        return next((each for each in port.gids if each.index == index), None)
    return max(port.gids, key=_preference, default=None)


def _preference(gid: Gid) -> tuple[bool, bool, bool]:
    """As `verbs` chooses."""
    return _is_v2(gid), _is_ipv4(gid), not ipaddress.IPv6Address(gid.gid).is_link_local


def _is_v2(gid: Gid) -> bool:
    return "v2" in gid.kind.lower()


def _is_ipv4(gid: Gid) -> bool:
    return ipaddress.IPv6Address(gid.gid).ipv4_mapped is not None


def _gid(port: Port, gid: Gid | None, index: int | None) -> Finding:
    best = max(port.gids, key=_preference, default=None)
    if gid is None or best is None:
        where = "none" if index is None else f"none at index {index}"
        return Finding(
            name="GID", state="error", found=where, why="nobody can be sent to without one",
            do="give the network device an address" if best is None
            else f"gid_index = {best.index} under [rdma], or none",
        )  # fmt: skip
    address = ipaddress.IPv6Address(gid.gid)
    found = f"{address.ipv4_mapped or address} at index {gid.index}, {gid.kind}, {gid.netdev}"
    if not _is_v2(gid):
        return Finding(
            name="GID", state="warning", found=found,
            why="RoCE v1 does not pass routers, and both ends must have the same",
            do=f"gid_index = {best.index} under [rdma]" if _is_v2(best)
            else f"let {gid.netdev or 'the network device'} have an address, and the card RoCE v2",
        )  # fmt: skip
    if not _is_ipv4(gid):
        do = (
            f"gid_index = {best.index} under [rdma]"
            if _is_ipv4(best)
            else f"ip addr add A.B.C.D/N dev {gid.netdev}, unless the whole fabric is IPv6"
        )
        return Finding(
            name="GID", state="warning", found=found,
            why="the other end must be reachable from it: an end with IPv4 alone is not", do=do,
        )  # fmt: skip
    return Finding(name="GID", state="ok", found=found)


def _mtu(opened: Opened, netdev: Netdev) -> Finding:
    carried = opened.mtu or _carried(netdev.mtu)
    found = f"{netdev.name} {netdev.mtu}, RDMA's packets {carried}"
    if netdev.mtu >= _ROCE_MTU + _ROCE_HEADER_BYTES and carried >= _ROCE_MTU:
        return Finding(name="MTU", state="ok", found=found)
    return Finding(
        name="MTU", state="warning", found=found,
        why=f"a packet carries {_ROCE_MTU} bytes where the network's is 4200 or more",
        do=f"ip link set {netdev.name} mtu {ADVISED_NETDEV_MTU}, on both ends and every switch",
    )  # fmt: skip


def _carried(netdev_mtu: int) -> int:
    """RDMA's own MTU, as the kernel chooses it for RoCE."""
    fitting = [mtu for mtu in MTUS if mtu + _ROCE_HEADER_BYTES <= netdev_mtu]
    return fitting[-1] if fitting else 0


def _ecn(netdev: Netdev) -> Finding:
    if netdev.ecn is None:
        return Finding(
            name="ECN", state="unknown", found=f"{netdev.name}'s driver does not tell",
            why=_DCQCN,
            do="the card's own tool tells",
        )  # fmt: skip
    both = sorted(set(netdev.ecn.get("roce_np", ())) & set(netdev.ecn.get("roce_rp", ())))
    if both:
        priorities = ", ".join(map(str, both))
        return Finding(
            name="ECN", state="ok", found=f"notifies and reacts, for priorities {priorities}"
        )
    off = [role for role in _ECN_ROLES if not netdev.ecn.get(role)]
    return Finding(
        name="ECN", state="warning",
        found=f"off: {', '.join(off)}" if off else "on at both roles for no priority together",
        why=_DCQCN,
        do=" && ".join(
            f"echo 1 > /sys/class/net/{netdev.name}/ecn/{role}/enable/3"
            for role in off or _ECN_ROLES
        )
        + ", 3 being the priority that has PFC; and mark on the switches",
    )  # fmt: skip
