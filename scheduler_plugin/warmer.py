"""Carries out what `warming.py` plans: has the gateways bring in what jobs are about to read."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import structlog
from msgspec.structs import replace

from scheduler_plugin.config import WarmingConfig
from scheduler_plugin.dataset import Dataset
from scheduler_plugin.gateways import Gateways, NobodyServes, Refused, TooBusy
from scheduler_plugin.ranking_file import Readers
from scheduler_plugin.readers import find_user_and_group
from scheduler_plugin.slurm.model import Job
from scheduler_plugin.warming import Ask, Asked, Cancel, Hasten, Key, due, plan

log = structlog.get_logger()

# One that is refused is not asked for again before this; nor a rack where nobody serves.
_REFUSED_SECONDS = 300.0
_DESERTED_SECONDS = 15.0
# Of what a job is held for: before what others will want, after what some read already.
STAGED_PRIORITY = 950


class Warmer:
    """`rack_of` gives the gateways' rack of a host; `readers` says who may read a dataset."""

    def __init__(
        self,
        config: WarmingConfig,
        gateways: Gateways,
        *,
        rack_of: Callable[[str], str | None],
        readers: Callable[[Dataset], Awaitable[Readers]],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._gateways = gateways
        self._rack_of = rack_of
        self._readers = readers
        self._now = now
        self._monotonic = monotonic
        self._asked: dict[Key, Asked] = {}
        self._refused: dict[Dataset, float] = {}
        self._deserted: dict[str, float] = {}
        self._users: dict[str, tuple[int, int] | None] = {}
        self._may: dict[Dataset, Readers] = {}

    async def look(self, jobs: Sequence[Job], *, whole: bool = True) -> None:
        """Takes the steps that these jobs ask for. `whole`: they are all there are, and what was
        asked for others is called off. GatewaysUnavailable."""
        if not self._config.enabled:
            return
        await self._find_users(jobs)
        now = self._monotonic()
        self._refused = {each: until for each, until in self._refused.items() if until > now}
        self._deserted = {rack: until for rack, until in self._deserted.items() if until > now}
        ahead, again = self._config.ahead_seconds, self._config.again_seconds
        wall = self._now()
        datasets = due(jobs, ahead_seconds=ahead, again_seconds=again, wall=wall)
        self._may = {each: await self._readers(each) for each in sorted(datasets)}
        steps = plan(
            jobs,
            self._asked,
            racks_of=self._racks_of,
            may_read=self._may_read,
            ahead_seconds=ahead,
            again_seconds=again,
            wall=wall,
            now=self._monotonic(),
        )
        busy = False
        for step in steps:
            match step:
                case Ask() if not busy:
                    busy = not await self._has_room_for(step)
                case Hasten():
                    await self._hasten(step)
                case Cancel() if whole:
                    await self._cancel(step)

    async def stage(self, job: Job, dataset: Dataset, racks: Sequence[str]) -> str | None:
        """Has a dataset brought into these racks for a job that waits for that; the prefetch's id,
        None where it cannot be. TooBusy, NobodyServes, GatewaysUnavailable."""
        key = (dataset, racks[0])
        asked = self._asked.get(key)
        if asked is None or job.id not in asked.jobs:
            if job.user not in self._users:
                self._users[job.user] = await asyncio.to_thread(find_user_and_group, job.user)
            self._may[dataset] = await self._readers(dataset)
            again = self._config.again_seconds
            if not self._may_read(job, dataset):
                return None
            if asked is not None and self._monotonic() - asked.at < again:
                # Asked for by another job, whose prefetch will do for both.
                await self._hasten(Hasten(asked.id, job.id, STAGED_PRIORITY))
            else:
                await self._ask(Ask(dataset, tuple(racks), job.id, STAGED_PRIORITY))
        else:
            # Asked for in good time, where Slurm plans to start it.
            await self._hasten(Hasten(asked.id, job.id, STAGED_PRIORITY))
        asked = self._asked.get(key)
        return asked.id if asked is not None and job.id in asked.jobs else None

    async def _has_room_for(self, step: Ask) -> bool:
        """Asks for it. Where they take no more now, they take nothing less urgent either."""
        try:
            # Its racks may be back at a later look.
            with suppress(NobodyServes):
                await self._ask(step)
        except TooBusy as error:
            log.warning("not warmed yet", job=step.job, reason=str(error))
            return False
        return True

    async def _ask(self, step: Ask) -> None:
        """One prefetch for all the racks; one each where some of them have nobody who serves.
        NobodyServes where none has; TooBusy."""
        now = self._monotonic()
        if self._refused.get(step.dataset, now) > now:
            return
        racks = tuple(rack for rack in step.racks if self._deserted.get(rack, now) <= now)
        if not racks:
            raise NobodyServes(f"nobody of {', '.join(step.racks)} served a moment ago")
        try:
            id_ = await self._gateways.prefetch(
                step.dataset, racks, job=str(step.job), priority=step.priority
            )
        except Refused as error:
            log.info("not warmed", dataset=step.dataset.text, job=step.job, reason=str(error))
            self._refused[step.dataset] = now + _REFUSED_SECONDS
        except NobodyServes as error:
            if len(racks) == 1:
                log.info(
                    "not warmed yet", dataset=step.dataset.text, job=step.job, reason=str(error)
                )
                self._deserted[racks[0]] = now + _DESERTED_SECONDS
                raise
            for rack in racks:
                with suppress(NobodyServes):
                    await self._ask(replace(step, racks=(rack,)))
        else:
            log.info("warming", dataset=step.dataset.text, racks=racks, job=step.job, prefetch=id_)
            asked = Asked(id_, frozenset({step.job}), now, step.priority)
            self._asked |= {(step.dataset, rack): asked for rack in racks}

    async def _hasten(self, step: Hasten) -> None:
        keys = [key for key, each in self._asked.items() if each.id == step.id]
        if any(self._asked[key].priority < step.priority for key in keys):
            await self._gateways.set_priority(step.id, step.priority)
        for key in keys:
            each = self._asked[key]
            self._asked[key] = replace(
                each,
                jobs=each.jobs | {step.job},
                priority=max(each.priority, step.priority),
            )

    async def _cancel(self, step: Cancel) -> None:
        over = any(each.over for each in self._asked.values() if each.id == step.id)
        if over or await self._gateways.cancel(step.id):
            self._asked = {key: each for key, each in self._asked.items() if each.id != step.id}
            return
        # It was done: for a while it need not be asked for again.
        for key, each in self._asked.items():
            if each.id == step.id:
                self._asked[key] = replace(each, over=True)

    def _racks_of(self, hosts: Iterable[str]) -> Sequence[str]:
        racks = dict.fromkeys(map(self._rack_of, hosts))
        return [rack for rack in racks if rack is not None]

    def _may_read(self, job: Job, dataset: Dataset) -> bool:
        who = self._users.get(job.user)
        return who is not None and self._may.get(dataset, Readers()).knows(*who)

    async def _find_users(self, jobs: Iterable[Job]) -> None:
        names = {job.user for job in jobs}
        self._users = {name: who for name, who in self._users.items() if name in names}
        for name in names - self._users.keys():
            self._users[name] = await asyncio.to_thread(find_user_and_group, name)
