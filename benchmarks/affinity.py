"""`python -m benchmarks.affinity`: what following the data brings on a thousand nodes, simulated.

A week of jobs in the shape of a public trace (affinity_workload.py) over a cluster that does not
exist: every policy gets the same jobs. The plugin's ranking is its own code; the cluster, its
caches, its network and its scheduler are models, each stated where it is written
(affinity_nodes.py, _caches.py, _links.py, _queue.py, _simulation.py).
"""

import shlex
import sys
import time
from collections.abc import Iterator

import click
from msgspec.structs import replace
from rich.console import Console

from benchmarks import report
from benchmarks.affinity_nodes import GPUS
from benchmarks.affinity_policies import (
    ANY_NODE,
    NODE,
    NODE_WARM,
    NONE,
    RACK,
    REFRESH_SECONDS,
    Policy,
    waiting,
)
from benchmarks.affinity_simulation import Simulation, Site
from benchmarks.affinity_told import Scenario, Summary, harm, summarise, table
from benchmarks.affinity_workload import GB, HOUR, TB, Demand, make_jobs

_SEED = 6
_HOURS = 168.0
_DATASETS = 600
_LOADS = (0.5, 0.8, 0.95)
_SKEW = 1.0
_SKEWS = (0.6, 1.4)


def full(seed: int, hours: float) -> Iterator[Scenario]:
    """All scenarios: the loads with all policies, then one thing after the other made harder."""
    site = Site()
    demand = _demand(site, seed, hours)
    warm_up = min(24.0, hours / 4) * HOUR
    waits = tuple(waiting(minutes) for minutes in (1, 5, 15, 30))
    few = (NONE, RACK, NODE, waiting(15))

    def scenario(
        title: str, of: Demand, at: Site = site, policies: tuple[Policy, ...] = few
    ) -> Scenario:
        return Scenario(title=title, demand=of, site=at, policies=policies, warm_up_seconds=warm_up)

    for load in _LOADS:
        more: tuple[Policy, ...] = (NODE_WARM, waiting(15, warms=True)) if load > 0.5 else ()
        # Slow, and once is enough.
        more += (ANY_NODE,) if load == 0.8 else ()
        yield scenario(
            f"Load {load:.0%}",
            replace(demand, load=load),
            policies=(NONE, RACK, NODE, *waits, *more),
        )
    for skew in _SKEWS:
        yield scenario(f"Load 80%, Zipf {skew:g} instead of {_SKEW:g}", replace(demand, skew=skew))
    narrow = replace(site, uplink=2.5 * GB)
    yield scenario("Load 80%, uplinks of 20 Gb/s instead of 100", demand, narrow)
    small = replace(site, cache_bytes=(1 * TB,))
    yield scenario("Load 80%, caches of 1 TB a node: large datasets exceed a rack", demand, small)


def quick(seed: int, hours: float) -> Iterator[Scenario]:
    """A taste: a quarter of the cluster, one load."""
    site = Site(nodes=250, racks=16)
    yield Scenario(
        title="Load 80%, 250 nodes in 16 racks",
        demand=replace(_demand(site, seed, hours), datasets=_DATASETS // 4),
        site=site,
        policies=(NONE, RACK, NODE, ANY_NODE, waiting(5), waiting(30)),
        warm_up_seconds=min(24.0, hours / 4) * HOUR,
    )


def _demand(site: Site, seed: int, hours: float) -> Demand:
    return Demand(
        gpus=site.nodes * GPUS,
        hours=hours,
        load=0.8,
        skew=_SKEW,
        datasets=_DATASETS,
        seed=seed,
    )


def run(scenario: Scenario, console: Console) -> list[Summary]:
    """Every policy of a scenario over the same jobs."""
    jobs = make_jobs(scenario.demand)
    found = []
    for policy in scenario.policies:
        began = time.process_time()
        outcomes = Simulation(scenario.site, policy, jobs).run()
        found.append(summarise(scenario, policy, outcomes))
        seconds = time.process_time() - began
        console.print(f"{seconds:4.1f} s  {scenario.title}: {policy.name}", style="dim")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", "short", is_flag=True, help="A small cluster; results beside the full.")
@click.option("--seed", default=_SEED, show_default=True, help="Of the jobs and the datasets.")
@click.option("--hours", type=click.FloatRange(1), help="Of submissions. [168; with --quick 72]")
def main(short: bool, seed: int, hours: float | None) -> None:
    """Simulate a week of jobs with and without affinity."""
    where = report.machine()
    console = Console(stderr=True)
    command = shlex.join(["python", "-m", "benchmarks.affinity", *sys.argv[1:]])
    began = time.process_time()
    plan = quick(seed, hours or 72.0) if short else full(seed, hours or _HOURS)
    scenarios = list(plan)
    found = [summary for each in scenarios for summary in run(each, console)]
    site, demand = scenarios[0].site, scenarios[0].demand
    caches = ", ".join(f"{each / TB:g}" for each in site.cache_bytes)
    notes = (
        f"simulated, in {time.process_time() - began:.0f} s of CPU; seed {seed}; "
        f"{demand.hours:g} hours of submissions in the shape of the Helios trace (SenseTime, 2020; "
        "benchmarks/affinity_workload.py says what of it and where from)",
        f"{site.nodes:,} nodes of {GPUS} GPUs in {site.racks} racks, caches of {caches} TB a node "
        f"by rack, uplinks of {8 * site.uplink / GB:g} Gb/s a rack; "
        f"{demand.datasets} datasets of 10 GB to 20 TB, Zipf {demand.skew:g} unless said",
        "a dataset lies on all nodes of a rack that holds it (homes, docs/cluster.md), so node "
        "hits are small whatever is preferred",
        "*racks*: the ranking's racks; *nodes, racks*: the plugin as it is; *any node, racks*: as "
        "if it named nodes that hold little more than others of their rack; *wait*: nowhere else "
        "for so long; *warming*: while a job waits its best rack fetches what it lacks",
        f"rankings are up to {REFRESH_SECONDS / 60:g} minutes old, and fixed when a job comes",
    )
    versions = ("scheduler_plugin.ranking's own code in a modelled cluster",)
    lines = report.preamble("Jobs go where their data is", where, versions, notes, command)
    lines += harm(found)
    lines += table(found)
    print("\n".join(lines))
    report.write(
        "affinity-quick" if short else "affinity",
        lines,
        {
            "command": command,
            "machine": where,
            "scenarios": scenarios,
            "found": found,
        },
    )


if __name__ == "__main__":
    main()
