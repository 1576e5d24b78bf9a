"""A fleet's network in network namespaces: a rack is a router, its uplink is shaped, cuts are real.

    root ── hub ──┬── rack r1 ──┬── n1
                  │             └── n2
                  ├── rack r2 …            (uplinks: tbf, and netem where the kernel has it)
                  └── services: Redis at .2, the origin at .3

A cut drops packets on their way through the node's rack, in both directions, without a word.
Addresses are of 198.18.0.0/15, which is set aside for benchmarks. Wants root and iproute2.
"""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.loopback import Far, Loopback, Spot
from tests.cluster.relay import Mode, Relays

_FLEETS = 64
_NAME = re.compile(r"^feedrack(\d+)-\S+", re.MULTILINE)
_PORTS = {"redis": 6379, "sentinel": 26379, "s3": 9000, "admin": 9001, "peers": 9002}
_HUB, _SERVICES = "hub", "services"


def obstacle() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces want root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    probe = f"feedrack-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    try:
        linked = subprocess.run(
            ["ip", "-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "two"],
            capture_output=True,
            text=True,
        )
        return None if linked.returncode == 0 else f"no veth: {linked.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], check=True)


class Namespaces(Loopback):
    """`rate_mbit` and `delay_ms` shape each rack's uplink, in each direction, and `services_mbit`
    what Redis and the origin send; 0 leaves it be.

    `delayed` says whether the kernel could delay (netem).
    """

    def __init__(
        self, *, rate_mbit: int = 1000, delay_ms: float = 0.0, services_mbit: int = 0
    ) -> None:
        super().__init__()
        self._rate_mbit, self._delay_ms = rate_mbit, delay_ms
        self._services_mbit = services_mbit
        self.delayed = False
        self._number = -1
        self._lock: int | None = None
        self._racks: tuple[str, ...] = ()
        self._uplinks: list[str] = []
        self._cut: dict[tuple[int, Far], Mode] = {}
        self._rules: set[tuple[str, str, str, str]] = set()

    def start(self, racks: Sequence[str]) -> None:
        self._racks, self._nodes = tuple(racks), list(range(len(racks)))
        self._uplinks = sorted(set(racks))
        assert len(self._uplinks) <= 6
        self._claim()
        self._build()
        self._relays = Relays(self.services.host, self.services.prefix)

    def close(self) -> None:
        if self._relays is not None:
            self._relays.close()
            self._relays = None
        if self._lock is not None:
            _remove(self._number)
            os.close(self._lock)
            self._lock = None

    def enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        space = os.open(f"/run/netns/{self._space(_SERVICES)}", os.O_RDONLY)
        try:
            if libc.setns(space, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(space)

    @property
    def services(self) -> Spot:
        return Spot(self._address(7, 2), self._prefix(_SERVICES))

    @property
    def origin(self) -> Spot:
        return Spot(self._address(7, 3), self._prefix(_SERVICES))

    def node(self, number: int) -> Spot:
        return Spot(self._node_address(number), self._prefix(f"n{number + 1}"))

    def port(self, what: str, number: int = 0) -> int:
        # Nodes have addresses of their own; Redis may be several.
        return _PORTS[what] + (number if what in ("redis", "sentinel") else 0)

    def wire(self, far: Far, number: int, to: tuple[str, int]) -> tuple[str, int]:
        assert self._relays is not None
        if far == "redis":
            return self.services.host, self._relays.open(f"redis-{number}", to)
        return to

    def cut(self, number: int, far: Far, mode: Mode = "hold") -> None:
        self._cut[number, far] = mode
        self._set_rules()

    def heal(self, number: int, far: Far) -> None:
        self._cut.pop((number, far), None)
        self._set_rules()

    def know(self, number: int, pid: int) -> None:
        assert self._relays is not None
        self._relays.mind()

    def shape(self, rack: str, *, rate_mbit: int, delay_ms: float = 0.0) -> None:
        """A rack's uplink from now on, in each direction."""
        uplink = self._uplinks.index(rack)
        for space, device in ((self._space(rack), "up"), (self._space(_HUB), f"r{uplink}")):
            self._shape(space, device, rate_mbit, delay_ms)

    def _set_rules(self) -> None:
        wanted: set[tuple[str, str, str, str]] = set()
        for (number, far), mode in self._cut.items():
            action = "blackhole" if mode == "hold" else "prohibit"
            here, rack = self._node_address(number), self._space(self._racks[number])
            for there in self._far(number, far):
                wanted |= {(rack, here, there, action), (rack, there, here, action)}
        for what, rules in (("del", self._rules - wanted), ("add", wanted - self._rules)):
            for space, source, to, action in rules:
                _ip("-n", space, "rule", what, "from", source, "to", to, action)
        self._rules = wanted

    def _far(self, number: int, far: Far) -> list[str]:
        if far == "peers":
            return [self._node_address(each) for each in self._nodes if each != number]
        return [self.services.host if far == "redis" else self.origin.host]

    def _claim(self) -> None:
        """Takes a number that nobody uses, and removes what runs that were killed have left."""
        left = {int(found) for found in _NAME.findall(_ip("netns", "list"))}
        for number in sorted(left | set(range(_FLEETS)), key=lambda each: (each not in left, each)):
            lock = os.open(
                Path(tempfile.gettempdir()) / f"feedrack-netns-{number}.lock",
                os.O_RDWR | os.O_CREAT,
                0o666,
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            _remove(number)
            if self._lock is None and number < _FLEETS:
                self._lock, self._number = lock, number
            else:
                os.close(lock)
            if self._lock is not None and number not in left:
                return
        assert self._lock is not None, "all numbers are in use"

    def _build(self) -> None:
        for name in (_HUB, _SERVICES, *self._uplinks, *(f"n{n + 1}" for n in self._nodes)):
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "dev", "lo", "up")
        hub, services = self._space(_HUB), self._space(_SERVICES)
        for space in (hub, *map(self._space, self._uplinks)):
            forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
            _run("ip", "netns", "exec", space, "sh", "-c", forward)
        out = f"feedrack{self._number}"
        _ip("link", "add", out, "type", "veth", "peer", "name", "out", "netns", hub)
        _ip("addr", "add", f"{self._address(0, 1)}/30", "dev", out)
        _ip("link", "set", "dev", out, "up")
        _up(hub, "out", f"{self._address(0, 2)}/30")
        _ip("route", "add", f"{self._address(0, 0)}/21", "via", self._address(0, 2))
        _pair(hub, "services", services, "up")
        _up(hub, "services", f"{self._address(7, 1)}/24")
        _up(services, "up", f"{self._address(7, 2)}/24", f"{self._address(7, 3)}/24")
        _ip("-n", services, "route", "add", "default", "via", self._address(7, 1))
        self._shape(services, "up", self._services_mbit, 0.0)
        for uplink, rack in enumerate(self._uplinks):
            subnet, space = uplink + 1, self._space(rack)
            _pair(hub, f"r{uplink}", space, "up")
            _up(hub, f"r{uplink}", f"{self._address(subnet, 253)}/30")
            _up(space, "up", f"{self._address(subnet, 254)}/30")
            _ip("-n", space, "route", "add", "default", "via", self._address(subnet, 253))
            _ip("-n", hub, "route", "add", f"{self._address(subnet, 0)}/24",
                "via", self._address(subnet, 254))  # fmt: skip
            self.shape(rack, rate_mbit=self._rate_mbit, delay_ms=self._delay_ms)
        for number in self._nodes:
            rack, space = self._space(self._racks[number]), self._space(f"n{number + 1}")
            gateway = self._address(self._uplinks.index(self._racks[number]) + 1, 1)
            _pair(rack, f"n{number + 1}", space, "up")
            _up(rack, f"n{number + 1}", f"{gateway}/32")
            _up(space, "up", f"{self._node_address(number)}/32")
            _ip("-n", space, "route", "add", gateway, "dev", "up")
            _ip("-n", space, "route", "add", "default", "via", gateway)
            _ip("-n", rack, "route", "add", self._node_address(number), "dev", f"n{number + 1}")

    def _shape(self, space: str, device: str, rate_mbit: int, delay_ms: float) -> None:
        tc = ["tc", "-n", space, "qdisc"]
        subprocess.run([*tc, "del", "dev", device, "root"], capture_output=True)
        if rate_mbit:
            _run(*tc, "add", "dev", device, "root", "handle", "1:", "tbf",
                 "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "100ms")  # fmt: skip
        if delay_ms:
            parent = ("parent", "1:1") if rate_mbit else ("root",)
            added = subprocess.run(
                [*tc, "add", "dev", device, *parent, "netem", "delay", f"{delay_ms}ms"],
                capture_output=True,
            )
            self.delayed = added.returncode == 0

    def space(self, name: str) -> str:
        """The namespace of a rack or a node."""
        return self._space(name)

    def _space(self, name: str) -> str:
        return f"feedrack{self._number}-{name}"

    def _prefix(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._space(name))

    def _node_address(self, number: int) -> str:
        return self._address(self._uplinks.index(self._racks[number]) + 1, 10 + number)

    def _address(self, subnet: int, host: int) -> str:
        third = self._number * 8 + subnet
        return f"198.{18 + third // 256}.{third % 256}.{host}"


def _pair(here: str, device: str, there: str, other: str) -> None:
    _ip("-n", here, "link", "add", device, "type", "veth",
        "peer", "name", other, "netns", there)  # fmt: skip


def _up(space: str, device: str, *addresses: str) -> None:
    for address in addresses:
        _ip("-n", space, "addr", "add", address, "dev", device)
    _ip("-n", space, "link", "set", "dev", device, "up")


def _remove(number: int) -> None:
    """Ends what runs in a fleet's namespaces, and the namespaces."""
    for space in _ip("netns", "list").split("\n"):
        name = space.partition(" ")[0]
        if name.startswith(f"feedrack{number}-"):
            for pid in _ip("netns", "pids", name).split():
                os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)
    subprocess.run(["ip", "link", "del", f"feedrack{number}"], capture_output=True)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
