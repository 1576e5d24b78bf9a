"""`python -m benchmarks.memory`: what slow readers and many uploads cost the node in memory.

200 clients read 1 GiB objects at 1 MB/s each and leave in the middle: first with an empty cache,
then again where everything they read is kept. They begin 20 MiB apart, so that each has chunks of
its own. Then 100 clients upload 64 MiB each at once. A server without backpressure would hold
gigabytes here. Kernel socket buffers are not part of a process's memory and not counted.
"""

import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import click
from msgspec import Struct
from rich.console import Console

from benchmarks import objects, report
from benchmarks.driver import Driver
from benchmarks.measure import changed, job
from benchmarks.node import Feedrack
from benchmarks.server import HOST, READ_BUCKET, PeerMissingError, Server, work_folder
from benchmarks.signed import signed_head

_MIB = 1024**2
_OBJECTS = 4
_OBJECT_BYTES = 1024**3
_READERS = 200
_READER_BYTES_PER_SECOND = 1_000_000
_READ_SECONDS = 20.0
_TICK_SECONDS = 0.1
# Small, so that a reader's slowness is the server's at once.
_RECEIVE_BUFFER_BYTES = 65_536
_UPLOADS = 100
_UPLOAD_BYTES = 64 * _MIB
_SAMPLE_SECONDS = 0.25


class Case(Struct, frozen=True, kw_only=True):
    """One load, and the server's memory before, at its highest, and after its clients left."""

    name: str
    clients: int
    moved_bytes: int
    seconds: float
    before_bytes: int
    peak_bytes: int
    peak_anonymous_bytes: int
    after_bytes: int
    failures: int
    first_failure: str | None


class Moved(Struct, frozen=True):
    """What a load moved, and what went wrong with it."""

    bytes: int
    failures: int = 0
    first_failure: str | None = None


class _Reader:
    """One slow client: reads an object from some block of 1 MiB on."""

    def __init__(self, server: Server, number: int, first_block: int) -> None:
        self._expected = b"".join(objects.parts(number, 16, first_block))
        self._head = b""
        self._done_head = False
        self.failure: str | None = None
        self.received_bytes = 0
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._sock.connect((HOST, server.port))
        start = first_block * objects.BLOCK_BYTES
        task = job(server, prefix="1GiB", count=_OBJECTS, size_bytes=_OBJECT_BYTES, connections=1)
        rest = changed(task, piece_bytes=_OBJECT_BYTES - start)
        self._sock.sendall(signed_head(rest, "GET", number, start))
        self._sock.setblocking(False)

    def read(self, limit_bytes: int) -> None:
        """Takes what is there, up to the limit."""
        left = limit_bytes
        while left > 0 and self.failure is None:
            try:
                data = self._sock.recv(left)
            except BlockingIOError:
                return
            except OSError as error:
                self.failure = str(error)
                return
            if not data:
                self.failure = "the server closed the connection"
                return
            left -= len(data)
            self.received_bytes += len(data)
            if not self._done_head:
                self._check(data)

    def _check(self, data: bytes) -> None:
        """The status, and the first bytes of the body: another chunk's would differ."""
        self._head += data
        head, end, body = self._head.partition(b"\r\n\r\n")
        if head[9:12] not in (b"", b"206"):
            self.failure = self._head[:300].decode("latin-1")
        elif end and len(body) >= len(self._expected):
            self._done_head = True
            if not body.startswith(self._expected):
                self.failure = "the body begins with the wrong bytes"

    def close(self) -> None:
        if self.failure is None and not self._done_head:
            self.failure = "no answer at all"
        self._sock.close()


