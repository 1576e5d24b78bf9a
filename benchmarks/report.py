"""Tables and JSON under `benchmarks/results/`, with what a reader must know of the machine."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from benchmarks.measure import Sample, Summary, summarise

RESULTS = Path(__file__).parent / "results"
_MIB = 1024**2


class Cell(Struct, frozen=True):
    """One line of the table before the peers: what was asked of each of them."""

    operation: str
    size: str
    connections: int


class Machine(Struct, frozen=True, kw_only=True):
    """What the figures depend on, and nothing that names the machine."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    load_average_before: float


def machine() -> Machine:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return Machine(
        processor=names[0] if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel="Linux " + ".".join(platform.release().split(".")[:2]),
        python=platform.python_version(),
        load_average_before=round(os.getloadavg()[0], 2),
    )


def preamble(
    title: str, where: Machine, versions: Iterable[str], notes: Iterable[str], command: str
) -> list[str]:
    """The lines above the tables."""
    return [
        f"# {title}",
        "",
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`",
        f"- {where.processor}, {where.cores} cores, {where.memory_bytes / 1024**3:.0f} GiB, "
        f"{where.kernel}, Python {where.python}; load average before: "
        f"{where.load_average_before:.2f}",
        f"- {', '.join(versions)}",
        *[f"- {note}" for note in notes],
        "",
    ]


def write(name: str, lines: Sequence[str], data: dict[str, Any]) -> None:
    """`name`.md and `name`.json, each replaced in one step."""
    RESULTS.mkdir(exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(data), indent=1)
    for suffix, content in ((".md", "\n".join(lines).encode() + b"\n"), (".json", encoded + b"\n")):
        path = RESULTS / f"{name}{suffix}"
        draft = path.with_suffix(".tmp")
        draft.write_bytes(content)
        draft.replace(path)


def table(samples: dict[Cell, dict[str, list[Sample]]], *, reference: str) -> list[str]:
    """One row for each cell and peer; the last column is CPU a request over the reference's."""
    lines = [
        "| operation | size | conns | server | requests/s | p50 ms | p99 ms | p99.9 ms "
        "| CPU µs/request | CPU s/GiB | peak RSS MiB | CPU ÷ " + reference + " |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    footnotes: list[str] = []
    for cell, by_peer in samples.items():
        rows = {peer: summarise(rounds) for peer, rounds in by_peer.items()}
        for peer, row in rows.items():
            base = rows.get(reference)
            ratio = f"{row.cpu_us / base.cpu_us:.2f}" if base and base.cpu_us else ""
            lines.append(_row(cell, peer, row, ratio))
            footnotes += _footnotes(cell, peer, row)
    return [*lines, "", *footnotes]


def _row(cell: Cell, peer: str, row: Summary, ratio: str) -> str:
    times = row.latency
    cells = (
        cell.operation,
        cell.size,
        str(cell.connections),
        peer,
        _number(row.per_second),
        _number(times.p50_ms),
        _number(times.p99_ms),
        _number(times.p999_ms),
        _number(row.cpu_us),
        f"{row.cpu_seconds_per_gib:.2f}",
        f"{row.peak_resident_bytes / _MIB:.0f}",
        ratio,
    )
    return "| " + " | ".join(cells) + " |"


def _footnotes(cell: Cell, peer: str, row: Summary) -> list[str]:
    where = f"{cell.operation} {cell.size}, {peer}"
    notes = []
    if row.failures:
        notes.append(f"- **{where}: {row.failures} failures**, the first: {row.first_failure}")
    expected = "disk" if "warm" in cell.operation else "origin"
    answers = sum(row.tiers.values())
    others = answers - row.tiers.get(expected, 0)
    if "GET" in cell.operation and others:
        notes.append(f"- {where}: {others} of {answers} answers did not come from {expected}")
    if row.client_busy > 0.9 and "half" not in cell.operation:
        notes.append(f"- {where}: the load generator was busy {100 * row.client_busy:.0f} %")
    return notes


def _number(value: float) -> str:
    """Three digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
