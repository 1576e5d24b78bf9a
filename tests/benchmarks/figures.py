"""Samples with the figures that a test wants, to be put where measured ones would be."""

from benchmarks.jobs import Latency, Outcome, Part
from benchmarks.measure import Sample


def sample(
    *,
    cpu_us: float = 100.0,
    per_second: float = 1000.0,
    p50_ms: float = 1.0,
    p99_ms: float = 2.0,
    first_byte_ms: float = 0.5,
    body_bytes: int = 4096,
    failures: int = 0,
    tiers: dict[str, int] | None = None,
    client_busy: float = 0.2,
) -> Sample:
    """A thousand requests, `body_bytes` each."""
    requests = 1000
    latency = Latency(p50_ms, p99_ms, p99_ms)
    return Sample(
        outcome=Outcome(
            requests=requests,
            failures=failures,
            first_failure="HTTP/1.1 500" if failures else None,
            body_bytes=requests * body_bytes,
            seconds=requests / per_second,
            latency=latency,
            first_byte=Latency(first_byte_ms, first_byte_ms, first_byte_ms),
            by_method={"GET": Part(requests, latency)},
            hashed=1,
            tiers=tiers or {},
            client_busy=client_busy,
        ),
        cpu_seconds=cpu_us * requests / 1e6,
        peak_resident_bytes=100 * 1024**2,
    )
