"""Tables and JSON under `benchmarks/results/`, with what a reader must know of the machine."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from benchmarks.measure import Cell, Figure, Sample, Samples, Summary, ratio, summarise

RESULTS = Path(__file__).parent / "results"
_MIB = 1024**2


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


def write(name: str, lines: Sequence[str], data: Mapping[str, Any]) -> None:
    """`name`.md and `name`.json, each replaced in one step."""
    RESULTS.mkdir(exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(data), indent=1)
    for suffix, content in ((".md", "\n".join(lines).encode() + b"\n"), (".json", encoded + b"\n")):
        path = RESULTS / f"{name}{suffix}"
        draft = path.with_suffix(".tmp")
        draft.write_bytes(content)
        draft.replace(path)


class Row(Struct, frozen=True):
    """One server in one cell, and the rounds of the server that it is held against."""

    cell: Cell
    server: str
    rounds: Sequence[Sample]
    ours: Sequence[Sample]

    def over(self, figure: Figure) -> str:
        """Ours over this server's, the median over the rounds."""
        found = ratio(self.ours, self.rounds, figure)
        return "" if found is None else f"{found:.2f}"


Column = tuple[str, Callable[[Row, Summary], str]]

_TIMES: tuple[Column, ...] = (
    ("p50 ms", lambda _, found: number(found.latency.p50_ms)),
    ("p99 ms", lambda _, found: number(found.latency.p99_ms)),
    ("p99.9 ms", lambda _, found: number(found.latency.p999_ms)),
)
_CPU: tuple[Column, ...] = (
    ("CPU µs/request", lambda _, found: number(found.cpu_us)),
    ("CPU s/GiB", lambda _, found: f"{found.cpu_seconds_per_gib:.2f}"),
)
_RATE: Column = ("requests/s", lambda _, found: number(found.per_second))
_BYTES: Column = ("MiB/s", lambda _, found: number(found.bytes_per_second / _MIB))
_MEMORY: Column = ("peak RSS MiB", lambda _, found: number(found.peak_resident_bytes / _MIB))
_CLIENT: Column = ("generator busy", lambda _, found: f"{100 * found.client_busy:.0f} %")
_CPU_OVER: Column = ("our CPU ÷ its", lambda row, _: row.over(lambda sample: sample.cpu_us))
_RATE_OVER: Column = ("our rate ÷ its", lambda row, _: row.over(lambda sample: sample.per_second))

SPEED: tuple[Column, ...] = (
    _RATE,
    _BYTES,
    *_TIMES,
    *_CPU,
    _MEMORY,
    _CLIENT,
    _CPU_OVER,
    _RATE_OVER,
)
PACED: tuple[Column, ...] = (
    _RATE,
    *_TIMES,
    ("p99 ÷ p50", lambda _, found: f"{found.tail:.1f}"),
    _CPU[0],
    _CPU_OVER,
)
FIRST_BYTE: tuple[Column, ...] = (
    ("first byte p50 ms", lambda _, found: number(found.first_byte.p50_ms)),
    ("first byte p99 ms", lambda _, found: number(found.first_byte.p99_ms)),
    ("whole p50 ms", lambda _, found: number(found.latency.p50_ms)),
    _BYTES,
    *_CPU,
    ("our first byte ÷ its", lambda row, _: row.over(lambda sample: sample.first_byte_ms)),
    ("our CPU ÷ its", lambda row, _: row.over(lambda sample: sample.cpu_us)),
)


def table(samples: Samples, columns: Sequence[Column], ours: str) -> list[str]:
    """One row for each cell and server; `ours` is the server that the others are held against."""
    titles = [title for title, _ in columns]
    lines = [
        f"| operation | size | conns | server | {' | '.join(titles)} |",
        f"| --- | --- | ---: | --- |{' ---: |' * len(titles)}",
    ]
    footnotes: list[str] = []
    for cell, by_server in samples.items():
        for server, rounds in by_server.items():
            row = Row(cell, server, rounds, by_server.get(ours, ()))
            found = summarise(rounds)
            cells = [cell.operation, cell.size, str(cell.connections), server]
            cells += [say(row, found) for _, say in columns]
            lines.append(f"| {' | '.join(cells)} |")
            footnotes += _footnotes(cell, server, found)
    return [*lines, "", *footnotes, *([""] if footnotes else [])]


def _footnotes(cell: Cell, server: str, found: Summary) -> list[str]:
    where = f"{cell.operation} {cell.size}, {cell.connections} connections, {server}"
    notes = []
    if found.failures:
        notes.append(f"- **{where}: {found.failures} failures**, the first: {found.first_failure}")
    expected = "origin" if cell.operation.startswith("cold") else "disk"
    answers = sum(found.tiers.values())
    others = answers - found.tiers.get(expected, 0)
    if "GET" in cell.operation and others:
        notes.append(f"- {where}: {others} of {answers} answers did not come from {expected}")
    if found.client_busy > 0.9 and "half" not in cell.operation:
        notes.append(
            f"- {where}: the load generator had no time left, so that the rate is its own; "
            "the server's CPU a request holds"
        )
    return notes


def number(value: float) -> str:
    """Three digits that matter; nothing, where nothing was measured."""
    if not value:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
