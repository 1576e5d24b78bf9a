"""Warm reads through a node that holds nothing itself, and what a write waits for the other nodes.

Both on the loopback, over one origin. The node that holds nothing is a neighbour in the rack of one
that has some 250 times its capacity, and so is home to next to nothing.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from benchmarks.coldstart import MIB
from benchmarks.coordinator import Coordinator, Load
from benchmarks.driver import Driver
from benchmarks.jobs import Job, Outcome
from benchmarks.measure import changed, job
from benchmarks.member import Node
from benchmarks.server import READ_BUCKET

_READS_A_KEY = 2
# Eight reads make a replica (docs/cluster.md); one warms, and each round adds `_READS_A_KEY`.
MOST_ROUNDS = 3
# More than make one.
_UNTIL_REPLICAS = 12
SIZES = {"4 KiB": (4096, 1000), "1 MiB": (MIB, 96), "8 MiB": (8 * MIB, 24)}
PUTS = {"4 KiB": (4096, 200), "1 MiB": (MIB, 60)}
_CHANGES = "feedrack_change_seconds"


class Turn(Struct, frozen=True, kw_only=True):
    """One round of one task: what came, and the CPU of all nodes together."""

    outcome: Outcome
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds * 1e6 / max(self.outcome.requests, 1)


class Turns(Struct, frozen=True, kw_only=True):
    """All rounds of one task."""

    size: str
    where: str
    turns: Sequence[Turn]

    @property
    def p50_ms(self) -> float:
        return median(turn.outcome.latency.p50_ms for turn in self.turns)

    @property
    def p99_ms(self) -> float:
        return median(turn.outcome.latency.p99_ms for turn in self.turns)

    @property
    def cpu_us(self) -> float:
        return median(turn.cpu_us for turn in self.turns)

    @property
    def failures(self) -> int:
        return sum(turn.outcome.failures for turn in self.turns)

    def tier_share(self, tier: str) -> float:
        found = [turn.outcome.tiers for turn in self.turns]
        answers = sum(sum(each.values()) for each in found)
        return sum(each.get(tier, 0) for each in found) / max(answers, 1)


class Settling(Struct, frozen=True, kw_only=True):
    """How long writes of a node waited for the others, by the node's own histogram."""

    members: int
    count: int
    mean_ms: float
    buckets: Mapping[float, float]

    def within_ms(self, share: float) -> float:
        """The upper bound of the bucket in which that share of the writes ends."""
        for bound, count in sorted(self.buckets.items()):
            if self.count and count >= share * self.count:
                return bound * 1e3
        return 0.0


def warm_reads(driver: Driver, pair: Sequence[Node], rounds: int) -> list[Turns]:
    """Every size, through the first node, that holds it, and through the other, taking turns."""
    holder, other = pair
    found: list[Turns] = []
    for size, (size_bytes, count) in SIZES.items():
        prefix = f"warm-{size_bytes}"
        once = _job(holder, prefix, count, size_bytes)
        _run(driver, changed(once, mix={"PUT": 1}, connections=4))
        for node in (holder, other):
            _run(driver, _at(once, node))
        turns: dict[str, list[Turn]] = {"holds it": [], "holds nothing": []}
        for number in range(min(rounds, MOST_ROUNDS)):
            order = [("holds it", holder), ("holds nothing", other)]
            for where, node in order if number % 2 else reversed(order):
                task = changed(_at(once, node), requests=count * _READS_A_KEY)
                turns[where].append(_turn(driver, (holder, other), task))
        found += [Turns(size=size, where=where, turns=each) for where, each in turns.items()]
    return found


