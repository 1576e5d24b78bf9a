"""`python -m benchmarks.run`: one node beside nginx, reads and writes from 4 KiB to 256 MiB.

All servers run side by side and take turns at every task, in an order that turns around from round
to round, so that whatever else the machine does meets all of them alike. A round starts the
servers anew: feedrack with an empty cache folder. Exit status 1 where an answer was wrong.
"""

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from benchmarks import memory, objects, report
from benchmarks.driver import Driver
from benchmarks.jobs import Job
from benchmarks.measure import Sample, job, measure
from benchmarks.report import Cell
from benchmarks.servers import PEERS, READ_BUCKET, PeerMissingError, Server, work_folder

_MIB = 1024**2
SECTIONS = ("get", "put", "memory")

Samples = dict[Cell, dict[str, list[Sample]]]


class Size(Struct, frozen=True, kw_only=True):
    """Objects of one size: how many, over how many connections; `paced`: at half speed as well."""

    label: str
    size_bytes: int
    count: int
    connections: int = 32
    paced: bool = True

    @property
    def sample_every(self) -> int:
        return 64 if self.size_bytes <= _MIB else 16


class Plan(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    rounds: int
    seconds: float
    sizes: tuple[Size, ...]


FULL = Plan(
    rounds=3,
    seconds=1.0,
    sizes=(
        Size(label="4 KiB", size_bytes=4096, count=2000),
        Size(label="64 KiB", size_bytes=65_536, count=1000),
        Size(label="1 MiB", size_bytes=_MIB, count=256),
        Size(label="256 MiB", size_bytes=256 * _MIB, count=4, connections=4, paced=False),
    ),
)
QUICK = Plan(
    rounds=1,
    seconds=0.4,
    sizes=(
        Size(label="4 KiB", size_bytes=4096, count=500),
        Size(label="64 KiB", size_bytes=65_536, count=250),
        Size(label="1 MiB", size_bytes=_MIB, count=64),
        Size(label="256 MiB", size_bytes=256 * _MIB, count=2, connections=2, paced=False),
    ),
)


class Bench:
    """The servers of one round, the load, and where samples are kept."""

    def __init__(self, plan: Plan, driver: Driver, samples: Samples, console: Console) -> None:
        self._plan = plan
        self._driver = driver
        self._samples = samples
        self._console = console

    def gets(self, servers: list[Server]) -> None:
        """Cold, then warm, then at half of each server's own speed, size by size."""
        for size in self._plan.sizes:
            for server in servers:
                self._sample("cold GET", size, server, self._get(size, server))
            speeds: dict[str, float] = {}
            for server in servers:
                task = self._for_a_while(self._get(size, server))
                sample = self._sample("warm GET", size, server, task)
                speeds[server.name] = sample.outcome.per_second
            for server in servers:
                rate = speeds[server.name] / 2
                if size.paced and rate > 0:
                    task = self._for_a_while(self._get(size, server), rate=rate)
                    self._sample("warm GET, half rate", size, server, task)

    def puts(self, servers: list[Server]) -> None:
        """New keys, again and again; then some are read back and compared."""
        for size in self._plan.sizes:
            for server in servers:
                if server.put_missing:
                    continue
                once = msgspec.structs.replace(
                    self._get(size, server), bucket=server.put_bucket, numbered=False
                )
                task = msgspec.structs.replace(self._for_a_while(once), method="PUT")
                written = self._sample("PUT", size, server, task).outcome.requests
                check = msgspec.structs.replace(
                    once, limit=min(written, 16 if size.size_bytes <= _MIB else 1), sample_every=1
                )
                found = self._driver.run(check)
                if found.failures:
                    raise RuntimeError(f"{server.name} lost an upload: {found.first_failure}")

    def _get(self, size: Size, server: Server) -> Job:
        task = job(
            server,
            bucket=READ_BUCKET,
            prefix=_prefix(size),
            count=size.count,
            size_bytes=size.size_bytes,
        )
        return msgspec.structs.replace(
            task, connections=size.connections, sample_every=size.sample_every
        )

    def _for_a_while(self, task: Job, rate: float | None = None) -> Job:
        return msgspec.structs.replace(task, seconds=self._plan.seconds, rate=rate)

    def _sample(self, operation: str, size: Size, server: Server, task: Job) -> Sample:
        self._console.print(f"{server.name}: {operation} {size.label}", style="dim")
        sample = measure(server, self._driver, task)
        cell = Cell(operation, size.label, size.connections)
        self._samples.setdefault(cell, {}).setdefault(server.name, []).append(sample)
        return sample


def compare(
    plan: Plan, folder: Path, sections: set[str], names: Sequence[str], console: Console
) -> tuple[Samples, list[str], list[str]]:
    """All rounds. The samples, the servers' versions, and notes on what they are or lack."""
    data = folder / "data"
    for size in plan.sizes:
        objects.write_files(data / READ_BUCKET, _prefix(size), size.count, size.size_bytes)
    peers, notes = available(names, data, folder)
    samples: Samples = {}
    with Driver() as driver:
        bench = Bench(plan, driver, samples, console)
        for number in range(plan.rounds):
            console.print(f"round {number + 1} of {plan.rounds}")
            with ExitStack() as stack:
                servers = [stack.enter_context(peer) for peer in peers]
                if number % 2:
                    servers.reverse()
                if "get" in sections:
                    bench.gets(servers)
                if "put" in sections:
                    bench.puts(servers)
    ordered = {
        cell: {peer.name: by_peer[peer.name] for peer in peers if peer.name in by_peer}
        for cell, by_peer in samples.items()
    }
    return ordered, [peer.version for peer in peers], notes


def available(names: Sequence[str], data: Path, folder: Path) -> tuple[list[Server], list[str]]:
    """Those of the peers that can run here, and a line on each, also on those that cannot."""
    peers: list[Server] = []
    notes: list[str] = []
    for name in names:
        try:
            peer = PEERS[name](data, folder / name)
        except PeerMissingError as error:
            notes.append(f"{name} is left out: {error}")
            continue
        peers.append(peer)
        notes.append(f"{name}: {peer.note}")
        if peer.put_missing:
            notes.append(f"{name} is left out of PUT: {peer.put_missing}")
    return peers, notes


def _prefix(size: Size) -> str:
    return size.label.replace(" ", "")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One short round, under a minute; without memory.")
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Only these sections.")
@click.option("--server", "servers", multiple=True, type=click.Choice(list(PEERS)))
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, only: tuple[str, ...], servers: tuple[str, ...], folder: Path | None) -> None:
    """Measure one node beside the servers installed on this machine."""
    sections = set(only) or set(SECTIONS[:2] if quick else SECTIONS)
    plan = QUICK if quick else FULL
    where = report.machine()
    command = shlex.join(
        ["python", "-m", "benchmarks.run", *(["--quick"] if quick else [])]
        + [part for section in only for part in ("--only", section)]
        + [part for name in servers for part in ("--server", name)]
    )
    console = Console(stderr=True)
    wrong = 0
    if sections & {"get", "put"}:
        with work_folder(folder) as work:
            samples, versions, notes = compare(
                plan, Path(work), sections, servers or tuple(PEERS), console
            )
        lines = report.preamble("One node", where, versions, notes, command)
        lines += [f"Medians of {plan.rounds} interleaved rounds.", ""]
        lines += report.table(samples, reference="nginx")
        print("\n".join(lines))
        report.write(
            "one-node-quick" if quick else "one-node",
            lines,
            _data(samples, where, versions, notes, command),
        )
        wrong = sum(s.outcome.failures for row in samples.values() for p in row.values() for s in p)
    if "memory" in sections:
        wrong += memory.bench(where, command, folder, console)
    sys.exit(1 if wrong else 0)


def _data(
    samples: Samples, where: report.Machine, versions: list[str], notes: list[str], command: str
) -> dict[str, Any]:
    return {
        "command": command,
        "machine": where,
        "versions": versions,
        "notes": notes,
        "cells": [
            {"cell": cell, "server": peer, "rounds": rounds}
            for cell, by_peer in samples.items()
            for peer, rounds in by_peer.items()
        ],
    }


if __name__ == "__main__":
    main()
