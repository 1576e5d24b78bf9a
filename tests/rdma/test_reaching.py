"""The way to an address, on a link between two network namespaces: this end is `one`, 198.18.0.1,
the peer 198.18.0.2. Nobody has 198.18.0.99."""

import asyncio
import ctypes
import errno
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.rdma import reaching
from gateway.rdma.device import VerbFailed
from gateway.rdma.reaching import Hop, Unknowable, find_hop, reach
from tests.cluster.conftest import absent
from tests.cluster.netns import obstacle

OWN, PEER, NOBODY = "::ffff:198.18.0.1", "::ffff:198.18.0.2", "::ffff:198.18.0.99"
CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


class Link:
    """Two namespaces and what is between them."""

    def __init__(self, near: str, far: str) -> None:
        self.near = near
        self.far = far
        # Each end's address that is good on the link alone.
        self.own_local, self.peer_local = self._local(near, "one"), self._local(far, "two")

    def reach(self, address: str, *, local: str = OWN, interface: str = "one") -> None:
        self.inside(lambda: reach(address, local=local, interface=interface))

    def inside(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What a coroutine comes to in the near namespace."""
        return within(self.near, lambda: asyncio.run(make()))

    def ip(self, *words: str) -> str:
        return run("ip", "-n", self.near, *words)

    def neighbour(self, address: str) -> str:
        return self.ip("neigh", "show", "to", address)

    def _local(self, space: str, interface: str) -> str:
        shown = run("ip", "-n", space, "-6", "addr", "show", "dev", interface)
        found = re.search(r"inet6 (fe80::\S+)/64", shown)
        assert found is not None
        return found[1]


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def within(space: str, call: Callable[[], Result]) -> Result:
    """What a call comes to in a namespace: in a thread of its own, and in those that it starts."""
    told: Future[Result] = Future()

    def enter() -> None:
        try:
            there = os.open(f"/run/netns/{space}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(there, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(there)
            told.set_result(call())
        except BaseException as error:
            told.set_exception(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return told.result()


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    why = obstacle()
    if why is not None:
        absent("netns", why)
    near, far = (f"feedrack-reach-{os.getpid()}-{end}" for end in ("near", "far"))
    try:
        for space in (near, far):
            run("ip", "netns", "add", space)
        run("ip", "-n", near, "link", "add", "one", "type", "veth",
            "peer", "name", "two", "netns", far)  # fmt: skip
        for space, name, address in ((near, "one", "198.18.0.1"), (far, "two", "198.18.0.2")):
            # Nobody has to look first whether another has the address.
            dad = f"echo 0 >/proc/sys/net/ipv6/conf/{name}/accept_dad"
            # Who does not answer is asked three times all the same.
            soon = "; ".join(
                f"echo 50 >/proc/sys/net/{family}/neigh/{name}/retrans_time_ms"
                for family in ("ipv4", "ipv6")
            )
            run("ip", "netns", "exec", space, "sh", "-c", f"{dad}; {soon}")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", name)
            for each in ("lo", name):
                run("ip", "-n", space, "link", "set", each, "up")
        yield Link(near, far)
    finally:
        for space in (near, far):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@pytest.fixture(autouse=True)
def _nobody_is_known(link: Link) -> None:
    link.ip("neigh", "flush", "dev", "one", "nud", "all")


# There is one


def test_to_a_peer_on_the_link(link: Link) -> None:
    link.reach(PEER)
    assert "lladdr" in link.neighbour("198.18.0.2")


def test_to_a_peer_that_says_nothing(link: Link) -> None:
    """Somebody listens at the port and does not answer; a firewall is the same."""
    with within(link.far, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as silent:
        silent.bind(("198.18.0.2", 9))
        link.reach(PEER)


def test_to_an_address_of_the_link_alone(link: Link) -> None:
    link.reach(link.peer_local, local=link.own_local)
    assert "lladdr" in link.neighbour(link.peer_local)


def test_to_this_host(link: Link) -> None:
    link.reach(OWN)
    link.reach(link.own_local, local=link.own_local)


async def test_to_this_host_by_its_loopback() -> None:
    await reach("::ffff:127.0.0.1", local="::ffff:127.0.0.1", interface="lo")


def test_by_a_router(link: Link) -> None:
    link.ip("route", "add", "198.51.100.0/24", "via", "198.18.0.2")
    link.reach("::ffff:198.51.100.7")
    assert link.neighbour("198.51.100.7") == ""


def test_by_a_router_of_the_other_family(link: Link) -> None:
    link.ip("route", "add", "203.0.113.0/24", "via", "inet6", link.peer_local, "dev", "one")
    link.reach("::ffff:203.0.113.7")
    assert "lladdr" in link.neighbour(link.peer_local)


def test_a_neighbour_that_is_known_is_asked_nothing(link: Link) -> None:
    """The kernel takes what it has, old as it may be."""
    link.ip("neigh", "add", "198.18.0.50", "lladdr", "02:00:00:00:00:50", "dev", "one",
            "nud", "stale")  # fmt: skip
    link.reach("::ffff:198.18.0.50")
    assert "STALE" in link.neighbour("198.18.0.50")


# There is none


def test_none_to_an_address_nobody_has(link: Link) -> None:
    with pytest.raises(VerbFailed, match=r"nobody is 198\.18\.0\.99"):
        link.reach(NOBODY)


def test_who_comes_up_later_is_found(link: Link) -> None:
    late = "198.18.0.77"
    with pytest.raises(VerbFailed):
        link.reach(f"::ffff:{late}")
    run("ip", "-n", link.far, "addr", "add", f"{late}/24", "dev", "two")
    link.reach(f"::ffff:{late}")


def test_none_to_an_address_of_the_link_alone_that_nobody_has(link: Link) -> None:
    with pytest.raises(VerbFailed, match="nobody is fe80::99"):
        link.reach("fe80::99", local=link.own_local)


def test_none_by_a_router_that_is_not_there(link: Link) -> None:
    link.ip("route", "add", "192.0.2.0/24", "via", "198.18.0.98")
    with pytest.raises(VerbFailed, match=r"nobody is 198\.18\.0\.98"):
        link.reach("::ffff:192.0.2.7")


def test_none_from_an_address_that_this_host_has_no_more(link: Link) -> None:
    with pytest.raises(VerbFailed, match="no way to"):
        link.reach(PEER, local="::ffff:198.18.0.200")


def test_none_without_a_route(link: Link) -> None:
    with pytest.raises(VerbFailed, match="unreachable"):
        link.reach("2001:db8::1", local=link.own_local)


def test_none_to_a_whole_network(link: Link) -> None:
    """The kernel would connect to it."""
    with pytest.raises(VerbFailed, match="no single host"):
        link.reach("::ffff:198.18.0.255")


async def test_none_between_families() -> None:
    with pytest.raises(VerbFailed):
        await reach("fe80::1", local=OWN, interface="lo")


# It takes its time


def test_the_event_loop_goes_on_meanwhile(link: Link) -> None:
    async def both() -> int:
        turns = 0
        reaching = asyncio.create_task(reach(NOBODY, local=OWN, interface="one"))
        while not reaching.done():
            turns += 1
            await asyncio.sleep(0.001)
        with pytest.raises(VerbFailed):
            await reaching
        return turns

    assert link.inside(both) > 20


def test_who_gives_up_leaves_nothing(link: Link) -> None:
    async def give_up() -> None:
        reaching = asyncio.create_task(reach(NOBODY, local=OWN, interface="one"))
        async with asyncio.timeout(60):
            while "198.18.0.99" not in link.neighbour("198.18.0.99"):
                await asyncio.sleep(0.001)
            reaching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reaching
            while any(each.name.startswith("reach") for each in threading.enumerate()):
                await asyncio.sleep(0.001)

    before = open_descriptors()
    link.inside(give_up)
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# It cannot be found out


def test_a_device_of_another_namespace_is_the_kernels_to_know(link: Link) -> None:
    link.reach(NOBODY, interface="elsewhere0")
    link.reach(NOBODY, interface="")


@pytest.mark.parametrize("refused", [errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES])
async def test_where_no_questions_are_allowed_there_is_a_way(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """A unit's RestrictAddressFamilies, a sandbox."""
    forbid(monkeypatch, socket.AF_NETLINK, refused)
    await reach("::ffff:127.0.0.1", local="::ffff:127.0.0.1", interface="lo")


async def test_a_process_without_descriptors_finds_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, socket.AF_NETLINK, errno.EMFILE)
    with pytest.raises(VerbFailed):
        await reach("::ffff:127.0.0.1", local="::ffff:127.0.0.1", interface="lo")


async def test_where_a_firewall_stops_the_question_there_is_a_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hop = Hop(socket.if_nametoindex("lo"), IPv4Address("10.0.0.1"))
    monkeypatch.setattr(reaching, "find_hop", lambda *_: hop)
    monkeypatch.setattr(reaching, "neighbour_state", lambda _: 0)
    forbid(monkeypatch, socket.AF_INET, errno.EPERM)
    await reach("::ffff:10.0.0.1", local="::ffff:10.0.0.2", interface="lo")


def test_an_interface_that_is_not_there_is_said() -> None:
    with pytest.raises(Unknowable, match="elsewhere0"):
        find_hop(IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"), "elsewhere0")


def forbid(monkeypatch: pytest.MonkeyPatch, family: int, number: int) -> None:
    """Sockets of that family cannot be had from now on."""
    real = socket.socket

    def refuse(asked: int = -1, *given: Any, **named: Any) -> socket.socket:
        if asked == family:
            raise OSError(number, os.strerror(number))
        return real(asked, *given, **named)

    monkeypatch.setattr(socket, "socket", refuse)
