"""Whether there is a way to an address, found out before the kernel is made to wait for it.

On Ethernet a queue pair is connected to the link address of whoever is next on the way to its
peer. Where the kernel's table of neighbours does not have it, connecting asks the link and waits,
up to a second, with Python's lock held (`ib_resolve_eth_dmac`). So the link is asked first, by a
datagram that nobody needs, while the event loop goes on; connecting then finds it in the table.

Looked at is what the kernel looks at (drivers/infiniband/core/addr.c): the route from the GID's
address over its network device, and whether the neighbour on it is valid. Source: rtnetlink(7).
"""

import asyncio
import errno
import ipaddress
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from gateway.rdma.device import VerbFailed

# The kernel asks the link three times, a second apart (mcast_solicit, retrans_time_ms), and then
# says that it has failed.
_LONGEST_SECONDS = 3.5
# Neighbours answer within a fraction of a millisecond, or not soon.
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05

# Where nobody listens, and what does throws away what it gets (RFC 863).
_DISCARD_PORT = 9

_RTM_GETROUTE = 26
_RTM_GETNEIGH = 30
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 1, 2, 4, 5, 18
_NDA_DST = 1
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_NUD_FAILED = 0x20
# Reachable, stale, delayed, probed, without ARP, permanent.
_NUD_VALID = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_ATTRIBUTE = struct.Struct("=HH")
_ATTRIBUTE_KIND = 0x3FFF
_ANSWER_BYTES = 65_536
# What a host says that has no rtnetlink for this process: a sandbox, a unit that forbids it.
_FORBIDDEN = frozenset((errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Hop(NamedTuple):
    """Who is next on the way to a peer: a neighbour, and the index of the interface to it."""

    interface: int
    address: Address


class Unknowable(Exception):  # noqa: N818 - named as the other refusals are
    """This host does not let this process find out, or the device is not of its namespace."""


async def reach(address: str, *, local: str, interface: str) -> None:
    """Returns once the kernel knows the way to the GID `address` from the GID `local`, which is of
    the network device `interface`; at once where this host does not let us find out. VerbFailed
    where there is no way, after some 3.5 s."""
    peer, own = _ip(address), _ip(local)
    if peer.version != own.version:
        raise VerbFailed(f"there is no way from {own} to {peer}")
    # Of its own: the kernel answers at once, but for as long as somebody else changes its network.
    thread = ThreadPoolExecutor(1, thread_name_prefix="reach")
    loop = asyncio.get_running_loop()
    try:
        hop = await loop.run_in_executor(thread, find_hop, peer, own, interface)
        if hop is None or await loop.run_in_executor(thread, neighbour_state, hop) & _NUD_VALID:
            return
        await loop.run_in_executor(thread, knock, peer, own, hop)
        until, pause_seconds = loop.time() + _LONGEST_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            state = await loop.run_in_executor(thread, neighbour_state, hop)
            if state & _NUD_VALID:
                return
            if state & _NUD_FAILED or loop.time() >= until:
                raise VerbFailed(f"there is no way to {peer}: nobody is {hop.address}")
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
    except Unknowable:
        # As if there were nothing of this: connecting waits, if it must.
        return
    except OSError as error:
        raise VerbFailed(f"there is no way to {peer}: {error.strerror}") from error
    finally:
        thread.shutdown(wait=False)


def find_hop(peer: Address, own: Address, interface: str) -> Hop | None:
    """Who is next on the way to `peer`; None where it is this host itself. OSError where there is
    no way; Unknowable."""
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:
        raise Unknowable(f"there is no {interface} here") from error
    bits = 8 * len(peer.packed)
    question = _ROUTE.pack(_family(peer), bits, bits, 0, 0, 0, 0, 0, 0)
    question += _attribute(_RTA_DST, peer.packed) + _attribute(_RTA_SRC, own.packed)
    answer = _asked(_RTM_GETROUTE, question + _attribute(_RTA_OIF, struct.pack("=I", index)))
    kind = _ROUTE.unpack_from(answer)[7]
    if kind == _RTN_LOCAL:
        return None
    if kind != _RTN_UNICAST:
        raise OSError(errno.EHOSTUNREACH, "it is no single host's")
    found = _attributes(answer[_ROUTE.size :])
    # A neighbour of the other family has its family before its address.
    hop = found.get(_RTA_VIA, b"")[2:] or found.get(_RTA_GATEWAY, peer.packed)
    (index,) = struct.unpack("=I", found[_RTA_OIF])
    return Hop(index, ipaddress.ip_address(hop))


def neighbour_state(hop: Hop) -> int:
    """What the kernel's table says of a neighbour (NUD_*); 0 where it is not in it. OSError,
    Unknowable."""
    question = _NEIGHBOUR.pack(_family(hop.address), hop.interface, 0, 0, 0)
    try:
        answer = _asked(_RTM_GETNEIGH, question + _attribute(_NDA_DST, hop.address.packed))
    except FileNotFoundError:
        return 0
    return int(_NEIGHBOUR.unpack_from(answer)[2])


def knock(peer: Address, own: Address, hop: Hop) -> None:
    """Sends a datagram of nothing to `peer`, so that the kernel asks the link for `hop`. OSError
    where there is no way; Unknowable."""
    try:
        with socket.socket(_family(peer), socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            device = socket.if_indextoname(hop.interface).encode()
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            # A GID may be of an address that the device does not have; routes do not mind.
            with suppress(OSError):
                sending.bind(_place(own, 0, hop))
            sending.sendto(b"", _place(peer, _DISCARD_PORT, hop))
    except PermissionError as error:
        raise Unknowable("a firewall of this host's is in the way") from error


def _asked(kind: int, question: bytes) -> bytes:
    """The kernel's answer to a question, without its header. OSError as the kernel says, Unknowable
    where it cannot be asked."""
    message = _HEADER.pack(_HEADER.size + len(question), kind, _NLM_F_REQUEST, 0, 0) + question
    try:
        # It is answered before `send` returns.
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        ) as asking:
            asking.send(message)
            answer = asking.recv(_ANSWER_BYTES)
    except OSError as error:
        if error.errno in _FORBIDDEN:
            raise Unknowable(f"the kernel cannot be asked: {error.strerror}") from error
        raise
    length, told, *_ = _HEADER.unpack_from(answer)
    if told == _NLMSG_ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -number == errno.EOPNOTSUPP:
            raise Unknowable("the kernel does not know the question")
        raise OSError(-number, os.strerror(-number))
    return answer[_HEADER.size : length]


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(packed: bytes) -> dict[int, bytes]:
    found = {}
    while len(packed) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(packed)
        found[kind & _ATTRIBUTE_KIND] = packed[_ATTRIBUTE.size : length]
        packed = packed[max(length + -length % 4, _ATTRIBUTE.size) :]
    return found


def _place(address: Address, port: int, hop: Hop) -> tuple[str, int] | tuple[str, int, int, int]:
    """An address as sockets take it."""
    if address.version == 4:
        return str(address), port
    return str(address), port, 0, hop.interface if address.is_link_local else 0


def _family(address: Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _ip(gid: str) -> Address:
    address = ipaddress.IPv6Address(gid)
    return address.ipv4_mapped or address
