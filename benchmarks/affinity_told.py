"""What the simulator's runs come to, as Markdown, and where affinity hurts. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from benchmarks.affinity_policies import NONE, Policy
from benchmarks.affinity_simulation import Outcome, Site
from benchmarks.affinity_workload import DAY, HOUR, Demand
from benchmarks.report import number

_PB = 10**15
# What is not worth telling as harm: seconds of waiting, parts of what there is without affinity.
_SLIGHT_SECONDS = 60.0
_SLIGHT = 1.1
# Idle for data: a part of the time of all GPUs that jobs take.
_SLIGHT_IDLE = 0.001


class Scenario(Struct, frozen=True, kw_only=True):
    """Some policies over the same jobs. The jobs of the first `warm_up_seconds` fill nodes and
    caches, and are not counted."""

    title: str
    demand: Demand
    site: Site
    policies: tuple[Policy, ...]
    warm_up_seconds: float = DAY


class Summary(Struct, frozen=True, kw_only=True):
    """What became of the jobs that count. Hits and `origin_share` are parts of the bytes that jobs
    read in their first passes; `into_racks_bytes` is all that crossed into a rack, whatever for,
    and `origin_bytes` what of it came from the origin."""

    scenario: str
    policy: str
    jobs: int
    at_preferred: float
    wanted_bytes: float
    into_racks_bytes: float
    origin_bytes: float
    again_bytes: float
    warmed_bytes: float
    node_hits: float
    rack_hits: float
    wait_mean_seconds: float
    wait_p50_seconds: float
    wait_p95_seconds: float
    wait_p99_seconds: float
    large_wait_mean_seconds: float
    makespan_hours: float
    idle_gpu_hours: float
    busy_gpu_hours: float


def summarise(scenario: Scenario, policy: Policy, outcomes: Sequence[Outcome]) -> Summary:
    """One run. There must be jobs that count."""
    counted = [each for each in outcomes if each.work.submitted >= scenario.warm_up_seconds]
    waits = sorted(each.waited_seconds for each in counted)
    large = [each.waited_seconds for each in counted if each.work.gpus > 8]
    own = sum(each.own_bytes for each in counted)
    rack = sum(each.rack_bytes for each in counted)
    missed = sum(each.remote_bytes + each.origin_bytes for each in counted)
    again = sum(each.again_bytes for each in counted)
    warmed = sum(each.warmed_bytes for each in counted)
    wanted = own + rack + missed
    return Summary(
        scenario=scenario.title,
        policy=policy.name,
        jobs=len(counted),
        at_preferred=sum(each.preferred for each in counted) / len(counted),
        wanted_bytes=wanted,
        into_racks_bytes=missed + again + warmed,
        origin_bytes=sum(
            each.origin_bytes + each.again_from_origin + each.warmed_from_origin for each in counted
        ),
        again_bytes=again,
        warmed_bytes=warmed,
        node_hits=own / wanted,
        rack_hits=rack / wanted,
        wait_mean_seconds=sum(waits) / len(waits),
        wait_p50_seconds=quantile(waits, 0.50),
        wait_p95_seconds=quantile(waits, 0.95),
        wait_p99_seconds=quantile(waits, 0.99),
        large_wait_mean_seconds=sum(large) / max(1, len(large)),
        makespan_hours=max(each.ended for each in outcomes) / HOUR,
        idle_gpu_hours=sum(each.stalled_seconds * each.work.gpus for each in counted) / HOUR,
        busy_gpu_hours=sum(each.work.seconds * each.work.gpus for each in counted) / HOUR,
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The least of these that so large a part of them does not exceed."""
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


def table(found: Sequence[Summary]) -> list[str]:
    """A table for each scenario."""
    lines: list[str] = []
    for title in dict.fromkeys(each.scenario for each in found):
        rows = [each for each in found if each.scenario == title]
        lines += [
            f"## {title}",
            "",
            f"{rows[0].jobs:,} jobs count; without affinity they read "
            f"{rows[0].wanted_bytes / _PB:.1f} PB in their first passes.",
            "",
            "| policy | into racks PB | from the origin PB | node hits | rack hits "
            "| at a preferred place | wait mean s | p50 | p95 | p99 | mean, over 8 GPUs "
            "| makespan h | GPU hours idle for data |",
            f"| --- |{' ---: |' * 12}",
        ]
        lines += [_row(each) for each in rows]
        lines.append("")
    return lines


def _row(each: Summary) -> str:
    preferred = f"{each.at_preferred:.0%}" if each.policy != NONE.name else ""
    return (
        f"| {each.policy} | {each.into_racks_bytes / _PB:.2f} | {each.origin_bytes / _PB:.2f} "
        f"| {each.node_hits:.1%} | {each.rack_hits:.1%} | {preferred} "
        f"| {each.wait_mean_seconds:,.0f} | {each.wait_p50_seconds:,.0f} "
        f"| {each.wait_p95_seconds:,.0f} | {each.wait_p99_seconds:,.0f} "
        f"| {each.large_wait_mean_seconds:,.0f} | {each.makespan_hours:.1f} "
        f"| {number(each.idle_gpu_hours) or '0'} |"
    )


def harm(found: Sequence[Summary]) -> list[str]:
    """Where a policy is worse than none, each a line; and what waiting longer buys nobody."""
    lines = ["## Where affinity hurts", ""]
    plain = {each.scenario: each for each in found if each.policy == NONE.name}
    for each in found:
        beside = plain.get(each.scenario)
        if beside is None or beside is each:
            continue
        said = _harm(each, beside)
        if said:
            lines.append(f"- {each.scenario}, *{each.policy}*: {'; '.join(said)}")
    if len(lines) == 2:
        lines.append("Nowhere in these runs.")
    return [*lines, ""]


def _harm(each: Summary, plain: Summary) -> list[str]:
    said = []
    for name, here, there in (
        ("jobs wait", each.wait_mean_seconds, plain.wait_mean_seconds),
        ("jobs over 8 GPUs wait", each.large_wait_mean_seconds, plain.large_wait_mean_seconds),
        ("of a hundred jobs one waits", each.wait_p99_seconds, plain.wait_p99_seconds),
    ):
        if here > there * _SLIGHT + _SLIGHT_SECONDS:
            said.append(f"{name} {here:,.0f} s, not {there:,.0f}")
    if each.idle_gpu_hours > plain.idle_gpu_hours + _SLIGHT_IDLE * plain.busy_gpu_hours:
        said.append(
            f"GPUs are idle for data {each.idle_gpu_hours:,.0f} hours, "
            f"not {plain.idle_gpu_hours:,.0f}"
        )
    for name, size, other in (
        ("into racks come", each.into_racks_bytes, plain.into_racks_bytes),
        ("from the origin come", each.origin_bytes, plain.origin_bytes),
    ):
        if size > other * _SLIGHT:
            said.append(f"{name} {size / _PB:.2f} PB, not {other / _PB:.2f}")
    if each.makespan_hours > plain.makespan_hours + 1.0:
        said.append(
            f"the last job ends after {each.makespan_hours:.0f} h, not {plain.makespan_hours:.0f}"
        )
    return said
