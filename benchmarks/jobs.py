"""What the load generator is asked to do, and what it answers; both travel as JSON lines."""

from typing import Literal

from msgspec import Struct, field


class Job(Struct, frozen=True, kw_only=True):
    """One run of requests against one server.

    The keys are `prefix`/000000 to `prefix`/(count - 1). With `seconds` they are asked for round
    and round, in a shuffled order, until the time is up; without, each exactly once. With
    `rate` (requests per second) requests are sent when they are due and not when an answer sets a
    connection free, and latency counts from when they were due. One answer in `sample_every` is
    hashed. `limit`: only the first so many in the shuffled order. `numbered` False: every key holds
    the bytes of object 0, as after a run of PUTs.
    """

    method: Literal["GET", "PUT"]
    host: str
    port: int
    bucket: str
    prefix: str
    count: int
    size_bytes: int
    connections: int
    access_key: str
    secret_key: str
    seconds: float | None = None
    rate: float | None = None
    sample_every: int = 64
    limit: int | None = None
    numbered: bool = True
    timeout_seconds: float = 60.0


class Latency(Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a job. `requests` are those answered rightly; `failures` all others."""

    requests: int
    failures: int
    first_failure: str | None
    body_bytes: int
    seconds: float
    latency: Latency
    hashed: int
    tiers: dict[str, int] = field(default_factory=dict)
    client_cpu_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0


def latency(nanoseconds: list[int]) -> Latency:
    """Percentiles by nearest rank; zeros where nothing was measured."""
    if not nanoseconds:
        return Latency(0.0, 0.0, 0.0)
    ordered = sorted(nanoseconds)

    def rank(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6

    return Latency(rank(0.5), rank(0.99), rank(0.999))
