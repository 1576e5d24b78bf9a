"""`python -m benchmarks.packing`: `packer pack` beside copying the same bytes by the same client.

Both are processes of their own on the load generator's core, at one S3 endpoint: SeaweedFS, on the
servers' core. They take turns. What the endpoint takes of the time, both wait for; CPU is theirs
alone. Writes `packing.md` and `.json`; exit status 1 where something was packed wrongly.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from benchmarks import objects, report
from benchmarks.copying import Asked, Told
from benchmarks.mixes import Mix, even
from benchmarks.packed import KEYS, Packed, create_bucket, packer, report_of
from benchmarks.seaweedfs import SeaweedFS
from benchmarks.server import (
    HOST,
    READ_BUCKET,
    PeerMissingError,
    client_cores,
    work_folder,
)
from packer.building import build
from packer.plan import Task
from packer.reading import Outcome
from packer.stores.choice import open_store
from packer.stores.protocol import Deletion, Got

_KIB, _MIB = 1024, 1024**2
_JOBS = 16
# Small beside the mixes, so that uploads go on beside reads as they do in a large prefix.
_SHARD_BYTES = 32 * _MIB
_MIXES = (
    even("4 KiB", 24_000, 4 * _KIB),
    even("64 KiB", 4000, 64 * _KIB),
    Mix(label="1 KiB..1 MiB", count=2000, smallest_bytes=_KIB, largest_bytes=_MIB),
)
_OVERHEAD = (
    even("1 KiB", 65_536, _KIB),
    even("2,030 B", 32_768, 2030),
    even("4 KiB", 16_384, 4 * _KIB),
    even("64 KiB", 1024, 64 * _KIB),
    even("520 KiB", 128, 520 * _KIB),
    even("1 MiB", 64, _MIB),
    Mix(label="1 KiB..1 MiB", count=512, smallest_bytes=_KIB, largest_bytes=_MIB),
)
_SAMPLE_SECONDS = 0.1


class Turn(Struct, frozen=True, kw_only=True):
    """What one process did, and what it took, both without the program's start."""

    objects: int
    size_bytes: int
    seconds: float
    cpu_seconds: float
    peak_resident_bytes: int
    peak_anonymous_bytes: int

    @property
    def per_second(self) -> float:
        return self.objects / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds an object."""
        return self.cpu_seconds * 1e6 / self.objects


class Pair(Struct, frozen=True, kw_only=True):
    """One mix: the rounds of both, and how large the pack became."""

    mix: Mix
    packing: list[Turn]
    copying: list[Turn]
    index_bytes: int

    def ratio(self, figure: str) -> float:
        """Packing's over copying's, the median over the rounds."""
        turns = zip(self.packing, self.copying, strict=True)
        return float(median(getattr(our, figure) / getattr(their, figure) for our, their in turns))


class Overhead(Struct, frozen=True):
    """Shards of one mix: the plain bytes, and those of the files."""

    label: str
    plain_bytes: int
    file_bytes: int

    @property
    def share(self) -> float:
        return self.file_bytes / self.plain_bytes - 1


class _Bench:
    """The origin, and the two ways through it."""

    def __init__(self, origin: SeaweedFS, folder: Path, console: Console) -> None:
        self._url = f"http://{HOST}:{origin.port}"
        self._origin = origin
        self._folder = folder
        self._console = console
        self.wrong: list[str] = []
        # Where bytecode is not kept, a start compiles all that is imported.
        self._start_seconds = {
            "packing": _start_seconds([packer(), "--version"]),
            "copying": _start_seconds([sys.executable, "-c", "import benchmarks.copying"]),
        }

    def pair(self, mix: Mix, rounds: int) -> Pair:
        """Both ways in turns, the first of them changing from round to round."""
        sizes = mix.sizes()
        self._console.print(f"{mix.label}: {mix.count:,} uploads", style="dim")
        upload(self._url, mix, sizes)
        self._copy(mix)
        found: dict[str, list[Turn]] = {"packing": [], "copying": []}
        index_bytes = 0
        for number in range(rounds):
            self._console.print(f"{mix.label}: round {number + 1} of {rounds}", style="dim")
            for way in ("packing", "copying") if number % 2 else ("copying", "packing"):
                if way == "copying":
                    turn = self._copy(mix)
                else:
                    turn, said = self._pack(mix)
                    index_bytes = said.index_bytes
                if (turn.objects, turn.size_bytes) != (len(sizes), sum(sizes)):
                    self.wrong.append(f"{way} {mix.label}: {turn.objects} objects")
                found[way].append(turn)
        return Pair(mix=mix, index_bytes=index_bytes, **found)

    def _pack(self, mix: Mix) -> tuple[Turn, Packed]:
        dataset = f"s3://{READ_BUCKET}/{mix.prefix}"
        way = [dataset, "--endpoint-url", self._url, "--spool", str(self._folder / "spool")]
        command = [
            *(packer(), "pack", *way, "--json", "--settle", "0"),
            *("--jobs", str(_JOBS), "--shard-size", f"{_SHARD_BYTES}B"),
        ]
        said, cpu_seconds, peak, anonymous = run(command, b"")
        told = report_of(said)
        turn = Turn(
            objects=told.packed_objects,
            size_bytes=told.packed_bytes,
            seconds=told.seconds,
            cpu_seconds=cpu_seconds - self._start_seconds["packing"],
            peak_resident_bytes=peak,
            peak_anonymous_bytes=anonymous,
        )
        run([packer(), "drop", *way], b"")
        self._origin.cpu_seconds()
        return turn, told

    def _copy(self, mix: Mix) -> Turn:
        asked = Asked(
            endpoint_url=self._url,
            bucket=READ_BUCKET,
            prefix=mix.prefix,
            to_prefix="copied/",
            shard_bytes=_SHARD_BYTES,
            jobs=_JOBS,
        )
        command = [sys.executable, "-m", "benchmarks.copying"]
        said, cpu_seconds, peak, anonymous = run(command, msgspec.json.encode(asked))
        told = msgspec.json.decode(said, type=Told)
        remove(self._url, "copied/")
        self._origin.cpu_seconds()
        return Turn(
            objects=told.objects,
            size_bytes=told.size_bytes,
            seconds=told.seconds,
            cpu_seconds=cpu_seconds - self._start_seconds["copying"],
            peak_resident_bytes=peak,
            peak_anonymous_bytes=anonymous,
        )


def _start_seconds(command: Sequence[str]) -> float:
    return median(run(command, b"")[1] for _ in range(3))


def upload(endpoint_url: str, mix: Mix, sizes: Sequence[int]) -> None:
    """Puts the objects of a mix into the read bucket."""
    with closing(open_store(READ_BUCKET, endpoint_url, None)) as store, ThreadPoolExecutor(8) as at:

        def put(number: int, size_bytes: int) -> None:
            store.put(mix.key(number), b"".join(objects.parts(number, size_bytes)))

        for _ in at.map(put, range(mix.count), sizes):
            pass


def remove(endpoint_url: str, prefix: str) -> None:
    """Deletes what is under a prefix of the read bucket. StoreError."""
    with closing(open_store(READ_BUCKET, endpoint_url, None)) as store:
        for _, error in store.delete([Deletion(item.key) for item in store.listing(prefix)]):
            raise error


def run(command: Sequence[str], given: bytes) -> tuple[bytes, float, int, int]:
    """A process on the load generator's core, to its end: what it says, its CPU seconds, its peak
    of resident bytes, and of those that are no file's pages (looked at ten times a second)."""
    cores = client_cores()
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - no threads
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        process.stdin.close()
        anonymous = 0
        # Its last words are short: they fit into the pipe, and it never waits for us.
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            anonymous = max(anonymous, _anonymous_bytes(process.pid))
            time.sleep(_SAMPLE_SECONDS)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with status {process.returncode}")
    return said, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, anonymous


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def overhead(mix: Mix, folder: Path) -> Overhead:
    """What the shards of a mix, built by `packer`'s own builder, have beyond the plain bytes."""
    sizes = mix.sizes()
    block = bytes(max(sizes))

    def outcomes() -> list[Outcome]:
        return [
            (Task(mix.key(number), size, "e", 1), Got(block[:size], "e"))
            for number, size in enumerate(sizes)
        ]

    folder.mkdir()
    file_bytes = 0
    for sealed in build(
        outcomes(),
        folder,
        shard_bytes=256 * _MIB,
        largest_bytes=_MIB,
        generation=1,
        first_number=1,
        took=lambda _: None,
        left_out=lambda _task, _error: None,
    ):
        file_bytes += sealed.head.shard.size_bytes
    shutil.rmtree(folder)
    return Overhead(mix.label, sum(sizes), file_bytes)


