"""`python -m benchmarks.run`: one node beside nginx, SeaweedFS and JuiceFS, on this machine.

Writes `one-node` (every table) and `summary` (the figures aimed at) as Markdown and JSON, then does
the memory benchmark. Exit status 1 where an answer was wrong.
"""

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from rich.console import Console

from benchmarks import aims, memory, report
from benchmarks.compare import SECTIONS, Found, compare
from benchmarks.peers import PEERS
from benchmarks.plan import FULL, QUICK
from benchmarks.server import work_folder

_MEMORY = "memory"


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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One short round, without memory.")
@click.option(
    "--only", multiple=True, type=click.Choice([*SECTIONS, _MEMORY]), help="Only these sections."
)
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
    sections = set(only) or {*SECTIONS, *(() if quick else (_MEMORY,))}
    plan = QUICK if quick else FULL
    plan = plan.with_rounds(rounds or plan.rounds)
    where = report.machine()
    command = shlex.join(["python", "-m", "benchmarks.run", *sys.argv[1:]])
    console = Console(stderr=True)
    wrong = 0
    if sections - {_MEMORY}:
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
    if _MEMORY in sections:
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