def read_slowly(server: Server) -> Moved:
    """All readers in one thread: every tenth of a second each may take its share."""
    stride_blocks = _OBJECT_BYTES // objects.BLOCK_BYTES * _OBJECTS // _READERS
    readers = [
        _Reader(server, number % _OBJECTS, number // _OBJECTS * stride_blocks)
        for number in range(_READERS)
    ]
    share_bytes = int(_READER_BYTES_PER_SECOND * _TICK_SECONDS)
    started = time.monotonic()
    ticks = int(_READ_SECONDS / _TICK_SECONDS)
    for tick in range(1, ticks + 1):
        for reader in readers:
            reader.read(share_bytes)
        time.sleep(max(0.0, started + tick * _TICK_SECONDS - time.monotonic()))
    for reader in readers:
        reader.close()
    failures = [reader.failure for reader in readers if reader.failure is not None]
    return Moved(
        sum(reader.received_bytes for reader in readers),
        len(failures),
        failures[0] if failures else None,
    )


def upload_at_once(server: Server) -> Moved:
    """All uploads at once, each of them whole."""
    task = job(
        server,
        prefix="64MiB",
        count=_UPLOADS,
        size_bytes=_UPLOAD_BYTES,
        connections=_UPLOADS,
    )
    put = changed(task, mix={"PUT": 1}, bucket=server.put_bucket, timeout_seconds=120.0)
    with Driver() as driver:
        outcome = driver.run(put)
    return Moved(outcome.body_bytes, outcome.failures, outcome.first_failure)


def watch(name: str, clients: int, server: Server, load: Callable[[], Moved]) -> Case:
    """Runs a load and looks at the server's memory meanwhile."""
    server.cpu_seconds()
    before = server.memory()
    server.forget_peak()
    anonymous = before.anonymous_bytes
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        running: Future[Moved] = pool.submit(load)
        while not running.done():
            anonymous = max(anonymous, server.memory().anonymous_bytes)
            time.sleep(_SAMPLE_SECONDS)
        moved = running.result()
    seconds = time.monotonic() - started
    peak = server.memory().peak_resident_bytes
    server.cpu_seconds()
    return Case(
        name=name,
        clients=clients,
        moved_bytes=moved.bytes,
        seconds=seconds,
        before_bytes=before.resident_bytes,
        peak_bytes=peak,
        peak_anonymous_bytes=anonymous,
        after_bytes=server.memory().resident_bytes,
        failures=moved.failures,
        first_failure=moved.first_failure,
    )


def cases(server: Server, console: Console) -> list[Case]:
    """Cold readers, warm readers, uploads; on one node, in this order."""
    loads: tuple[tuple[str, int, Callable[[], Moved]], ...] = (
        ("slow readers of 1 GiB objects, cold", _READERS, lambda: read_slowly(server)),
        ("slow readers of 1 GiB objects, warm", _READERS, lambda: read_slowly(server)),
        ("uploads of 64 MiB", _UPLOADS, lambda: upload_at_once(server)),
    )
    found = []
    for name, clients, load in loads:
        console.print(f"{server.name}: {clients} {name}", style="dim")
        found.append(watch(name, clients, server, load))
    return found


def bench(where: report.Machine, command: str, parent: Path | None, console: Console) -> int:
    """Measures, prints, writes `memory.md` and `.json`; the number of failures."""
    with work_folder(parent) as work:
        data = Path(work) / "data"
        try:
            server = Feedrack(data, Path(work) / "feedrack")
        except PeerMissingError as error:
            print(f"Memory is not measured: {error}")
            return 0
        objects.write_files(data / READ_BUCKET, "1GiB", _OBJECTS, _OBJECT_BYTES)
        with server:
            found = cases(server, console)
        versions = [server.version]
    lines = report.preamble("Memory", where, versions, (), command)
    lines += _table(found)
    print("\n".join(lines))
    report.write(
        "memory",
        lines,
        {"command": command, "machine": where, "versions": versions, "cases": found},
    )
    return sum(case.failures for case in found)


def _table(found: list[Case]) -> list[str]:
    lines = [
        "Resident memory of the server in MiB. Anonymous memory leaves out pages of files (the",
        "index is a map of a file); its peak is sampled four times a second.",
        "",
        "| clients | moved GiB | before | peak | peak, anonymous | after | growth "
        "per client, KiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in found:
        grown = max(case.peak_bytes - case.before_bytes, 0) / case.clients / 1024
        lines.append(
            f"| {case.clients} {case.name} | {case.moved_bytes / 1024**3:.2f} "
            f"| {case.before_bytes / _MIB:.0f} | {case.peak_bytes / _MIB:.0f} "
            f"| {case.peak_anonymous_bytes / _MIB:.0f} | {case.after_bytes / _MIB:.0f} "
            f"| {grown:.0f} |"
        )
    for case in found:
        if case.failures:
            lines += ["", f"**{case.name}: {case.failures} failures**: {case.first_failure}"]
    return lines


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(folder: Path | None) -> None:
    """Measure the node's memory under slow readers and many uploads."""
    failures = bench(report.machine(), "python -m benchmarks.memory", folder, Console(stderr=True))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
