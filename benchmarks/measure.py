"""One measurement: a job, and what it cost the server that did it."""

from collections.abc import Callable, Sequence
from statistics import median

import msgspec
from msgspec import Struct

from benchmarks.driver import Driver
from benchmarks.jobs import Job, Latency, Outcome
from benchmarks.server import ACCESS_KEY, HOST, READ_BUCKET, SECRET_KEY, Server

_GIB = 1024**3


class Cell(Struct, frozen=True):
    """What was asked of each server: one line of the tables before the servers."""

    operation: str
    size: str
    connections: int


class Sample(Struct, frozen=True, kw_only=True):
    """What one server did in one round."""

    outcome: Outcome
    cpu_seconds: float
    peak_resident_bytes: int

    @property
    def per_second(self) -> float:
        return self.outcome.per_second

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a request."""
        return self.cpu_seconds * 1e6 / max(self.outcome.requests, 1)

    @property
    def cpu_seconds_per_gib(self) -> float:
        return self.cpu_seconds * _GIB / max(self.outcome.body_bytes, 1)

    @property
    def first_byte_ms(self) -> float:
        return self.outcome.first_byte.p50_ms

    @property
    def tail(self) -> float:
        """The 99th percentile of latency over the median."""
        latency = self.outcome.latency
        return latency.p99_ms / latency.p50_ms if latency.p50_ms else 0.0


Rounds = Sequence[Sample]
Samples = dict[Cell, dict[str, list[Sample]]]
Figure = Callable[[Sample], float]


class Summary(Struct, frozen=True, kw_only=True):
    """Medians over the rounds, each figure for itself; the peak of memory is the highest."""

    per_second: float
    bytes_per_second: float
    latency: Latency
    first_byte: Latency
    tail: float
    cpu_us: float
    cpu_us_lowest: float
    cpu_us_highest: float
    cpu_seconds_per_gib: float
    peak_resident_bytes: int
    failures: int
    first_failure: str | None
    tiers: dict[str, int]
    client_busy: float


def job(server: Server, *, prefix: str, count: int, size_bytes: int, connections: int) -> Job:
    """A job for this server: GET each key of its read bucket once."""
    return Job(
        mix={"GET": 1},
        host=HOST,
        port=server.port,
        bucket=READ_BUCKET,
        prefix=prefix,
        count=count,
        size_bytes=size_bytes,
        requests=count,
        connections=connections,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )


def measure(server: Server, driver: Driver, task: Job) -> Sample:
    """Does the job; CPU is counted until the server, at rest now, has come to rest again.

    ServerEndedError where it did not live to that end.
    """
    server.check_alive()
    server.forget_peak()
    before = server.cpu_seconds_now()
    outcome = driver.run(task)
    server.check_alive()
    return Sample(
        outcome=outcome,
        cpu_seconds=server.cpu_seconds() - before,
        peak_resident_bytes=server.memory().peak_resident_bytes,
    )


def summarise(rounds: Rounds) -> Summary:
    """The rounds of one server at one task, as one row."""

    def middle(figure: Figure) -> float:
        return median(figure(sample) for sample in rounds)

    def latency(which: Callable[[Outcome], Latency]) -> Latency:
        fields = Latency.__struct_fields__
        return Latency(
            *[median(getattr(which(sample.outcome), name) for sample in rounds) for name in fields]
        )

    tiers: dict[str, int] = {}
    for sample in rounds:
        for tier, count in sample.outcome.tiers.items():
            tiers[tier] = tiers.get(tier, 0) + count
    failures = (sample.outcome.first_failure for sample in rounds)
    return Summary(
        per_second=middle(lambda sample: sample.per_second),
        bytes_per_second=middle(lambda sample: sample.outcome.bytes_per_second),
        latency=latency(lambda outcome: outcome.latency),
        first_byte=latency(lambda outcome: outcome.first_byte),
        tail=middle(lambda sample: sample.tail),
        cpu_us=middle(lambda sample: sample.cpu_us),
        cpu_us_lowest=min(sample.cpu_us for sample in rounds),
        cpu_us_highest=max(sample.cpu_us for sample in rounds),
        cpu_seconds_per_gib=middle(lambda sample: sample.cpu_seconds_per_gib),
        peak_resident_bytes=max(sample.peak_resident_bytes for sample in rounds),
        failures=sum(sample.outcome.failures for sample in rounds),
        first_failure=next((failure for failure in failures if failure), None),
        tiers=tiers,
        client_busy=middle(lambda sample: sample.outcome.client_busy),
    )


def ratio(ours: Rounds, theirs: Rounds, figure: Figure) -> float | None:
    """The median over the rounds of our figure over theirs in the same round.

    Two servers of one round met the same machine; those of different rounds may not have. None
    where a round has nothing to divide by.
    """
    pairs = [(figure(our), figure(their)) for our, their in zip(ours, theirs, strict=False)]
    if not pairs or not all(their for _, their in pairs):
        return None
    return median(our / their for our, their in pairs)


def changed(task: Job, **changes: object) -> Job:
    """The job with some of its fields replaced."""
    return msgspec.structs.replace(task, **changes)
