"""Keeps the rankings current: asks the gateways who holds what and Slurm what there is, and writes
a file for each live dataset.

Where the gateways or Slurm do not answer nothing is written, and what was written runs out by
itself: jobs are then submitted as if we were not there.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct

from scheduler_plugin.config import Config
from scheduler_plugin.dataset import Dataset, file_name
from scheduler_plugin.folders import RankingFolder
from scheduler_plugin.gateways import Gateways, GatewaysUnavailable, Refused
from scheduler_plugin.knowledge import Holding, Losses, Places, holding_of, live
from scheduler_plugin.ranking import Held, Layout, Ranking, common_feature, rank
from scheduler_plugin.ranking_file import Entry, Readers, Rules, render
from scheduler_plugin.readers import find_group, find_user, readers_of
from scheduler_plugin.remembered import Remembered
from scheduler_plugin.slurm.model import STRICT_FROM, Host, Slurm
from scheduler_plugin.told import Counted, GatewayNode

# Datasets that are asked for by name at one ranking; the others have their turn at the next.
_MOST_ASKED = 200
_AT_ONCE = 8
# After so many rankings made, others have a turn.
_STRIDE = 50
# Combinations that a dataset's file may speak of.
_MOST_TOGETHER = 16
# Before this release arrays with a preference never start.
_ARRAYS_FROM = (22, 5, 9)

log = structlog.get_logger()


class Facts(Struct, frozen=True):
    """All that a ranking is made of."""

    members: Sequence[GatewayNode]
    places: Places
    holdings: Mapping[Dataset, Holding]
    hosts: Sequence[Host]
    layout: Layout
    rules: Rules


class Ranker:
    """`now` is in seconds since 1970, `monotonic` what its name says."""

    def __init__(
        self,
        config: Config,
        slurm: Slurm,
        gateways: Gateways,
        remembered: Remembered,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._slurm = slurm
        self._gateways = gateways
        self._remembered = remembered
        self._now = now
        self._monotonic = monotonic
        self._folder = RankingFolder(config.folders.rankings)
        self._losses = Losses()
        self._asked: dict[Dataset, Holding] = {}
        self._turn = 0
        self._readers: dict[Dataset, Readers] = {}
        self._racks: Mapping[str, str] = {}

    async def readers(self, dataset: Dataset) -> Readers:
        """Who may be told of a dataset, as of the last ranking; of one that was not in it the
        gateways are asked now. GatewaysUnavailable."""
        known = self._readers.get(dataset)
        if known is None:
            counted = await self.ask_for(dataset)
            known = Readers()
            if counted is not None:
                holding = holding_of(counted)
                known = (await asyncio.to_thread(self._find_readers, {dataset: holding}))[dataset]
            self._readers[dataset] = known
        return known

    def rack_of(self, place: str) -> str | None:
        """The rack, as the gateways call it, of one of Slurm's hosts, or that a feature stands
        for; None where they have none there."""
        return self._racks.get(place)

    def racks(self) -> Sequence[str]:
        """The gateways' racks, by name."""
        return sorted(set(self._racks.values()))

    async def refresh(self) -> int:
        """Makes all rankings anew; how many datasets there are. GatewaysUnavailable,
        SlurmUnavailable, OSError, FolderUnsafe."""
        facts = await self.gather()
        self._losses.observe(facts.holdings, self._monotonic())
        who = await asyncio.to_thread(self._find_readers, facts.holdings)
        now = self._now()
        expires = int(now + self._config.ranking.valid_seconds)
        files = await self._files(facts, who, expires)
        self._readers = who
        self._racks = self._racks_of_places(facts)
        await asyncio.to_thread(self._folder.write, files, expires=expires, now=now)
        await asyncio.to_thread(self._remembered.save)
        return len(files)

    async def gather(self) -> Facts:
        """What the gateways and Slurm say now. GatewaysUnavailable, SlurmUnavailable."""
        members = await self._gateways.members()
        holdings = live(await self._gateways.counted())
        await self._ask_for_others(holdings)
        release = await self._slurm.release()
        hosts = await self._slurm.hosts()
        layout = Layout.of(hosts)
        rules = Rules(
            arrays=release >= _ARRAYS_FROM,
            default_partition=await self._slurm.default_partition(),
            common_feature=common_feature(hosts),
            common_needed=release >= STRICT_FROM,
            sizes=layout.sizes,
        )
        places = Places.of(members, nodes=self._config.nodes, racks=self._config.racks)
        return Facts(members, places, holdings, hosts, layout, rules)

    async def ask_for(self, dataset: Dataset) -> Counted | None:
        """What is held of one dataset; None where there is no such bucket."""
        try:
            return await self._gateways.held(dataset)
        except Refused:
            return None

    def rank(self, facts: Facts, dataset: Dataset) -> Ranking:
        """The places for one dataset."""
        return rank(self.held(facts, dataset), facts.layout)

    def held(self, facts: Facts, dataset: Dataset) -> list[Held]:
        """Who holds it, in Slurm's names."""
        holding = facts.holdings.get(dataset)
        if holding is None:
            return []
        return facts.places.held(holding, self._losses.of(dataset))

    async def _ask_for_others(self, holdings: dict[Dataset, Holding]) -> None:
        """Adds what is not counted, but was named: some of them anew each time, the rest as last
        answered."""
        named = dict.fromkeys(self._config.datasets)
        named.update(dict.fromkeys(one for hint in self._remembered.all() for one in hint))
        others = [each for each in named if each not in holdings]
        self._asked = {each: self._asked[each] for each in others if each in self._asked}
        if others:
            start = self._turn % len(others)
            chosen = (others + others)[start : start + min(_MOST_ASKED, len(others))]
            self._turn += len(chosen)
            limit = asyncio.Semaphore(_AT_ONCE)

            async def ask(dataset: Dataset) -> None:
                async with limit:
                    try:
                        counted = await self.ask_for(dataset)
                    except GatewaysUnavailable as error:
                        # They have told of all others: it is this one, that somebody named.
                        log.info("not counted", dataset=dataset.text, reason=str(error))
                        return
                if counted is None:
                    self._asked.pop(dataset, None)
                else:
                    self._asked[dataset] = holding_of(counted)

            try:
                async with asyncio.timeout(self._config.gateways.timeout_seconds):
                    await asyncio.gather(*map(ask, chosen))
            except TimeoutError:
                # The rankings of all are not to run out for it: the rest stands as it was.
                log.info("not all counted", named=len(chosen))
        holdings.update(self._asked)

    def _find_readers(self, holdings: Mapping[Dataset, Holding]) -> dict[Dataset, Readers]:
        found: dict[frozenset[str], Readers] = {}
        for tenants in {holding.readers for holding in holdings.values()}:
            found[tenants] = readers_of(
                tenants, self._config.readers, find_user=find_user, find_group=find_group
            )
        return {dataset: found[holding.readers] for dataset, holding in holdings.items()}

    async def _files(
        self, facts: Facts, who: Mapping[Dataset, Readers], expires: int
    ) -> dict[str, bytes]:
        together: dict[Dataset, list[tuple[Dataset, ...]]] = {}
        for hint in self._remembered.all():
            if len(hint) > 1 and len(together.setdefault(hint[0], [])) < _MOST_TOGETHER:
                together[hint[0]].append(hint)
        files: dict[str, bytes] = {}
        for number, dataset in enumerate(facts.holdings):
            if number % _STRIDE == 0:
                await asyncio.sleep(0)
            name = file_name(dataset)
            if name is None:
                continue
            entries = [
                Entry(self.rank(facts, dataset), who[dataset]),
                *(self._together(facts, hint, who) for hint in together.get(dataset, ())),
            ]
            if any(not each.ranking.empty for each in entries):
                files[name] = render(
                    dataset,
                    entries,
                    expires=expires,
                    rules=facts.rules,
                )
        return files

    def _together(
        self, facts: Facts, hint: Sequence[Dataset], who: Mapping[Dataset, Readers]
    ) -> Entry:
        held = [one for dataset in hint for one in self.held(facts, dataset)]
        readers = who.get(hint[0], Readers())
        for dataset in hint[1:]:
            readers = readers.both(who.get(dataset, Readers()))
        return Entry(rank(held, facts.layout), readers, tuple(hint[1:]))

    def _racks_of_places(self, facts: Facts) -> dict[str, str]:
        """By host and by feature of a rack, the gateways' name for that rack: of a host, where the
        node of its name is, else the one whose feature it has."""
        names = self._config.racks
        racks = {names.get(each.rack, each.rack): each.rack for each in facts.members}
        places = {
            host.name: racks[feature]
            for host in facts.hosts
            for feature in sorted(host.features)
            if feature in racks
        }
        for each in facts.members:
            places[self._config.nodes.get(each.id, each.id)] = each.rack
        return racks | places
