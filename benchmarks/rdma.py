"""`python -m benchmarks.rdma`: GETs of a held object by RDMA beside HTTP, on one machine.

Without a device it runs in virtual machines with soft-RoCE, where the processor does all of the
device's work and is itself emulated: only ratios mean anything there, and the copies that are
counted. One has this machine's kernel, the other that of a newer release of Debian, which can send
files without a copy (`--release`: others). `--here` runs it on this machine's own device.

All ways take turns, the device alone among them; each round reads the object several times into
the same memory and compares it. Writes `rdma.md` and `.json`; exit status 1 where an object was
wrong, or did not come the way that was asked for.
"""

import hashlib
import mmap
import os
import platform
import re
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from benchmarks import report
from benchmarks.node import Feedrack
from benchmarks.server import ACCESS_KEY, HOST, READ_BUCKET, SECRET_KEY, work_folder
from feedrack.client import Client as HttpClient
from feedrack.endpoint import Access
from feedrack.profile import Credentials
from feedrack.rdma import Client, Memory
from gateway.rdma.verbs import open_device

_MIB, _GIB = 1024**2, 1024**3
_SIZE_BYTES = 32 * _MIB
_DEPTHS = (1, 4, 16)
_KEY = "object"
_TOLD = "found: "
# Debian 13's kernel registers mappings of files (Linux 6.3 and later).
_NEWER = "trixie"
_OWN = "own"
# A disk, as caches lie on; all else that can be written to there is memory (tmpfs).
_GUEST_FOLDER = Path("/run/disk")


class Round(Struct, frozen=True, kw_only=True):
    """One turn of one way. CPU of the gateway, of the client, and of the machine as a whole."""

    bytes: int
    seconds: float
    gateway_cpu_seconds: float
    client_cpu_seconds: float
    machine_cpu_seconds: float
    # By the gateway's processors, into registered memory.
    copied_bytes: float


class Way(Struct, frozen=True, kw_only=True):
    """One way's rounds; `depth` pieces may be under way at once."""

    name: str
    depth: int
    rounds: list[Round]
    kernel: str = "Linux " + ".".join(platform.release().split(".")[:2])


Turn = tuple[Way, Callable[[], Round]]


class _Node(Feedrack):
    """With a device, and so many pieces under way."""

    depth = _DEPTHS[-1]

    def write_config(self) -> Path:
        config = super().write_config()
        text = config.read_text().replace("[admin]\n", "[admin]\npublic_metrics = true\n")
        rdma = f'[rdma]\nmode = "required"\nbuffers = "16MiB"\ndepth = {self.depth}\n'
        config.write_text(f"{text}\n{rdma}")
        return config

    def copied_bytes(self) -> float:
        """What it has copied into or out of registered memory."""
        url = f"http://{self.host}:{self._admin_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r"^feedrack_rdma_copied_bytes_total\{.*\} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


def measure(folder: Path | None, rounds: int, reads: int) -> list[Way]:
    """All ways on this machine's device. RuntimeError where something came wrong."""
    body = os.urandom(_SIZE_BYTES)
    digest = hashlib.sha256(body).digest()
    with work_folder(folder) as name, ExitStack() as stack:
        data = Path(name) / "data"
        (data / READ_BUCKET).mkdir(parents=True)
        (data / READ_BUCKET / _KEY).write_bytes(body)
        # What was written a moment ago is not kept.
        os.utime(data / READ_BUCKET / _KEY, (1_700_000_000, 1_700_000_000))
        # Freed with the last that looks at it.
        pages = mmap.mmap(-1, _SIZE_BYTES)
        nodes = []
        for depth in _DEPTHS:
            node = _Node(data, Path(name) / f"node{depth}")
            node.depth = depth
            nodes.append(stack.enter_context(node))

        def turn(name: str, node: _Node, read: Callable[[], None]) -> Turn:
            # Held from here on, and the memory's pages are there. The second maps what it sends.
            read()
            read()
            way = Way(name=name, depth=node.depth if name == "rdma" else 0, rounds=[])
            return way, lambda: _compared(way, pages, digest, lambda: _round(node, read, reads))

        turns = []
        for node in nodes:
            client = stack.enter_context(
                Client(
                    f"s3://{READ_BUCKET}",
                    endpoint_url=_url(node),
                    access_key=ACCESS_KEY,
                    secret_key=SECRET_KEY,
                )
            )
            memory = stack.enter_context(client.register(pages))
            turns.append(turn("rdma", node, partial(_by_rdma, client, memory)))
        keys = Credentials(ACCESS_KEY, SECRET_KEY, None)
        http = HttpClient(READ_BUCKET, Access(endpoint_url=_url(nodes[-1]), credentials=keys))
        stack.callback(http.close)
        turns.append(turn("http", nodes[-1], partial(_by_http, http, pages)))
        for depth in _DEPTHS:
            alone = _Alone(depth)
            stack.callback(alone.close)
            alone.move()
            way = Way(name="device alone", depth=depth, rounds=[])
            turns.append((way, partial(_round_alone, alone, reads)))
        return take_turns(turns, rounds)


