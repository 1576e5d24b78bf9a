"""`python -m benchmarks.epoch`: what a cold epoch over 100,000 small objects asks of their origin.

One reader reads every object once, by batches, through a node with an empty cache: in the order of
the keys and shuffled, before the prefix is packed and after. The origin is SeaweedFS, a process of
its own, and it is the origin that counts what it was asked. Writes `epoch.md` and `.json`; exit
status 1 where an object was wrong.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from msgspec import Struct
from rich.console import Console

from benchmarks import report
from benchmarks.counted import CountedOrigin
from benchmarks.driver import Driver
from benchmarks.measure import changed, job
from benchmarks.node import OverS3
from benchmarks.packed import Packed, create_bucket, make_pack
from benchmarks.reader import Turn, take_turn
from benchmarks.reading import Asked
from benchmarks.server import HOST, READ_BUCKET, PeerMissingError, Server, work_folder

_OBJECTS = 100_000
_SIZE_BYTES = 4096
_SHARD_BYTES = 32 * 1024**2
_PREFIX = "small"
ORDERS = ("lexical", "shuffled:7")
_SAID = {"lexical": "sequential", "shuffled:7": "shuffled"}


class Epoch(Struct, frozen=True, kw_only=True):
    """One epoch: what it took, and what the origin was asked in it, by operation."""

    packed: bool
    order: str
    turn: Turn
    requests: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.turn.told.seconds

    @property
    def name(self) -> str:
        return f"{'packed' if self.packed else 'not packed'}, {_SAID[self.order]}"


def most_gets(packed: Packed) -> int:
    """How many GETs a sequential epoch over a pack may cost: a shard each, its index, and the
    manifest that names them."""
    return packed.shard_files + 2


def verdict(epochs: Sequence[Epoch], packed: Packed) -> str:
    """The aim beside what was counted."""
    [sequential] = [epoch for epoch in epochs if epoch.packed and epoch.order == "lexical"]
    gets, most = sequential.requests.get("GET", 0), most_gets(packed)
    return (
        f"Aim: a sequential epoch over the pack costs at most one GET a shard "
        f"({packed.shard_files}), one for the index and one for the manifest: at most {most}. "
        f"Counted at the origin: {gets}, {'reached' if gets <= most else 'missed'}."
    )


def table(epochs: Sequence[Epoch]) -> list[str]:
    """The results as Markdown."""
    operations = sorted({name for epoch in epochs for name in epoch.requests})
    lines = [
        f"| epoch | {' | '.join(operations)} | seconds | objects/s | reader CPU µs/object "
        "| node CPU µs/object |",
        f"| --- |{' ---: |' * (len(operations) + 4)}",
    ]
    for epoch in epochs:
        counts = " | ".join(f"{epoch.requests.get(name, 0):,}" for name in operations)
        lines.append(
            f"| {epoch.name} | {counts} | {epoch.seconds:.1f} | {epoch.turn.per_second:,.0f} "
            f"| {report.number(epoch.turn.reader_us)} | {report.number(epoch.turn.server_us)} |"
        )
    return lines


def fill(origin: CountedOrigin, count: int) -> None:
    """Uploads the objects."""
    create_bucket(origin)
    task = job(origin, prefix=_PREFIX, count=count, size_bytes=_SIZE_BYTES, connections=32)
    with Driver() as driver:
        outcome = driver.run(changed(task, mix={"PUT": 1}, timeout_seconds=120.0))
    if outcome.requests != count:
        raise RuntimeError(f"{outcome.failures} uploads failed: {outcome.first_failure}")


def read_all(origin: CountedOrigin, node: Server, count: int, order: str, *, packed: bool) -> Epoch:
    """One epoch through the node, whose cache is emptied before."""
    asked = Asked(
        way="epoch",
        endpoint_url=f"http://{HOST}:{node.port}",
        bucket=READ_BUCKET,
        prefix=_PREFIX,
        count=count,
        size_bytes=_SIZE_BYTES,
        order=order,
    )
    before = origin.requests()
    with node:
        turn = take_turn(asked, node)
    return Epoch(packed=packed, order=order, turn=turn, requests=origin.requests() - before)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="A tenth of the objects.")
@click.option("--objects", "count", type=click.IntRange(1000), default=_OBJECTS, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, count: int, folder: Path | None) -> None:
    """Count what cold epochs ask of an origin."""
    where = report.machine()
    console = Console(stderr=True)
    command = shlex.join(["python", "-m", "benchmarks.epoch", *sys.argv[1:]])
    # A part does not replace the whole.
    name = "epoch-quick" if quick else "epoch" if count == _OBJECTS else "epoch-part"
    if quick:
        count //= 10
    with work_folder(folder) as work:
        base = Path(work)
        try:
            origin = CountedOrigin(base / "data", base / "origin")
            node = OverS3(base / "data", base / "node", origin.port)
        except PeerMissingError as error:
            print(f"Epochs are not measured: {error}")
            return
        versions = [node.version, origin.version]
        # Beside it nobody is measured against anybody: it may have what there is.
        origin.cores = os.sched_getaffinity(0)
        (base / "data").mkdir()
        epochs = []
        with origin:
            console.print(f"{count:,} objects to the origin", style="dim")
            fill(origin, count)
            packed = None
            for is_packed in (False, True):
                if is_packed:
                    console.print("packing", style="dim")
                    url = f"http://{HOST}:{origin.port}"
                    packed = make_pack(url, f"{_PREFIX}/", base / "spool", _SHARD_BYTES)
                for order in ORDERS:
                    console.print(f"epoch, {order}, packed: {is_packed}", style="dim")
                    epochs.append(read_all(origin, node, count, order, packed=is_packed))
    assert packed is not None
    notes = (
        f"{count:,} objects of 4 KiB, {packed.shard_files} shards of 32 MiB and an index of "
        f"{packed.index_bytes / 1024**2:.1f} MiB; one reader, batches of 256, read ahead by two",
        "requests: SeaweedFS's own count, listings and all, from before the node starts until the "
        "reader is done",
        "the node has one core, the reader another, the origin whatever is left",
    )
    lines = [*report.preamble("Cold epochs", where, versions, notes, command), *table(epochs)]
    lines += ["", verdict(epochs, packed)]
    wrong = {epoch.name: epoch.turn.told.wrong for epoch in epochs}
    lines += [f"\n**Wrong: {many} objects, {name}**" for name, many in wrong.items() if many]
    print("\n".join(lines))
    report.write(
        name,
        lines,
        {"command": command, "machine": where, "pack": packed, "epochs": epochs},
    )
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