def tables(pairs: Sequence[Pair], overheads: Sequence[Overhead]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "## Packing beside copying",
        "",
        "| objects | way | objects/s | MiB/s | CPU µs/object | peak RSS MiB | anonymous MiB "
        "| rate ÷ copying's | CPU ÷ copying's | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for pair in pairs:
        rate, cpu = pair.ratio("per_second"), pair.ratio("cpu_seconds")
        verdict = "reached" if rate >= 0.8 else "missed"
        lines.append(_row(pair.mix, "copying", pair.copying) + "  |  | |")
        lines.append(
            _row(pair.mix, "packing", pair.packing) + f" {rate:.2f} | {cpu:.2f} | {verdict} |"
        )
    lines += [
        "",
        "Aim: packing at least 0.80 of copying's rate.",
        "",
        "## Space beyond the plain bytes",
        "",
        "| objects | plain MiB | shards | |",
        "| --- | ---: | ---: | --- |",
    ]
    for each in overheads:
        verdict = "reached" if each.share <= 0.03 else "missed"
        lines.append(
            f"| {each.label} | {each.plain_bytes / _MIB:.0f} | +{each.share:.2%} | {verdict} |"
        )
    indexes = [f"{pair.index_bytes / pair.mix.count:.0f} ({pair.mix.label})" for pair in pairs]
    return [
        *lines,
        "",
        "Aim: shards at most 3 % larger than any mix of 1 KiB to 1 MiB. Index, bytes an object: "
        f"{', '.join(indexes)}.",
    ]


def _row(mix: Mix, way: str, turns: Sequence[Turn]) -> str:
    def middle(figure: str) -> float:
        return float(median(getattr(turn, figure) for turn in turns))

    peak = max(turn.peak_resident_bytes for turn in turns) / _MIB
    anonymous = max(turn.peak_anonymous_bytes for turn in turns) / _MIB
    return (
        f"| {mix.count:,} of {mix.label} | {way} | {middle('per_second'):,.0f} "
        f"| {middle('bytes_per_second') / _MIB:,.0f} | {middle('cpu_us'):,.0f} "
        f"| {peak:.0f} | {anonymous:.0f} |"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="One round of a quarter of the objects.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, rounds: int, folder: Path | None) -> None:
    """Measure packing beside copying."""
    where = report.machine()
    console = Console(stderr=True)
    mixes: Sequence[Mix] = _MIXES
    if quick:
        rounds = 1
        mixes = [msgspec.structs.replace(mix, count=mix.count // 4) for mix in mixes]
    command = "python -m benchmarks.packing" + (" --quick" if quick else "")
    with work_folder(folder) as work:
        base = Path(work)
        overheads = [overhead(mix, base / "built") for mix in _OVERHEAD]
        try:
            origin = SeaweedFS(base / "data", base / "origin")
        except PeerMissingError as error:
            print(f"Packing is not measured: {error}")
            return
        os.environ.update(KEYS)
        with origin:
            create_bucket(origin)
            bench = _Bench(origin, base, console)
            pairs = [bench.pair(mix, rounds) for mix in mixes]
            versions = [origin.version]
    notes = (
        f"medians of {rounds} interleaved rounds; a ratio is the median of the rounds' own",
        f"{_JOBS} requests at once, shards of {_SHARD_BYTES // _MIB} MiB; origin: {origin.note}",
        "time and CPU are the client process's, its start left out",
    )
    lines = report.preamble("Packing", where, versions, notes, command)
    lines += tables(pairs, overheads)
    lines += [f"\n**Wrong: {each}**" for each in bench.wrong]
    print("\n".join(lines))
    report.write(
        "packing-quick" if quick else "packing",
        lines,
        {"command": command, "machine": where, "pairs": pairs, "overheads": overheads},
    )
    sys.exit(1 if bench.wrong else 0)


if __name__ == "__main__":
    main()
