"""`python -m benchmarks.cluster`: what six nodes ask of their origin, of each other and of Redis.

Cold starts with rack awareness, without it, by nodes that do not know each other, and by JuiceFS's
gateways; warm reads through a node that holds nothing; what a write waits for; what Redis is asked,
by six nodes and by hundreds. Writes `cluster.md` and `.json`; exit status 1 where an answer was
wrong or the origin gave a byte twice.
"""

import logging
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import structlog
from msgspec import Struct
from rich.console import Console

from benchmarks import near, report, told
from benchmarks.coldstart import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    MIB,
    Kind,
    Start,
    await_members,
    cold_start,
    fill_origin,
    running,
)
from benchmarks.coordinator import Coordinator, Load
from benchmarks.counted import CountedOrigin
from benchmarks.crowd import Crowd, Entry, crowd, entries
from benchmarks.driver import Driver
from benchmarks.member import JuiceGateway, Node, Redis
from benchmarks.packed import create_bucket
from benchmarks.racks import RACKS, Place, Racks
from benchmarks.server import HOST, READ_BUCKET, PeerMissingError, work_folder

_JUICE_BUCKET = "juice"
_IDLE_SECONDS = 5.0


class Plan(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    kinds: tuple[Kind, ...]
    warm_rounds: int
    put_rounds: int
    writes: int
    reads: int
    crowds: tuple[int, ...]
    entries: int


def _kinds(large: int, small: int) -> tuple[Kind, ...]:
    return (
        Kind(name="large", count=large, size_bytes=64 * MIB, together=4),
        Kind(name="small", count=small, size_bytes=16 * 1024, together=4),
    )


FULL = Plan(
    kinds=_kinds(4, 2000),
    warm_rounds=near.MOST_ROUNDS,
    put_rounds=5,
    writes=500,
    reads=20_000,
    crowds=(6, 50, 200, 400),
    entries=50_000,
)
QUICK = Plan(
    kinds=_kinds(2, 300),
    warm_rounds=1,
    put_rounds=2,
    writes=200,
    reads=10_000,
    crowds=(6, 50),
    entries=10_000,
)


class Beside(Struct, frozen=True, kw_only=True):
    """What was measured on the loopback."""

    warm: Sequence[near.Turns]
    puts: Sequence[near.Turns]
    settlings: Sequence[near.Settling]
    asked: Sequence[near.Asked]


class Found(Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    note: str
    versions: Sequence[str]
    starts: Sequence[Start]
    missing: Mapping[str, str]
    idle: Load
    keys: Mapping[str, Mapping[str, int]]
    beside: Beside
    crowds: Sequence[Crowd]
    entries: Sequence[Entry]


class Bench:
    """All measurements, in `base`."""

    def __init__(self, plan: Plan, base: Path, console: Console) -> None:
        self._plan = plan
        self._base = base
        self._console = console
        self._started = time.monotonic()
        self._cores = os.sched_getaffinity(0)
        self.versions: list[str] = []
        self.missing: dict[str, str] = {}
        self.idle: Load | None = None
        self.keys: dict[str, dict[str, int]] = {}

    def cold(self, racks: Racks) -> list[Start]:
        """The same cold start in every way there is."""
        origin = self._origin(racks.services)
        found: list[Start] = []
        with origin:
            self._say(f"{', '.join(kind.said for kind in self._plan.kinds)} to the origin")
            fill_origin(origin, READ_BUCKET, self._plan.kinds)
            for way, knows, aware in (
                (told.AWARE, True, True),
                (told.UNAWARE, True, False),
                (told.STRANGERS, False, True),
            ):
                self._say(f"cold start: {way}")
                found += self._feedrack(way, racks, origin, knows=knows, aware=aware)
            try:
                found += self._juicefs(racks, origin)
            except PeerMissingError as error:
                self.missing["juicefs"] = str(error)
        return found

    def _feedrack(
        self, way: str, racks: Racks, origin: CountedOrigin, *, knows: bool, aware: bool
    ) -> list[Start]:
        redis = Redis(self._base / "redis", racks.services, self._cores)
        nodes = [
            Node(
                self._base / f"n{number + 1}",
                racks.node(number),
                origin,
                number=number,
                rack=rack,
                redis=redis.address if knows else None,
                rack_aware=aware,
                cores=self._cores,
            )
            for number, rack in enumerate(racks.racks)
        ]
        self.versions = [nodes[0].version, redis.version, origin.version]
        with redis, running(nodes):
            coordinator = Coordinator(redis)
            try:
                if knows:
                    await_members(nodes)
                if way == told.AWARE:
                    self.idle = coordinator.idle(_IDLE_SECONDS)
                found = cold_start(
                    way,
                    racks,
                    origin,
                    nodes,
                    self._plan.kinds,
                    piece_bytes=CHUNK_BYTES,
                    coordinator=coordinator if knows else None,
                )
                if way == told.AWARE:
                    coordinator.idle(2.0)
                    self.keys = told.by_kind(coordinator.memory_bytes("*"))
                return found
            finally:
                coordinator.close()

    def _juicefs(self, racks: Racks, origin: CountedOrigin) -> list[Start]:
        redis = Redis(self._base / "redis", racks.services, self._cores)
        meta = f"redis://{redis.address}/1"

        def gateway(name: str, place: Place) -> JuiceGateway:
            return JuiceGateway(self._base / name, place, meta, self._cores)

        writer = gateway("writer", racks.services)
        gateways = [gateway(f"j{n + 1}", racks.node(n)) for n in range(len(racks.racks))]
        self.versions.append(writer.version)
        with redis:
            self._say("cold start: JuiceFS, its objects first")
            origin.make_bucket(_JUICE_BUCKET)
            writer.format(origin, _JUICE_BUCKET)
            with running([writer]):
                fill_origin(writer, READ_BUCKET, self._plan.kinds)
                writer.await_written()
            self._say("cold start: JuiceFS")
            with running(gateways):
                return cold_start(
                    told.JUICEFS,
                    racks,
                    origin,
                    gateways,
                    self._plan.kinds,
                    piece_bytes=BLOCK_BYTES,
                )

    def beside(self, driver: Driver) -> Beside:
        """Warm reads, writes, and what both ask of Redis, on the loopback."""
        plan, here = self._plan, Place(HOST)
        origin = self._origin(here)
        with origin:
            create_bucket(origin)
            with Redis(self._base / "redis", here, self._cores) as redis:
                pair = self._fleet(origin, "pair", 2, redis, capacities=("64GiB", "256MiB"))
                with running(pair):
                    await_members(pair)
                    self._say("warm reads beside the node that holds them")
                    warm = near.warm_reads(driver, pair, plan.warm_rounds)
            with (
                Redis(self._base / "redis-2", here, self._cores) as redis_2,
                Redis(self._base / "redis-6", here, self._cores) as redis_6,
            ):
                fleets: dict[str, list[Node]] = {
                    "one node alone": self._fleet(origin, "one", 1, None),
                    "2 members": self._fleet(origin, "two", 2, redis_2),
                    "6 members": self._fleet(origin, "six", 6, redis_6),
                }
                with running([node for nodes in fleets.values() for node in nodes]):
                    for nodes in list(fleets.values())[1:]:
                        await_members(nodes)
                    self._say("writes alone and in clusters")
                    puts, settlings = near.puts(driver, fleets, plan.put_rounds)
                    self._say("what writes and warm reads ask of Redis")
                    coordinator = Coordinator(redis_6)
                    try:
                        asked = near.redis_of_work(
                            driver,
                            fleets["6 members"],
                            coordinator,
                            writes=plan.writes,
                            reads=plan.reads,
                        )
                    finally:
                        coordinator.close()
        return Beside(warm=warm, puts=puts, settlings=settlings, asked=asked)

    def crowds(self) -> tuple[list[Crowd], list[Entry]]:
        """Redis under many members, and what the directory takes in it."""
        with Redis(self._base / "redis", Place(HOST), {min(self._cores)}) as redis:
            coordinator = Coordinator(redis)
            try:
                self._say("what the directory takes")
                found = entries(coordinator, self._plan.entries)
                met = []
                for members in self._plan.crowds:
                    self._say(f"{members} members")
                    met.append(crowd(redis, coordinator, members, writes=20))
                return met, found
            finally:
                coordinator.close()

    def _fleet(
        self,
        origin: CountedOrigin,
        name: str,
        count: int,
        redis: Redis | None,
        capacities: Sequence[str] = (),
    ) -> list[Node]:
        return [
            Node(
                self._base / f"{name}{number + 1}",
                Place(HOST),
                origin,
                number=number,
                rack=RACKS[number],
                redis=None if redis is None else redis.address,
                capacity=capacities[number] if capacities else "16GiB",
                cores=self._cores,
            )
            for number in range(count)
        ]

    def _origin(self, place: Place) -> CountedOrigin:
        origin = CountedOrigin(self._base / "data", self._base / "origin", *place)
        origin.cores = self._cores
        return origin

    def _say(self, what: str) -> None:
        seconds = time.monotonic() - self._started
        self._console.print(f"{seconds:4.0f} s  {what}", style="dim")


def measure(plan: Plan, base: Path, console: Console) -> Found:
    """Everything, one thing after the other. PeerMissingError where there is no origin or Redis."""
    bench = Bench(plan, base, console)
    with Racks() as racks:
        note = racks.note
        starts = bench.cold(racks)
    with Driver() as driver:
        beside = bench.beside(driver)
    crowds, taken = bench.crowds()
    assert bench.idle is not None
    return Found(
        note=note,
        versions=bench.versions,
        starts=starts,
        missing=bench.missing,
        idle=bench.idle,
        keys=bench.keys,
        beside=beside,
        crowds=crowds,
        entries=taken,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Less of everything; results beside the full ones.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def main(quick: bool, folder: Path | None) -> None:
    """Measure a cluster of six nodes in three racks on this machine."""
    where = report.machine()
    console = Console(stderr=True)
    command = shlex.join(["python", "-m", "benchmarks.cluster", *sys.argv[1:]])
    plan = QUICK if quick else FULL
    # Many memberships in one process have much to say.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with work_folder(folder) as work:
        try:
            found = measure(plan, Path(work), console)
        except PeerMissingError as error:
            print(f"The cluster is not measured: {error}")
            return
    notes = (
        "six nodes in three racks, a process each; on few cores compare counts and ratios, and "
        "times only beside each other",
        found.note,
        "CPU is of all nodes of a cluster together",
        *[f"{name} is left out: {why}" for name, why in found.missing.items()],
    )
    beside = found.beside
    lines = report.preamble("Many nodes, one cache", where, found.versions, notes, command)
    lines += told.cold(found.starts)
    lines += told.warm(beside.warm)
    lines += told.puts(beside.puts, beside.settlings)
    lines += told.redis(found.starts, found.idle, beside.asked)
    lines += told.memory(found.keys, found.entries)
    lines += told.crowds(found.crowds)
    wrong = told.wrong(found.starts, [*beside.warm, *beside.puts])
    lines += [f"**{each}**" for each in wrong]
    print("\n".join(lines))
    report.write(
        "cluster-quick" if quick else "cluster",
        lines,
        {"command": command, "machine": where, "plan": plan, "found": found},
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
