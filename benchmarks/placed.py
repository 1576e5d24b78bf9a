"""`python -m benchmarks.placed`: a real Slurm over real gateways, with the plugin and without.

Four nodes in two racks; each is a node of Slurm's and a gateway, with a cache that holds less than
all datasets. Each rack's uplink is shaped; the origin (SeaweedFS) and Redis are beyond it. Forty
jobs come as by chance, the same in each run; each reads one of six datasets through its own node's
gateway, twice over, and computes. Every run begins with empty caches.

`without`: Slurm as it is. `with`: job_submit.lua, PrologSlurmctld and the daemon. `wait`: the same,
and every job asks to wait a minute for its data at most.
"""

import json
import logging
import os
import random
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
import click
import structlog
from botocore.config import Config
from msgspec import Struct
from msgspec.json import decode
from rich.console import Console

from benchmarks import report
from benchmarks.coldstart import await_members, running, wait
from benchmarks.counted import CountedOrigin
from benchmarks.member import ADMIN_TOKEN, Node, Redis
from benchmarks.racks import Racks
from benchmarks.server import ACCESS_KEY, SECRET_KEY, PeerMissingError, work_folder
from tests.slurm.configuration import LabNode
from tests.slurm.lab import SlurmLab
from tests.slurm.place import obstacle
from tests.slurm.placed import Placed

_RACKS = ("r1", "r1", "r2", "r2")
_BUCKET = "train"
_OBJECT_BYTES = 8 * 1024**2
# An object that no job reads: that it is ranked shows that all is up.
_READY = "ready/0"
_READER = Path(__file__).with_name("placed_reader.py")
_WITHOUT, _WITH, _WAIT = "without", "with", "wait"


class Plan(Struct, frozen=True, kw_only=True):
    """How much of it. `gap_seconds` lie between two submissions in the mean, `compute_seconds` is
    what a job computes an object; `skew` is the exponent of Zipf's law for datasets."""

    jobs: int = 40
    datasets: int = 6
    objects: int = 8
    passes: int = 2
    gap_seconds: float = 2.2
    compute_seconds: float = 0.25
    skew: float = 0.7
    rate_mbit: int = 200
    capacity: str = "160MiB"
    seed: int = 6
    ways: tuple[str, ...] = (_WITHOUT, _WITH, _WAIT)

    @property
    def dataset_bytes(self) -> int:
        return self.objects * _OBJECT_BYTES


FULL = Plan()
QUICK = Plan(jobs=12, datasets=4, gap_seconds=2.0, capacity="112MiB", ways=(_WITHOUT, _WITH))


class Told(Struct, frozen=True):
    """What a job's reader says."""

    node: str
    dataset: str
    tiers: dict[str, int]
    reading_seconds: float
    began: float
    ended: float


class Found(Struct, frozen=True, kw_only=True):
    """One way. `tiers`: bytes of the first passes by where they came from. `crossed_bytes` is what
    the nodes count as from another rack, `entered_bytes` what came over the uplinks in all."""

    way: str
    jobs: int
    tiers: Mapping[str, int]
    crossed_bytes: float
    entered_bytes: int | None
    origin_bytes: int
    makespan_seconds: float
    wait_mean_seconds: float
    wait_longest_seconds: float
    reading_mean_seconds: float
    run_mean_seconds: float
    preferred: int

    def part(self, tier: str) -> float:
        return self.tiers.get(tier, 0) / max(1, sum(self.tiers.values()))


class Shaped(Placed):
    """Slurm with the plugin and the daemon over gateways that are there already."""

    def __init__(self, folder: Path, gateways: Sequence[Node]) -> None:
        super().__init__(folder, nodes=_lab_nodes(), readers={"benchmark": ["*"]})
        self._admin_urls = [each.admin_url for each in gateways]

    def start(self) -> "Shaped":
        try:
            self._install()
            self.slurm.start()
            self.start_daemon()
        except BaseException:
            self.stop()
            raise
        return self

    def write_config(self, **over: Any) -> None:
        super().write_config(gateways={"admin_urls": self._admin_urls}, **over)
        (self.site / "token").write_text(ADMIN_TOKEN)


