"""`python -m benchmarks.run`: one node beside nginx, SeaweedFS and JuiceFS, on this machine.

Writes `one-node` (every table) and `summary` (the figures aimed at) as Markdown and JSON, then does
the memory benchmark. Exit status 1 where an answer was wrong.
"""

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field
from rich.console import Console

from benchmarks import aims, memory, report
from benchmarks.driver import Driver
from benchmarks.measure import Samples
from benchmarks.node import OverS3
from benchmarks.peers import PEERS, WORKERS, available, notes
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.rounds import Rounds, write_objects
from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import Server, ServerEndedError, work_folder

SECTIONS = ("get", "put", "cold", "workers", "memory")
_QUICK_SECTIONS = SECTIONS[:4]


class Found(Struct, kw_only=True):
    """What a run brought.

    Samples, the servers' versions, why some are missing, a line on each, and wrong answers that
    no sample tells of.
    """

    samples: Samples
    versions: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class _Group(Struct, frozen=True):
    """One table: which cells, which columns, and whom the others are held against."""

    title: str
    columns: Sequence[report.Column]
    ours: str
    holds: Callable[[str], bool]


_GROUPS = (
    _Group(
        "Reads of what is held",
        report.SPEED,
        "feedrack",
        lambda name: name in ("warm GET", "range GET"),
    ),
    _Group(
        "Reads at half of each server's own peak",
        report.PACED,
        "feedrack",
        lambda name: name.endswith("half rate"),
    ),
    _Group("Uploads", report.SPEED, "feedrack", lambda name: name == "PUT"),
    _Group(
        "Cold reads over a directory origin",
        (*report.SPEED[:-2],),
        "feedrack",
        lambda name: name == "cold GET",
    ),
    _Group(
        "Cold reads over an S3 origin, one client",
        report.FIRST_BYTE,
        "feedrack over S3",
        lambda name: name == "cold GET from S3",
    ),
    _Group(
        "Workers",
        report.SPEED,
        "feedrack 2 workers",
        lambda name: name == "warm GET, two cores",
    ),
)


def compare(
    plan: Plan, folder: Path, sections: set[str], names: Sequence[str], console: Console
) -> Found:
    """All rounds of all sections but memory."""
    data = folder / "data"
    write_objects(plan, data)
    peers, missing = available((PEERS[name] for name in names), data, folder)
    workers: list[Server] = []
    if "workers" in sections:
        workers, lacking = available(WORKERS.values(), data, folder)
        missing |= lacking
    found = Found(
        samples={},
        versions=[peer.version for peer in peers if peer.name != "nginx silent"],
        missing=missing,
        notes=notes([*peers, *workers], missing),
    )
    with ExitStack() as stack:
        driver = stack.enter_context(Driver())
        rounds = Rounds(plan, driver, console)
        for peer in peers:
            stack.enter_context(peer)
            if not peer.serves_files:
                colds = [task.size for task in plan.colds if isinstance(peer, SeaweedFS)]
                rounds.give_objects(peer, dict.fromkeys([*plan.sizes, *colds]))
        origin = next((peer for peer in peers if isinstance(peer, SeaweedFS)), None)
        node = None
        if origin is None:
            missing[OverS3.name] = "there is no S3 origin (seaweedfs)"
        elif "cold" in sections:
            node = OverS3(data, folder / "over-s3", origin.port)
        try:
            for number in range(plan.rounds):
                console.print(f"round {number + 1} of {plan.rounds}")
                servers = rounds.begin(peers)
                if "get" in sections:
                    rounds.fill(servers, plan.sizes)
                    rounds.read(servers, plan.reads)
                if "put" in sections:
                    rounds.upload(servers, plan.uploads)
                if origin is not None and node is not None:
                    rounds.cold(origin, node, plan.colds)
                if len(workers) == len(WORKERS):
                    rounds.two_cores(workers, plan.reads[0])
        except ServerEndedError as error:
            # What was measured until then is kept; the exit status tells that it is not all.
            console.print(str(error), style="bold red", markup=False)
            rounds.wrong.append(" ".join(str(error).split())[:300])
    # In the order of the registry, whatever the order of the rounds was.
    order = [*PEERS, *WORKERS, OverS3.name]
    found.wrong = rounds.wrong
    found.samples = {
        cell: dict(sorted(by.items(), key=lambda item: _rank(order, item[0])))
        for cell, by in rounds.samples.items()
    }
    return found


def _rank(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One short round, under 90 s; without memory.")
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Only these sections.")
@click.option("--server", "servers", multiple=True, type=click.Choice(list(PEERS)))
@click.option("--rounds", type=click.IntRange(1), help="How many rounds.  [default: 3, quick: 1]")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(
    quick: bool,
    only: tuple[str, ...],
    servers: tuple[str, ...],
    rounds: int | None,
    folder: Path | None,
) -> None:
    """Measure one node beside the servers that can be had on this machine."""
    # Told to end, it ends its servers too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sections = set(only) or set(_QUICK_SECTIONS if quick else SECTIONS)
    plan = QUICK if quick else FULL
    plan = plan.with_rounds(rounds or plan.rounds)
    where = report.machine()
    command = shlex.join(["python", "-m", "benchmarks.run", *sys.argv[1:]])
    console = Console(stderr=True)
    wrong = 0
    if sections - {"memory"}:
        with work_folder(folder) as work:
            found = compare(plan, Path(work), sections, servers or tuple(PEERS), console)
        # A part of a run does not replace the whole of one.
        name = "quick" if quick else "part" if only or servers else ""
        write(found, where, command, plan.rounds, f"-{name}" if name else "")
        wrong = len(found.wrong) + sum(
            sample.outcome.failures
            for by_server in found.samples.values()
            for rounds_of in by_server.values()
            for sample in rounds_of
        )
    if "memory" in sections:
        wrong += memory.bench(where, command, folder, console)
    sys.exit(1 if wrong else 0)


def write(found: Found, where: report.Machine, command: str, rounds: int, suffix: str) -> None:
    """Prints the tables, and writes them and the summary under `results/`."""
    reached = aims.aims(found.samples, found.missing)
    compact = aims.table(reached)
    lines = report.preamble("One node", where, found.versions, found.notes, command)
    lines += [
        f"Medians of {rounds} interleaved rounds, one core for the server and another for the load "
        "generator; ratios",
        "are medians of the rounds' own ratios. How to read this: `docs/benchmarks.md`.",
        "",
        *[f"**Wrong: {each}**\n" for each in found.wrong],
        "## Aims",
        "",
        *compact,
        "",
    ]
    for group in _GROUPS:
        cells = {cell: by for cell, by in found.samples.items() if group.holds(cell.operation)}
        if cells:
            lines += [f"## {group.title}", "", *report.table(cells, group.columns, group.ours)]
    print("\n".join(lines))
    report.write(f"one-node{suffix}", lines, _data(found, where, command, reached))
    summary = [f"`{command}`, {rounds} rounds, {', '.join(found.versions)}", "", *compact]
    report.write(
        f"summary{suffix}", summary, {"command": command, "machine": where, "aims": reached}
    )


def _data(
    found: Found, where: report.Machine, command: str, reached: Sequence[aims.Aim]
) -> dict[str, Any]:
    return {
        "command": command,
        "machine": where,
        "versions": found.versions,
        "notes": found.notes,
        "missing": found.missing,
        "wrong": found.wrong,
        "aims": reached,
        "cells": [
            {"cell": cell, "server": server, "rounds": rounds}
            for cell, by_server in found.samples.items()
            for server, rounds in by_server.items()
        ],
    }


if __name__ == "__main__":
    main()
