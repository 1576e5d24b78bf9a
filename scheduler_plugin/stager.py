"""Tells `burst_buffer/lua` how much of a job's data is staged, for jobs that wait for that.

    staged/4711     0.53 1796000000      the part, and when that was so, in seconds since 1970

A job is staged into the first rack that its preference names; one without a preference into the
rack of the gateways that comes first for it, so that jobs of one dataset share it. What cannot be
staged is told as staged: nobody waits for what does not come. As long as no rack is known, nothing
is told: the script then waits for as long as it does for a daemon that is away.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler_plugin.dataset import Dataset
from scheduler_plugin.gateways import Gateways, NobodyServes, Refused, TooBusy
from scheduler_plugin.hints import Hint, hint_of
from scheduler_plugin.slurm.model import Job
from scheduler_plugin.warmer import Warmer

_DIRECTIVE = re.compile(r"(?:^|\n)#FEEDRACK\s")
_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


class Stager:
    """`rack_of` gives the gateways' rack of a place that is preferred, `racks` all of them; none
    while they are not known."""

    def __init__(
        self,
        folder: Path,
        gateways: Gateways,
        warmer: Warmer,
        *,
        rack_of: Callable[[str], str | None],
        racks: Callable[[], Sequence[str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._gateways = gateways
        self._warmer = warmer
        self._rack_of = rack_of
        self._racks = racks
        self._now = now
        # Those of an earlier daemon too, to be cleared away.
        self._told = {int(each.name) for each in folder.glob("*") if each.name.isdecimal()}

    async def look(self, jobs: Sequence[Job]) -> None:
        """Stages what these jobs wait for; they are all there are. GatewaysUnavailable, OSError."""
        waiting = {
            job.id: hint
            for job in jobs
            if job.state == "pending"
            and _DIRECTIVE.search(job.burst_buffer)
            and (hint := hint_of(job)) is not None
        }
        racks = self._racks()
        if waiting and not racks:
            # After a start they have not been asked for yet; to be away for long is another matter.
            # What an earlier daemon told is left as it is.
            return
        by_id = {job.id: job for job in jobs}
        for id_, hint in waiting.items():
            part = await self._stage(by_id[id_], hint, racks)
            await asyncio.to_thread(self._tell, id_, part)
        for id_ in self._told - waiting.keys():
            (self._folder / str(id_)).unlink(missing_ok=True)
        self._told = set(waiting)

    async def _stage(self, job: Job, hint: Hint, racks: Sequence[str]) -> float:
        """The part that is there, of the dataset of which the least is."""
        parts = [1.0]
        for dataset in hint.datasets:
            try:
                rack = self._rack_for(dataset, hint, racks)
                id_ = await self._warmer.stage(job, dataset, [rack])
            except (NobodyServes, TooBusy):
                # It has its turn, in the time that the job gives it.
                parts.append(0.0)
                continue
            if id_ is None:
                continue
            try:
                parts.append((await self._gateways.progress(id_)).part)
            except Refused:
                continue
        return min(parts)

    def _rack_for(self, dataset: Dataset, hint: Hint, racks: Sequence[str]) -> str:
        for place in _NAMES.findall(hint.prefer.rpartition("[")[2]):
            rack = self._rack_of(place)
            if rack is not None:
                return rack
        # The same for all jobs of a dataset, another for another.
        return racks[sum(dataset.text.encode("utf-8", "replace")) % len(racks)]

    def _tell(self, job_id: int, part: float) -> None:
        temporary = self._folder / f".new-{secrets.token_hex(8)}"
        try:
            temporary.write_text(f"{part:.4f} {int(self._now())}\n")
            temporary.rename(self._folder / str(job_id))
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