class Bench:
    """Runs each way over the same jobs."""

    def __init__(self, plan: Plan, base: Path, console: Console) -> None:
        self._plan = plan
        self._base = base
        self._console = console
        self._cores = os.sched_getaffinity(0)
        rng = random.Random(plan.seed)
        weights = [1 / (number + 1) ** plan.skew for number in range(plan.datasets)]
        self._datasets = [f"d{number + 1}" for number in range(plan.datasets)]
        self._jobs = [
            (rng.expovariate(1 / plan.gap_seconds), rng.choices(self._datasets, weights)[0])
            for _ in range(plan.jobs)
        ]

    def run(self, racks: Racks) -> tuple[list[str], list[Found]]:
        """All ways, and the versions of what ran."""
        origin = CountedOrigin(self._base / "data", self._base / "origin", *racks.services)
        origin.cores = self._cores
        with origin:
            self._fill(origin)
            found = [self._way(way, racks, origin) for way in self._plan.ways]
            versions = [origin.version]
        return versions, found

    def _fill(self, origin: CountedOrigin) -> None:
        origin.make_bucket(_BUCKET)
        client = _client(f"http://{origin.host}:{origin.port}")
        client.put_object(Bucket=_BUCKET, Key=_READY, Body=bytes(_OBJECT_BYTES))
        rng = random.Random(self._plan.seed)
        for dataset in self._datasets:
            for key in self._keys(dataset):
                client.put_object(Bucket=_BUCKET, Key=key, Body=rng.randbytes(_OBJECT_BYTES))

    def _keys(self, dataset: str) -> list[str]:
        return [f"{dataset}/{number:03}" for number in range(self._plan.objects)]

    def _way(self, way: str, racks: Racks, origin: CountedOrigin) -> Found:
        self._console.print(f"{way}", style="dim")
        folder = self._base / way
        out = folder / "out"
        out.mkdir(parents=True)
        with Redis(folder / "redis", racks.services, self._cores) as redis:
            gateways = [
                Node(
                    folder / f"n{number + 1}",
                    racks.node(number),
                    origin,
                    number=number,
                    rack=rack,
                    redis=redis.address,
                    capacity=self._plan.capacity,
                    cores=self._cores,
                )
                for number, rack in enumerate(_RACKS)
            ]
            with running(gateways):
                await_members(gateways)
                urls = folder / "urls.json"
                urls.write_text(json.dumps(self._urls(gateways)))
                if way == _WITHOUT:
                    with SlurmLab(_lab_nodes()) as slurm:
                        return self._drive(way, slurm, racks, origin, gateways, urls)
                with Shaped(folder / "placed", gateways) as placed:
                    self._await_daemon(placed, gateways[0])
                    return self._drive(way, placed.slurm, racks, origin, gateways, urls)

    def _await_daemon(self, placed: Placed, gateway: Node) -> None:
        """Returns once it has ranked what a gateway has just read."""
        _client(f"http://{gateway.host}:{gateway.port}").get_object(Bucket=_BUCKET, Key=_READY)
        name = f"s3://{_BUCKET}/{_READY.partition('/')[0]}"
        wait(lambda: bool(placed.ranking(name)), "the daemon ranks nothing")

    def _urls(self, gateways: Sequence[Node]) -> dict[str, dict[str, list[str]]]:
        signed: dict[str, dict[str, list[str]]] = {}
        for each in gateways:
            client = _client(f"http://{each.host}:{each.port}")
            signed[each.id] = {
                dataset: [
                    client.generate_presigned_url(
                        "get_object", {"Bucket": _BUCKET, "Key": key}, ExpiresIn=36_000
                    )
                    for key in self._keys(dataset)
                ]
                for dataset in self._datasets
            }
        return signed

    def _drive(
        self,
        way: str,
        slurm: SlurmLab,
        racks: Racks,
        origin: CountedOrigin,
        gateways: Sequence[Node],
        urls: Path,
    ) -> Found:
        out = urls.parent / "out"
        crossed, sent = self._crossed(gateways), origin.sent_bytes()
        entered = racks.entered_bytes
        began = time.time()
        due = time.monotonic()
        submitted: dict[str, float] = {}
        for gap, dataset in self._jobs:
            due += gap
            time.sleep(max(0.0, due - time.monotonic()))
            hint = f"dataset=s3://{_BUCKET}/{dataset}"
            if way == _WAIT:
                hint += " dataset-wait=1"
            script = self._script(racks, urls, out, dataset)
            id_ = slurm.sbatch("-N1", "--exclusive", f"--comment={hint}", script=script)
            submitted[id_] = time.time()
        for id_ in submitted:
            ended = slurm.wait(id_, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", seconds=600)
            if ended["JobState"] != "COMPLETED":
                raise RuntimeError(f"job {id_}: {ended} {slurm.output(id_)}")
        jobs = slurm.jobs()
        told = {id_: decode((out / f"{id_}.json").read_bytes(), type=Told) for id_ in submitted}
        waits = [each.began - submitted[id_] for id_, each in told.items()]
        tiers: dict[str, int] = {}
        for each in told.values():
            for tier, size in each.tiers.items():
                tiers[tier] = tiers.get(tier, 0) + size
        after = racks.entered_bytes
        return Found(
            way=way,
            jobs=len(told),
            tiers=tiers,
            crossed_bytes=self._crossed(gateways) - crossed,
            entered_bytes=None if after is None or entered is None else after - entered,
            origin_bytes=origin.sent_bytes() - sent,
            makespan_seconds=max(each.ended for each in told.values()) - began,
            wait_mean_seconds=sum(waits) / len(waits),
            wait_longest_seconds=max(waits),
            reading_mean_seconds=sum(each.reading_seconds for each in told.values()) / len(told),
            run_mean_seconds=sum(each.ended - each.began for each in told.values()) / len(told),
            preferred=sum("did=preferred" in each.get("AdminComment", "") for each in jobs),
        )

    def _script(self, racks: Racks, urls: Path, out: Path, dataset: str) -> str:
        """Runs the reader where its node's gateway is."""
        plan = self._plan
        words = shlex.join(
            [
                *(sys.executable, str(_READER), str(urls), str(out), dataset),
                *(str(plan.passes), str(plan.compute_seconds)),
            ]
        )
        cases = "\n".join(
            f"n{number + 1}) exec {shlex.join([*racks.node(number).prefix])} {words} ;;"
            for number in range(len(_RACKS))
        )
        return f'case "$SLURMD_NODENAME" in\n{cases}\nesac'

    def _crossed(self, gateways: Sequence[Node]) -> float:
        return sum(each.metric("feedrack_cross_rack_bytes_total") for each in gateways)


def _lab_nodes() -> list[LabNode]:
    return [
        LabNode(f"n{number + 1}", rack, features=("feedrack",))
        for number, rack in enumerate(_RACKS)
    ]


def _client(url: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )


def table(found: Sequence[Found], plan: Plan) -> list[str]:
    """The ways beside each other; bytes in datasets' sizes too."""
    lines = [
        "| | own node | rack | other rack | origin | MiB from other racks | MiB over the uplinks "
        "| MiB from the origin | makespan s | wait mean s | longest | run mean s | of it reading "
        "| told where to go |",
        f"| --- |{' ---: |' * 13}",
    ]
    for each in found:
        entered = "" if each.entered_bytes is None else f"{each.entered_bytes / 1024**2:,.0f}"
        tiers = " | ".join(
            f"{each.part(tier):.0%}" for tier in ("disk", "rack", "remote", "origin")
        )
        lines.append(
            f"| {each.way} | {tiers} | {each.crossed_bytes / 1024**2:,.0f} | {entered} "
            f"| {each.origin_bytes / 1024**2:,.0f} | {each.makespan_seconds:.1f} "
            f"| {each.wait_mean_seconds:.1f} | {each.wait_longest_seconds:.1f} "
            f"| {each.run_mean_seconds:.1f} | {each.reading_mean_seconds:.1f} "
            f"| {each.preferred} of {plan.jobs} |"
        )
    return [*lines, ""]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Fewer jobs; results beside the full ones.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, folder: Path | None) -> None:
    """Run jobs on a real Slurm over real gateways, with the plugin and without."""
    where = report.machine()
    console = Console(stderr=True)
    command = shlex.join(["python", "-m", "benchmarks.placed", *sys.argv[1:]])
    plan = QUICK if quick else FULL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    missing = obstacle() or (None if shutil.which("redis-server") else "no redis-server")
    if missing:
        print(f"Placing is not measured: {missing}")
        return
    with work_folder(folder) as work, Racks(_RACKS, rate_mbit=plan.rate_mbit) as racks:
        try:
            versions, found = Bench(plan, Path(work), console).run(racks)
        except PeerMissingError as error:
            print(f"Placing is not measured: {error}")
            return
        note = racks.note
    notes = (
        f"{plan.jobs} jobs over {plan.datasets} datasets of {plan.dataset_bytes / 1024**2:.0f} MiB "
        f"(Zipf {plan.skew:g}), one every {plan.gap_seconds:g} s in the mean; each takes a node, "
        f"reads {plan.passes} times over and computes {plan.compute_seconds:g} s an object; "
        f"caches of {plan.capacity} a node",
        note,
        "own node, rack, other rack, origin: where the bytes of first passes came from",
        "*without*: no plugin; *with*: the plugin and its daemon; *wait*: and each job asks to "
        "wait a minute for its data at most",
    )
    lines = report.preamble("Jobs on a real Slurm", where, versions, notes, command)
    lines += table(found, plan)
    print("\n".join(lines))
    report.write(
        "placed-quick" if quick else "placed",
        lines,
        {"command": command, "machine": where, "plan": plan, "found": found},
    )


if __name__ == "__main__":
    main()
