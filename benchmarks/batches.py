"""`python -m benchmarks.batches`: small packed objects, read in five ways on one machine.

Single GETs with boto3 in 16 threads; batch requests, and the short circuit (copies, and views of
what is mapped), with feedrack's reader; and the same objects as a plain tree of files. All of it is
in memory. The ways take turns, each a process on the load generator's core; the node has the first.
Writes `batches.md` and `.json`; exit status 1 where an object was wrong, or was not read in the way
that was asked for.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from benchmarks import objects, report
from benchmarks.aims import TIMES
from benchmarks.node import Feedrack
from benchmarks.packed import make_pack
from benchmarks.reader import Turn, take_turn
from benchmarks.reading import Asked, Way
from benchmarks.server import HOST, READ_BUCKET, PeerMissingError, work_folder

_KIB, _MIB = 1024, 1024**2
_SHARD_BYTES = 64 * _MIB
WAYS: tuple[Way, ...] = ("boto3", "batch", "short circuit", "views", "files")


class Size(Struct, frozen=True, kw_only=True):
    """So many objects of one size."""

    label: str
    size_bytes: int
    count: int

    @property
    def prefix(self) -> str:
        return self.label.replace(" ", "")


_SIZES = (
    Size(label="4 KiB", size_bytes=4 * _KIB, count=20_000),
    Size(label="64 KiB", size_bytes=64 * _KIB, count=4000),
)


class Row(Struct, frozen=True, kw_only=True):
    """One way at one size: its rounds."""

    size: Size
    way: Way
    rounds: list[Turn]


class Aim(Struct, frozen=True, kw_only=True):
    """A figure that was aimed at: the rate of `way` over that of `over`.

    `cpu`: how many times the CPU of reader and node together an object of `over` takes."""

    size: str
    way: Way
    over: Way
    wanted: float
    reached: float
    cpu: float

    @property
    def met(self) -> bool:
        return self.reached >= self.wanted


def aims(rows: Sequence[Row]) -> list[Aim]:
    """Batches beside single GETs, the short circuit beside batches: medians of the rounds' own."""
    by = {(row.size.label, row.way): row.rounds for row in rows}
    pairs: tuple[tuple[Way, Way], ...] = (("batch", "boto3"), ("short circuit", "batch"))
    found = []
    for size in dict.fromkeys(row.size.label for row in rows):
        for way, over in pairs:
            turns = list(zip(by[size, way], by[size, over], strict=True))
            reached = median(ours.per_second / theirs.per_second for ours, theirs in turns)
            cpu = median(theirs.cpu_us / ours.cpu_us for ours, theirs in turns)
            found.append(Aim(size=size, way=way, over=over, wanted=10.0, reached=reached, cpu=cpu))
    return found


def table(rows: Sequence[Row], found: Sequence[Aim]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "| objects | way | objects/s | MiB/s | reader CPU µs/object | node CPU µs/object |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        rate = median(turn.per_second for turn in row.rounds)
        reader = median(turn.reader_us for turn in row.rounds)
        # Of what asks no node the node's CPU is what it did besides.
        node = median(turn.server_us for turn in row.rounds) if row.way != "files" else 0.0
        lines.append(
            f"| {row.size.count:,} of {row.size.label} | {row.way} | {rate:,.0f} "
            f"| {rate * row.size.size_bytes / _MIB:,.0f} | {report.number(reader)} "
            f"| {report.number(node)} |"
        )
    lines += [
        "",
        "| objects a second | aim | measured | | by CPU of both |",
        "| --- | --- | ---: | --- | ---: |",
    ]
    lines += [
        f"| {aim.size}, {aim.way} over {aim.over} | ≥ {aim.wanted:.0f} {TIMES} "
        f"| {aim.reached:.1f} {TIMES} | {'reached' if aim.met else 'missed'} "
        f"| {aim.cpu:.1f} {TIMES} |"
        for aim in found
    ]
    return lines


def measure(node: Feedrack, sizes: Sequence[Size], rounds: int, console: Console) -> list[Row]:
    """All ways in turns, the order turning around from round to round."""
    rows = {(size, way): Row(size=size, way=way, rounds=[]) for size in sizes for way in WAYS}
    for number in range(rounds):
        for size in sizes:
            console.print(f"{size.label}: round {number + 1} of {rounds}", style="dim")
            # The first batch brings the shards in; so it is never behind the short circuit.
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                asked = Asked(
                    way=way,
                    endpoint_url=f"http://{HOST}:{node.port}",
                    bucket=READ_BUCKET,
                    prefix=size.prefix,
                    count=size.count,
                    size_bytes=size.size_bytes,
                    folder=str(node.data / READ_BUCKET),
                )
                rows[size, way].rounds.append(take_turn(asked, node))
    return list(rows.values())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One round of a quarter of the objects.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, rounds: int, folder: Path | None) -> None:
    """Measure five ways to read small objects."""
    where = report.machine()
    sizes: Sequence[Size] = _SIZES
    if quick:
        rounds = 1
        sizes = [msgspec.structs.replace(size, count=size.count // 4) for size in sizes]
    command = "python -m benchmarks.batches" + (" --quick" if quick else "")
    with work_folder(folder) as work:
        base = Path(work)
        data = base / "data"
        try:
            node = Feedrack(data, base / "feedrack")
        except PeerMissingError as error:
            print(f"Batches are not measured: {error}")
            return
        for size in sizes:
            objects.write_files(data / READ_BUCKET, size.prefix, size.count, size.size_bytes)
            make_pack(f"file://{data}", f"{size.prefix}/", base / "spool", _SHARD_BYTES)
        with node:
            rows = measure(node, sizes, rounds, Console(stderr=True))
            versions = [node.version]
    found = aims(rows)
    notes = (
        f"medians of {rounds} interleaved rounds; a ratio is the median of the rounds' own",
        "packed in shards of 64 MiB that the node holds; everything in the page cache; the order "
        "of reads is shuffled",
        "boto3: 16 threads; all others one: batch and short circuit `Dataset.read_batch` of 256 "
        "objects, views `Dataset.view_batch` of as many, files `open().read()`",
    )
    lines = [*report.preamble("Batches", where, versions, notes, command), *table(rows, found)]
    wrong = {
        f"{row.size.label}, {row.way}": sum(turn.told.wrong for turn in row.rounds) for row in rows
    }
    lines += [f"\n**Wrong: {count} objects, {name}**" for name, count in wrong.items() if count]
    print("\n".join(lines))
    report.write(
        "batches-quick" if quick else "batches",
        lines,
        {"command": command, "machine": where, "aims": found, "rows": rows},
    )
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