def puts(
    driver: Driver, fleets: Mapping[str, Sequence[Node]], rounds: int
) -> tuple[list[Turns], list[Settling]]:
    """PUTs one after the other through the first node of each fleet, the fleets taking turns."""
    first = {name: nodes[0] for name, nodes in fleets.items()}
    for node in first.values():
        # Connections, and the origin's room for a new bucket's first objects.
        _run(driver, changed(_job(node, f"first-{node.port}", 16, 4096), mix={"PUT": 1}))
    before = {name: _settling(node, 0) for name, node in first.items()}
    turns: dict[tuple[str, str], list[Turn]] = {}
    for number in range(rounds):
        order = [*first.items()] if number % 2 else [*reversed(first.items())]
        for size, (size_bytes, count) in PUTS.items():
            for name, node in order:
                task = _job(node, f"put-{node.port}-{number}-{size_bytes}", count, size_bytes)
                turn = _turn(driver, fleets[name], changed(task, mix={"PUT": 1}))
                turns.setdefault((size, name), []).append(turn)
    found = [
        Turns(size=size, where=name, turns=turns[size, name]) for size in PUTS for name in first
    ]
    settlings = [
        settling
        for name, node in first.items()
        if (settling := _beyond(_settling(node, len(fleets[name])), before[name])).count
    ]
    return found, settlings


class Asked(Struct, frozen=True, kw_only=True):
    """What some work asks of Redis, beside an idle time as long."""

    what: str
    count: int
    busy: Load
    idle: Load

    @property
    def beyond(self) -> Load:
        return self.busy.beyond(self.idle)


def redis_of_work(
    driver: Driver, nodes: Sequence[Node], coordinator: Coordinator, *, writes: int, reads: int
) -> list[Asked]:
    """What writes and warm reads through one member ask of Redis."""
    node, found = nodes[0], []
    written = _job(node, f"asked-{node.port}", writes, 4096)
    warm = _job(node, f"asked-{node.port}", writes, 4096)
    for what, task in (
        ("a write of 4 KiB", changed(written, mix={"PUT": 1})),
        ("", changed(warm, requests=_UNTIL_REPLICAS * writes)),
        ("1,000 warm reads of 4 KiB", changed(warm, requests=reads)),
    ):
        if not what:
            _run(driver, task)
            # What came in by it (replicas) is told to the directory in a moment.
            time.sleep(2.0)
            continue
        before = coordinator.totals()
        _run(driver, task)
        busy = coordinator.totals().since(before)
        time.sleep(2.0)
        idle = coordinator.idle(max(busy.seconds, 3.0))
        count = task.requests if "write" in what else task.requests // 1000
        found.append(Asked(what=what, count=count, busy=busy, idle=idle))
    return found


def _turn(driver: Driver, nodes: Sequence[Node], task: Job) -> Turn:
    before = sum(node.cpu_seconds_now() for node in nodes)
    outcome = driver.run(task)
    # Let what goes on behind the answers come to rest.
    after = sum(node.cpu_seconds() for node in nodes)
    return Turn(outcome=outcome, cpu_seconds=after - before)


def _run(driver: Driver, task: Job) -> Outcome:
    outcome = driver.run(task)
    if outcome.failures:
        raise RuntimeError(f"{outcome.failures} requests failed: {outcome.first_failure}")
    return outcome


def _job(node: Node, prefix: str, count: int, size_bytes: int) -> Job:
    task = job(node, prefix=prefix, count=count, size_bytes=size_bytes, connections=1)
    return changed(task, host=node.host, bucket=READ_BUCKET)


def _at(task: Job, node: Node) -> Job:
    return changed(task, host=node.host, port=node.port)


def _settling(node: Node, members: int) -> Settling:
    count = node.metric(f"{_CHANGES}_count")
    total = node.metric(f"{_CHANGES}_sum")
    return Settling(
        members=members,
        count=int(count),
        mean_ms=1e3 * total / count if count else 0.0,
        buckets=node.buckets(_CHANGES),
    )


def _beyond(now: Settling, before: Settling) -> Settling:
    count = now.count - before.count
    total_ms = now.mean_ms * now.count - before.mean_ms * before.count
    return Settling(
        members=now.members,
        count=count,
        mean_ms=total_ms / count if count else 0.0,
        buckets={bound: many - before.buckets.get(bound, 0) for bound, many in now.buckets.items()},
    )
