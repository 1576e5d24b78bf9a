"""`feedrack-affinity run`: four loops that share little, so that none waits for another's trouble.

* rankings: gateways and Slurm in, files out, every `ranking.refresh_seconds`;
* the queue: what jobs there are, and which of them are to be bound or let go, every
  `slurm.poll_seconds`, or less often where Slurm takes long to say;
* warming: after each look at the queue, what is to be brought in;
* requests: jobs that have just been given their nodes, from the controller's prolog.

Whatever fails is tried again at its next turn, and said once for each reason.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from scheduler_plugin.config import Config, read_token
from scheduler_plugin.folders import FolderUnsafe, prepare, take_requests
from scheduler_plugin.gateways import Gateways, GatewaysUnavailable
from scheduler_plugin.guard import STALE_SECONDS, Guard, GuardMissing
from scheduler_plugin.hints import Hint, hint_of
from scheduler_plugin.holding import Bind, Bounds, Relax, Step, Unprefer, decide, may_be_bound
from scheduler_plugin.ranker import Ranker
from scheduler_plugin.remembered import Remembered
from scheduler_plugin.slurm.choice import open_slurm
from scheduler_plugin.slurm.model import STRICT_FROM, Host, Job, Slurm, SlurmUnavailable
from scheduler_plugin.stager import Stager
from scheduler_plugin.warmer import Warmer

# To ask for the queue may take this part of the time, though no look is put off for longer.
_BUSY_RATIO = 10
_LONGEST_PAUSE_SECONDS = 60.0
# A request is seen this soon. A job takes longer to come to its first read.
_REQUESTS_SECONDS = 0.05

_TROUBLE = (GatewaysUnavailable, SlurmUnavailable, FolderUnsafe, GuardMissing, OSError)

log = structlog.get_logger()


async def run(config: Config) -> None:
    """Runs until it is cancelled. ConfigError, FolderUnsafe, OSError or, if pyslurm is to be used,
    SlurmUnavailable where it cannot begin."""
    token = read_token(config.gateways)
    folders = config.folders
    for folder in (folders.rankings, folders.requests, folders.staged, folders.state):
        prepare(folder)
    gateways = Gateways(
        config.gateways.admin_urls, token, timeout_seconds=config.gateways.timeout_seconds
    )
    async with open_slurm(config.slurm) as slurm, gateways:
        await Daemon(config, slurm, gateways).run()


class Daemon:
    """The loops, over Slurm and the gateways."""

    def __init__(self, config: Config, slurm: Slurm, gateways: Gateways) -> None:
        self._config = config
        self._slurm = slurm
        self._remembered = Remembered(
            config.folders.state / "seen.json", seconds=86_400 * config.ranking.remember_days
        )
        self._ranker = Ranker(config, slurm, gateways, self._remembered)
        self._warmer = Warmer(
            config.warming,
            gateways,
            rack_of=self._ranker.rack_of,
            readers=self._ranker.readers,
        )
        self._stager = Stager(
            config.folders.staged,
            gateways,
            self._warmer,
            rack_of=self._ranker.rack_of,
            racks=self._ranker.racks,
        )
        self._guard = Guard(
            config.folders.state / "guard.lock",
            config.slurm.commands_folder,
            timeout_seconds=config.slurm.timeout_seconds,
        )
        self._bounds = Bounds()
        self._jobs: Sequence[Job] = ()
        self._news = asyncio.Event()
        self._warming = asyncio.Lock()
        self._asking_seconds = 0.0
        self._listening_seconds = 0.0
        # What fails, and why it did when that was last said.
        self._failing: dict[str, str] = {}
        # Said once each, for as long as they are wanted.
        self._refused: set[Step] = set()

    async def run(self) -> None:
        self._remembered.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rank_on())
            tasks.create_task(self._look_on())
            tasks.create_task(self._warm_on())
            tasks.create_task(self._listen_on())

    async def _rank_on(self) -> None:
        while True:
            began = time.monotonic()
            await self._try("ranking", self._ranker.refresh)
            took = time.monotonic() - began
            await asyncio.sleep(max(self._config.ranking.refresh_seconds, took))

    async def _look_on(self) -> None:
        while True:
            await self._try("queue", self._look)
            pause = min(_BUSY_RATIO * self._asking_seconds, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(self._config.slurm.poll_seconds, pause))

    async def _look(self) -> None:
        began = time.monotonic()
        try:
            self._jobs = self._bounds.restore(await self._slurm.jobs())
        finally:
            # What is changed afterwards puts off no look: many jobs that wait are many changes.
            self._asking_seconds = time.monotonic() - began
        hints = self._see(self._jobs)
        self._news.set()
        waits = any(hint.wait for hint in hints)
        hosts = await self._hosts() if waits else None
        steps = list(decide(self._jobs, time.time(), hosts=hosts))
        if await self._slurm.release() < STRICT_FROM:
            # There a preference is never why a job is given up, and is better left as it is.
            steps = [step for step in steps if not isinstance(step, Unprefer)]
        self._refused &= set(steps)
        binds = [step for step in steps if isinstance(step, Bind)]
        # Letting go needs nobody else, so nothing goes before it.
        await self._take_all(step for step in steps if not isinstance(step, Bind))
        if binds or any(map(may_be_bound, self._jobs)):
            await self._guard.ensure()
        await self._take_all(binds)

    async def _hosts(self) -> Sequence[Host] | None:
        """None where they are not told: what is due is let go all the same."""
        try:
            return await self._slurm.hosts()
        except SlurmUnavailable as error:
            log.warning("hosts not told", reason=str(error))
            return None

    async def _take_all(self, steps: Iterable[Step]) -> None:
        """As many as can be taken before what they were decided by is old."""
        began = time.monotonic()
        for step in steps:
            await self._take(step)
            if time.monotonic() - began > STALE_SECONDS:
                return

    def _see(self, jobs: Sequence[Job]) -> list[Hint]:
        """Their hints, which are remembered."""
        hints = [(job.user, hint) for job in jobs if (hint := hint_of(job)) is not None]
        self._remembered.see(((user, hint.datasets) for user, hint in hints), time.time())
        return [hint for _, hint in hints]

    async def _take(self, step: Step) -> None:
        """That one job cannot be changed, since it just starts, is not the others' affair."""
        try:
            match step:
                case Bind():
                    await self._slurm.hold(step.job_id, step.features, start=step.start)
                case Relax():
                    await self._slurm.relax(step.job_id, step.features, release=step.release)
                case Unprefer():
                    await self._slurm.unprefer(step.job_id)
        except SlurmUnavailable as error:
            if step not in self._refused:
                log.warning("job not changed", step=str(step), reason=str(error))
            self._refused.add(step)
            return
        log.info("job changed", step=str(step))

    async def _warm_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._try("warming", self._warm)

    async def _warm(self) -> None:
        async with self._warming:
            await self._warmer.look(self._jobs)
            await self._stager.look(self._jobs)

    async def _listen_on(self) -> None:
        while True:
            self._listening_seconds = 0.0
            await self._try("requests", self._listen)
            pause = min(_BUSY_RATIO * self._listening_seconds, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(_REQUESTS_SECONDS, pause))

    async def _listen(self) -> None:
        ids = list(take_requests(self._config.folders.requests))
        if not ids:
            return
        began = time.monotonic()
        try:
            jobs = await self._slurm.jobs(ids)
        finally:
            # Where jobs start all the time, those of a while are asked for together.
            self._listening_seconds = time.monotonic() - began
        # One that is over before the queue is looked at was here.
        self._see(jobs)
        async with self._warming:
            await self._warmer.look(jobs, whole=False)

    async def _try(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except Exception as error:
            if self._failing.get(what) != str(error):
                # What nobody thought of comes with where it happened. It ends no loop either: some
                # user's job may be the cause, and the others' are not to suffer from it.
                unexpected = not isinstance(error, _TROUBLE)
                log.warning(f"{what} failed", reason=str(error), exc_info=unexpected)
            self._failing[what] = str(error)
            return
        if what in self._failing:
            log.info(f"{what} works again")
            del self._failing[what]
