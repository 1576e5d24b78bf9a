"""`feedrack-affinity rank`: where a dataset's jobs would be sent now, and why."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from scheduler_plugin.config import Config, read_token
from scheduler_plugin.dataset import Dataset, file_name
from scheduler_plugin.gateways import Gateways
from scheduler_plugin.knowledge import Holding, holding_of
from scheduler_plugin.ranker import Facts, Ranker
from scheduler_plugin.ranking import ALL_PARTITIONS, Held, Ranking
from scheduler_plugin.ranking_file import read
from scheduler_plugin.remembered import Remembered
from scheduler_plugin.slurm.choice import open_slurm


class Followed(Struct, frozen=True):
    """The daemon's file, which is what jobs follow while its state is `good`; `seconds` is for how
    long it still is, `places` are those that it names, by partition."""

    path: str
    state: Literal["good", "stale", "missing", "malformed", "unreadable"]
    seconds: int = 0
    places: Mapping[str, Sequence[str]] = {}


class Shown(Struct, frozen=True):
    """The answer, as it is printed and as JSON has it."""

    dataset: str
    held: list[Held]
    places: Mapping[str, list[dict[str, object]]]
    readers: list[str]
    common_feature: str
    file: Followed


async def ask(config: Config, dataset: Dataset) -> Shown:
    """Asks the gateways and Slurm now. ConfigError, GatewaysUnavailable, SlurmUnavailable."""
    token, urls = read_token(config.gateways), config.gateways.admin_urls
    nothing = Remembered(config.folders.state / "seen.json", seconds=0.0)
    gateways = Gateways(urls, token, timeout_seconds=config.gateways.timeout_seconds)
    async with open_slurm(config.slurm) as slurm, gateways:
        ranker = Ranker(config, slurm, gateways, nothing)
        facts = await ranker.gather()
        if dataset not in facts.holdings:
            counted = await ranker.ask_for(dataset)
            if counted is not None:
                facts = _with(facts, dataset, holding_of(counted))
        return _shown(ranker, facts, dataset, followed(config.folders.rankings, dataset))


def followed(folder: Path, dataset: Dataset, *, now: float | None = None) -> Followed:
    """What lies in the folder for a dataset, at `now` in seconds since 1970."""
    name = file_name(dataset)
    path = folder / name if name is not None else folder
    try:
        content = path.read_bytes() if name is not None else None
    except FileNotFoundError:
        content = None
    except OSError:
        return Followed(str(path), "unreadable")
    if content is None:
        return Followed(str(path), "missing")
    written = read(content)
    if written is None:
        return Followed(str(path), "malformed")
    left = int(written.expires - (time.time() if now is None else now))
    return Followed(str(path), "good" if left >= 0 else "stale", left, written.places)


def _with(facts: Facts, dataset: Dataset, holding: Holding) -> Facts:
    holdings = {**facts.holdings, dataset: holding}
    return replace(facts, holdings=holdings)


def _shown(ranker: Ranker, facts: Facts, dataset: Dataset, file: Followed) -> Shown:
    ranking: Ranking = ranker.rank(facts, dataset)
    holding = facts.holdings.get(dataset)
    return Shown(
        dataset.text,
        sorted(ranker.held(facts, dataset), key=lambda each: (-each.size_bytes, each.host)),
        {
            partition: [
                {
                    "feature": each.feature,
                    "kind": "rack" if each.rack is None else "node",
                    "hosts": each.hosts,
                    "load": round(facts.layout.load(partition, each.feature), 3),
                    "saved_bytes": int(each.saved_bytes),
                }
                for each in places
            ]
            for partition, places in ranking.places.items()
        },
        sorted(holding.readers) if holding is not None else [],
        facts.rules.common_feature,
        file,
    )


def render(shown: Shown, console: Console | None = None) -> None:
    """Prints the tables."""
    console = console or Console(file=sys.stdout)
    if not shown.held:
        console.print(f"{shown.dataset}: nobody holds anything of it.", markup=False)
        _tell(console, shown.file)
        return
    held = Table("node", "rack", "holds", title=shown.dataset)
    for each in shown.held:
        held.add_row(each.host, each.rack, decimal(each.size_bytes))
    console.print(held)
    for partition, places in shown.places.items():
        title = "all partitions" if partition == ALL_PARTITIONS else f"partition {partition}"
        table = Table("", "place", "usable nodes", "busy", "saves a job", title=title)
        for number, place in enumerate(places, 1):
            saved, load = place["saved_bytes"], place["load"]
            table.add_row(
                str(number),
                f"{place['kind']} {place['feature']}",
                str(place["hosts"]),
                f"{load:.0%}",
                decimal(saved if isinstance(saved, int) else 0),
            )
        console.print(table)
    console.print(
        "A byte on the job's own node counts whole, one elsewhere in its rack 0.7; what is busy "
        "counts up to a fifth less. What the daemon has seen being evicted is not in these "
        "figures; it is in its file:"
    )
    _tell(console, shown.file)
    if not shown.common_feature:
        console.print("Not all of Slurm's nodes share a feature: jobs of several nodes pass as is.")
    console.print(f"Tenants that may read all of it: {', '.join(shown.readers) or 'none'}")


def _tell(console: Console, file: Followed) -> None:
    """Says what jobs follow."""
    passed = "Jobs are placed as without it"
    lines = {
        "good": f"Jobs follow {file.path}, good for {file.seconds} s more:",
        "stale": f"{passed}: {file.path} has been stale for {-file.seconds} s",
        "missing": f"{passed}: there is no {file.path}",
        "malformed": f"{passed}: {file.path} is no ranking",
        "unreadable": f"{file.path} is not yours to read",
    }
    console.print(lines[file.state], markup=False, soft_wrap=True)
    if file.state == "good":
        for each, places in file.places.items():
            partition = "all partitions" if each == ALL_PARTITIONS else each
            console.print(f"  {partition}: {' '.join(places)}", markup=False, soft_wrap=True)