def take_turns(turns: Sequence[Turn], rounds: int) -> list[Way]:
    """The ways with their rounds: one of each, and then the next of each, so that what else the
    machine does is done to all of them."""
    for _ in range(rounds):
        for way, take in turns:
            way.rounds.append(take())
    return [way for way, _ in turns]


def _url(node: _Node) -> str:
    return f"http://{HOST}:{node.port}"


def _compared(way: Way, pages: mmap.mmap, digest: bytes, take: Callable[[], Round]) -> Round:
    pages[:] = bytes(_SIZE_BYTES)
    found = take()
    if hashlib.sha256(pages).digest() != digest:
        raise RuntimeError(f"by {way.name} something else came")
    return found


def _round(node: _Node, read: Callable[[], None], reads: int) -> Round:
    copied = node.copied_bytes()
    began, own, gateway, machine = (
        time.monotonic(),
        time.process_time(),
        node.cpu_seconds_now(),
        _machine_seconds(),
    )
    for _ in range(reads):
        read()
    return Round(
        bytes=reads * _SIZE_BYTES,
        seconds=time.monotonic() - began,
        gateway_cpu_seconds=node.cpu_seconds_now() - gateway,
        client_cpu_seconds=time.process_time() - own,
        machine_cpu_seconds=_machine_seconds() - machine,
        copied_bytes=node.copied_bytes() - copied,
    )


