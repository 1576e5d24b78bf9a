"""One measurement: a job, and what it cost the server that did it."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from benchmarks.driver import Driver
from benchmarks.jobs import Job, Latency, Outcome
from benchmarks.servers import ACCESS_KEY, HOST, SECRET_KEY, Server

_GIB = 1024**3


class Sample(Struct, frozen=True, kw_only=True):
    """What one server did in one round."""

    outcome: Outcome
    cpu_seconds: float
    peak_resident_bytes: int

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a request."""
        return self.cpu_seconds * 1e6 / max(self.outcome.requests, 1)

    @property
    def cpu_seconds_per_gib(self) -> float:
        return self.cpu_seconds * _GIB / max(self.outcome.body_bytes, 1)


class Summary(Struct, frozen=True, kw_only=True):
    """Medians over the rounds, each figure for itself; the peak of memory is the highest."""

    per_second: float
    latency: Latency
    cpu_us: float
    cpu_us_lowest: float
    cpu_us_highest: float
    cpu_seconds_per_gib: float
    peak_resident_bytes: int
    failures: int
    first_failure: str | None
    tiers: dict[str, int]
    client_busy: float


def job(server: Server, *, bucket: str, prefix: str, count: int, size_bytes: int) -> Job:
    """A job for this server: each key once, over 32 connections, until told otherwise."""
    return Job(
        method="GET",
        host=HOST,
        port=server.port,
        bucket=bucket,
        prefix=prefix,
        count=count,
        size_bytes=size_bytes,
        connections=32,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )


def measure(server: Server, driver: Driver, task: Job) -> Sample:
    """Does the job; CPU is counted until the server has come to rest again."""
    server.forget_peak()
    before = server.cpu_seconds()
    outcome = driver.run(task)
    return Sample(
        outcome=outcome,
        cpu_seconds=server.cpu_seconds() - before,
        peak_resident_bytes=server.memory().peak_resident_bytes,
    )


def summarise(samples: Sequence[Sample]) -> Summary:
    """The rounds of one server at one task, as one row."""

    def middle(figure: Callable[[Sample], float]) -> float:
        return median(figure(sample) for sample in samples)

    tiers: dict[str, int] = {}
    for sample in samples:
        for tier, count in sample.outcome.tiers.items():
            tiers[tier] = tiers.get(tier, 0) + count
    return Summary(
        per_second=middle(lambda sample: sample.outcome.per_second),
        latency=Latency(
            middle(lambda sample: sample.outcome.latency.p50_ms),
            middle(lambda sample: sample.outcome.latency.p99_ms),
            middle(lambda sample: sample.outcome.latency.p999_ms),
        ),
        cpu_us=middle(lambda sample: sample.cpu_us),
        cpu_us_lowest=min(sample.cpu_us for sample in samples),
        cpu_us_highest=max(sample.cpu_us for sample in samples),
        cpu_seconds_per_gib=middle(lambda sample: sample.cpu_seconds_per_gib),
        peak_resident_bytes=max(sample.peak_resident_bytes for sample in samples),
        failures=sum(sample.outcome.failures for sample in samples),
        first_failure=next(
            (s.outcome.first_failure for s in samples if s.outcome.first_failure), None
        ),
        tiers=tiers,
        client_busy=middle(
            lambda sample: sample.outcome.client_cpu_seconds / max(sample.outcome.seconds, 1e-9)
        ),
    )
