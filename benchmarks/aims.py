"""The figures that this release set out to reach, each beside what was measured.

A ratio is the median over the rounds of ours over theirs in the same round. What was not measured
says why, and does not count as reached.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from benchmarks.measure import Figure, Rounds, Samples, ratio, summarise
from benchmarks.plain import WHOLE

_MIB = 1024**2
TIMES = "\N{MULTIPLICATION SIGN}"


class Aim(Struct, frozen=True, kw_only=True):
    """One figure: what was wanted of it and what came. `ratio` None: not measured."""

    figure: str
    wanted: str
    reached: str
    ratio: float | None
    met: bool


class _Measure(Struct, frozen=True):
    """Something that is measured, how it is said, and whether more of it is better."""

    name: str
    of: Figure
    unit: str
    more_is_better: bool = False


class _Where(Struct, frozen=True):
    """A cell of the tables and a server in it; None: whatever size or connections it has."""

    server: str
    operation: str
    size: str | None = None
    connections: int | None = None


_CPU = _Measure("CPU a request", lambda sample: sample.cpu_us, "µs")
_RATE = _Measure("rate", lambda sample: sample.per_second, "/s", True)
_BYTES = _Measure(
    "throughput", lambda sample: sample.outcome.bytes_per_second / _MIB, "MiB/s", True
)
_FIRST = _Measure("first byte", lambda sample: sample.first_byte_ms, "ms")
_PER_GIB = _Measure("CPU", lambda sample: sample.cpu_seconds_per_gib, "s/GiB")


def aims(samples: Samples, missing: Mapping[str, str]) -> list[Aim]:
    """Every figure, in the issue's order. `missing`: why a server was left out."""
    found = _Found(samples, missing)
    small = _Where("feedrack", "warm GET", "4 KiB", 32)
    cold = _Where("feedrack over S3", "cold GET from S3", "64 MiB")
    return [
        *[
            found.beside("warm GET 4 KiB", _CPU, small, peer, times)
            for peer, times in (("nginx", 2.5), ("seaweedfs", 1 / 10), ("juicefs", 1 / 15))
        ],
        *[
            found.beside(
                f"warm GET {size}", _CPU, _Where("feedrack", "warm GET", size, 32), "nginx", 1.5
            )
            for size in ("64 KiB", "1 MiB")
        ],
        *[
            found.beside(
                f"warm GET 256 MiB, {count} at a time",
                _BYTES,
                _Where("feedrack", "warm GET", "256 MiB", count),
                "nginx",
                0.95,
            )
            for count in (1, 4)
        ],
        *[found.tail(size) for size in ("4 KiB", "1 MiB")],
        found.workers(),
        found.against(
            "4 KiB range of a large object",
            _CPU,
            _Where("feedrack", "range GET"),
            small,
            "the 4 KiB object",
            1.3,
        ),
        *[
            found.beside(f"PUT {size}", _RATE, _Where("feedrack", "PUT", size), peer, 1.0)
            for size in ("4 KiB", "64 MiB")
            for peer in ("seaweedfs", "juicefs")
        ],
        found.beside("cold GET 64 MiB", _FIRST, cold, "seaweedfs", 1.2, "its origin"),
        found.beside("cold GET 64 MiB", _PER_GIB, cold, WHOLE, 0.5, "aiobotocore's read()"),
    ]


class _Found:
    """What was measured, and the figures that come of it."""

    def __init__(self, samples: Samples, missing: Mapping[str, str]) -> None:
        self._samples = samples
        self._missing = missing

    def beside(
        self,
        figure: str,
        measure: _Measure,
        ours: _Where,
        peer: str,
        times: float,
        called: str | None = None,
    ) -> Aim:
        """Ours over a peer's at the same task."""
        theirs = _Where(peer, ours.operation, ours.size, ours.connections)
        return self.against(figure, measure, ours, theirs, called or peer, times)

    def against(
        self,
        figure: str,
        measure: _Measure,
        ours: _Where,
        theirs: _Where,
        called: str,
        times: float,
    ) -> Aim:
        """Ours over theirs; `called`: what the table names theirs."""
        better = measure.more_is_better
        figure = f"{figure}, {measure.name}"
        wanted = f"{'≥' if better else '≤'} {_number(times)} {TIMES} {called}"
        our_rounds, their_rounds = self._rounds(ours), self._rounds(theirs)
        reached = ratio(our_rounds, their_rounds, measure.of)
        if reached is None:
            return self._not_measured(figure, wanted, (ours.server, theirs.server))
        return Aim(
            figure=figure,
            wanted=wanted,
            reached=f"{_said(our_rounds, measure)} to {_said(their_rounds, measure)}",
            ratio=reached,
            met=reached >= times if better else reached <= times,
        )

    def tail(self, size: str) -> Aim:
        """Latency's tail at half of peak; nginx's own beside it tells what the machine adds."""
        ours = self._rounds(_Where("feedrack", "warm GET, half rate", size))
        nginx = self._rounds(_Where("nginx", "warm GET, half rate", size))
        figure, wanted = f"warm GET {size} at half of peak load, p99", f"≤ 3 {TIMES} p50"
        if not ours:
            return self._not_measured(figure, wanted, ("feedrack",))
        row = summarise(ours)
        beside = f" (nginx {summarise(nginx).tail:.1f} {TIMES})" if nginx else ""
        return Aim(
            figure=figure,
            wanted=wanted,
            reached=f"{_number(row.latency.p99_ms)} to {_number(row.latency.p50_ms)} ms{beside}",
            ratio=row.tail,
            met=row.tail <= 3,
        )

    def workers(self) -> Aim:
        """Two workers over one, by CPU a request: what two cores could do that do nothing else."""
        figure, wanted = "two workers, by CPU a request", f"≥ 1.8 {TIMES} one"
        names = ("feedrack 1 worker", "feedrack 2 workers")
        one, two = [self._rounds(_Where(name, "warm GET, two cores")) for name in names]
        reached = ratio(one, two, _CPU.of)
        if reached is None:
            return self._not_measured(figure, wanted, names)
        return Aim(
            figure=figure,
            wanted=wanted,
            reached=f"{_said(two, _CPU)} to {_said(one, _CPU)}",
            ratio=2 * reached,
            met=2 * reached >= 1.8,
        )

    def _rounds(self, where: _Where) -> Rounds:
        for cell, by_server in self._samples.items():
            if (
                cell.operation == where.operation
                and where.size in (None, cell.size)
                and where.connections in (None, cell.connections)
                and where.server in by_server
            ):
                return by_server[where.server]
        return []

    def _not_measured(self, figure: str, wanted: str, servers: Sequence[str]) -> Aim:
        reasons = [f"{name}: {self._missing[name]}" for name in servers if name in self._missing]
        said = "; ".join(reasons) or "not part of this run"
        return Aim(figure=figure, wanted=wanted, reached=said, ratio=None, met=False)


def _said(rounds: Rounds, measure: _Measure) -> str:
    return f"{_number(median(measure.of(sample) for sample in rounds))} {measure.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(found: Sequence[Aim]) -> list[str]:
    """The compact table, as the README shows it."""
    lines = ["| figure | aim | measured | ratio | |", "| --- | --- | --- | ---: | --- |"]
    for aim in found:
        times = "" if aim.ratio is None else f"{_number(aim.ratio)} {TIMES}"
        verdict = "not measured" if aim.ratio is None else "reached" if aim.met else "missed"
        lines.append(f"| {aim.figure} | {aim.wanted} | {aim.reached} | {times} | {verdict} |")
    return lines