class _Alone:
    """A device's work without a gateway: WRITEs between two registrations of this process, its own
    CPU and the machine's. What it costs is no part of ours."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._near, self._far = open_device(), open_device()
        self._here = self._near.register(
            memoryview(mmap.mmap(-1, _SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
            remote=False,
        )
        self._there = self._far.register(memoryview(mmap.mmap(-1, _SIZE_BYTES)), remote=True)
        self._pair = self._near.pair(depth=depth, remote=False)
        self._other = self._far.pair(depth=1, remote=True)
        self._pair.connect(self._other.address)
        self._other.connect(self._pair.address)

    def move(self) -> None:
        """As many bytes as one read of the object brings."""
        under_way = 0
        for start in range(0, _SIZE_BYTES, _MIB):
            while under_way == self._depth:
                under_way -= self._taken()
            here, there = self._here, self._there
            self._pair.write(
                start, here.address + start, _MIB, here.lkey, to=there.address + start,
                rkey=there.rkey,
            )  # fmt: skip
            under_way += 1
        while under_way:
            under_way -= self._taken()

    def close(self) -> None:
        for each in (self._pair, self._other, self._here, self._there, self._near, self._far):
            each.close()

    def _taken(self) -> int:
        select.select((self._near.descriptor,), (), ())
        found = self._near.completions()
        if any(each.status for each in found):
            raise RuntimeError(f"the device failed: {found}")
        return len(found)


def _round_alone(device: _Alone, reads: int) -> Round:
    began, own, machine = time.monotonic(), time.process_time(), _machine_seconds()
    for _ in range(reads):
        device.move()
    return Round(
        bytes=reads * _SIZE_BYTES,
        seconds=time.monotonic() - began,
        gateway_cpu_seconds=time.process_time() - own,
        client_cpu_seconds=0.0,
        machine_cpu_seconds=_machine_seconds() - machine,
        copied_bytes=0.0,
    )


def _by_rdma(client: Client, memory: Memory) -> None:
    found = client.get_into(_KEY, memory)
    if found.transport != "rdma":
        raise RuntimeError(f"not by RDMA: {found.reason}")


def _by_http(http: HttpClient, pages: mmap.mmap) -> None:
    with http.open("GET", _KEY) as streamed, memoryview(pages) as view:
        position = 0
        while position < _SIZE_BYTES:
            size = streamed.body.readinto(view[position:])
            if not size:
                raise RuntimeError("it ended early")
            position += size
        streamed.body.read()


def _machine_seconds() -> float:
    """What all processors have worked so far; a software device's work is nobody's."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    user, nice, system, _, _, irq, softirq = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def in_guest(release: str, rounds: int, reads: int) -> list[Way]:
    """The same in a virtual machine with the kernel of that release, or this machine's own.
    RuntimeError with what it said where it failed."""
    command = [sys.executable, "-m", "tests.rdma.vm", "--seconds", "540"]
    command += [] if release == _OWN else ["--release", release]
    inside = [sys.executable, "-m", "benchmarks.rdma", "--here", "--tell"]
    inside += ["--folder", str(_GUEST_FOLDER), "--rounds", str(rounds), "--reads", str(reads)]
    done = subprocess.run(
        [*command, "run", "--", *inside], stdout=subprocess.PIPE, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith(_TOLD):
            return msgspec.json.decode(line.removeprefix(_TOLD), type=list[Way])
    raise RuntimeError(f"the virtual machine ended with status {done.returncode}:\n{done.stdout}")


def table(ways: Sequence[Way]) -> list[str]:
    """A row for each way; ratios are medians of each round's own beside HTTP's of the same round
    on the same kernel."""
    https = {way.kernel: way for way in ways if way.name == "http"}
    head = (
        "kernel", "way", "pieces under way", "MiB/s", "CPU s/GiB: gateway", "client", "machine",
        "copies by the gateway¹", "by the client²", "gateway CPU ÷ HTTP's",
        "machine CPU ÷ HTTP's",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for way in ways:
        rounds, beside = way.rounds, https[way.kernel].rounds

        def per_gib(pick: Callable[[Round], float], rounds: list[Round] = rounds) -> str:
            return f"{median(pick(each) / each.bytes for each in rounds) * _GIB:.2f}"

        def over(
            pick: Callable[[Round], float],
            rounds: list[Round] = rounds,
            beside: list[Round] = beside,
        ) -> str:
            ratios = (pick(one) / pick(other) for one, other in zip(rounds, beside, strict=True))
            return f"{median(ratios):.2f}"

        copies = f"{median(each.copied_bytes / each.bytes for each in rounds):.2f}"
        lines.append(
            f"| {way.kernel} | {way.name} | {way.depth or ''} "
            f"| {median(each.bytes / each.seconds for each in rounds) / _MIB:.0f} "
            f"| {per_gib(lambda each: each.gateway_cpu_seconds)} "
            f"| {per_gib(lambda each: each.client_cpu_seconds)} "
            f"| {per_gib(lambda each: each.machine_cpu_seconds)} "
            f"| {'none: sendfile' if way.name == 'http' else copies} "
            f"| {'1' if way.name == 'http' else '0'} "
            f"| {over(lambda each: each.gateway_cpu_seconds)} "
            f"| {over(lambda each: each.machine_cpu_seconds)} |"
        )
    return lines


@click.command(help=__doc__)
@click.option("--here", is_flag=True, help="On this machine's device.")
@click.option("--tell", is_flag=True, hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where objects and caches lie.")
@click.option(
    "--release",
    "releases",
    multiple=True,
    default=(_OWN, _NEWER),
    show_default=True,
    help="Whose kernel a virtual machine has.",
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--reads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="One round; writes rdma-quick.")
def main(
    here: bool,
    tell: bool,
    folder: Path | None,
    releases: Sequence[str],
    rounds: int,
    reads: int,
    quick: bool,
) -> None:
    where = report.machine()
    if quick:
        rounds = reads = 1
    if here:
        ways = measure(folder, rounds, reads)
    else:
        ways = [way for each in releases for way in in_guest(each, rounds, reads)]
    if tell:
        click.echo(_TOLD + msgspec.json.encode(ways).decode())
        return
    lines = report.preamble(
        "By RDMA beside HTTP",
        where,
        ["soft-RoCE" if not here else "the machine's own device"],
        [
            f"{rounds} rounds, medians; each reads a held object of {_SIZE_BYTES // _MIB} MiB "
            f"{reads} times into the same memory; all ways take turns in each",
            "¹ of each byte: counted by the gateway for RDMA, by design for HTTP, where the kernel "
            "copies besides; ² by design",
            "device alone: the same WRITEs between two registrations of one process, no gateway "
            "and no request; its CPU stands under the gateway's",
            "CPU of the machine is all of its processors': soft-RoCE works in the kernel, for "
            "nobody's account; a device would do that work itself",
            *([] if here else ["in an emulated machine: only ratios mean anything"]),
        ],
        "python -m benchmarks.rdma" + (" --here" if here else ""),
    )
    rows = table(ways)
    report.write("rdma-quick" if quick else "rdma", [*lines, *rows], {"ways": ways})
    Console(width=200).print("\n".join(rows))


if __name__ == "__main__":
    main()
