"""GIDs: a port's addresses, as texts, and which of them is the best."""

import ipaddress


def preference(kind: str, gid: str) -> tuple[bool, bool, bool]:
    """What makes a GID better than another: RoCE v2 before v1, IPv4 before IPv6, global before
    link-local. `kind` as sysfs has it."""
    address = ipaddress.IPv6Address(gid)
    return "v2" in kind.lower(), address.ipv4_mapped is not None, not address.is_link_local


def compressed(gid: str) -> str:
    """As short as it goes."""
    return str(ipaddress.IPv6Address(gid))


def exploded(gid: str) -> str:
    """With every digit, as pyverbs reads it."""
    return ipaddress.IPv6Address(gid).exploded
