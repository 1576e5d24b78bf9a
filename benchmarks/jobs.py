"""What the load generator is asked to do, and what it answers; both travel as JSON lines."""

from typing import Literal

from msgspec import Struct, field

Method = Literal["GET", "HEAD", "PUT"]


class Job(Struct, frozen=True, kw_only=True):
    """One run of requests against one server.

    The keys are `prefix`/000000 to `prefix`/(count - 1), in a shuffled order, round and round until
    `requests` are sent or `seconds` are up. No two requests are the same bytes. `mix` says what is
    asked, and in what shares. With `piece_bytes` each GET is of a range of so many bytes at some
    offset. With `rate` (requests per second) requests are sent when they are due and not when an
    answer sets a connection free, and latency counts from when they were due. One body in
    `sample_every` is hashed; 0: none. `together`: each key is asked for so many times in a row,
    by as many connections at one moment. `not_before`: when the clock starts at the earliest, on
    the machine's monotonic clock, so that several generators start as one.
    """

    mix: dict[Method, int]
    host: str
    port: int
    bucket: str
    prefix: str
    count: int
    size_bytes: int
    requests: int
    connections: int
    access_key: str
    secret_key: str
    piece_bytes: int | None = None
    seconds: float | None = None
    rate: float | None = None
    sample_every: int = 64
    timeout_seconds: float = 60.0
    together: int = 1
    not_before: float = 0.0


def answer_bytes(job: Job) -> int:
    """The length of the body that a GET of this job is answered with."""
    return job.size_bytes if job.piece_bytes is None else job.piece_bytes


class Latency(Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class Part(Struct, frozen=True):
    """One method's share of a mix."""

    requests: int
    latency: Latency


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a job. `requests` are those answered rightly; `failures` all others.

    `first_byte` is the time to the first byte of a body, `client_busy` the share of a core that the
    load generator used while the clock ran.
    """

    requests: int
    failures: int
    first_failure: str | None
    body_bytes: int
    seconds: float
    latency: Latency
    first_byte: Latency
    by_method: dict[str, Part]
    hashed: int
    tiers: dict[str, int] = field(default_factory=dict)
    client_busy: float = 0.0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.body_bytes / self.seconds if self.seconds else 0.0


def latency(nanoseconds: list[int]) -> Latency:
    """Percentiles by nearest rank; zeros where nothing was measured."""
    if not nanoseconds:
        return Latency(0.0, 0.0, 0.0)
    ordered = sorted(nanoseconds)

    def rank(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6

    return Latency(rank(0.5), rank(0.99), rank(0.999))
