"""Which racks are to be warmed for which job, and how urgently. Pure.

A job that starts is urgent. One that waits is warmed for once backfill says where and when it will
run: the sooner, the more urgent. Jobs share what they have in common: a dataset that was asked for
in a rack is not asked for there again for a while, whoever names it, though it may become more
urgent. What was asked for jobs that are gone, and for them alone, is called off.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from scheduler_plugin.dataset import Dataset
from scheduler_plugin.hints import hint_of
from scheduler_plugin.slurm.model import Job

STARTED_PRIORITY = 1000
_SOONEST_PRIORITY = 900
# Priorities of jobs that wait grow by the second: less than this is not worth a request.
_PRIORITY_STEP = 60
# Prefetches of one user's at a time for jobs that wait: the gateways have room for 256 of all.
MOST_AHEAD = 32

# The racks, as gateways call them, of some of Slurm's hosts.
RacksOf = Callable[[Iterable[str]], Sequence[str]]
# Whether a job's user may read the dataset.
MayRead = Callable[[Job, Dataset], bool]


class Asked(Struct, frozen=True):
    """A prefetch that was asked for: its id, for whom, when (monotonic), how urgent it is. `over`:
    it has come to its end, and need not be called off."""

    id: str
    jobs: frozenset[int]
    at: float
    priority: int
    over: bool = False


class Ask(Struct, frozen=True):
    """Bring the dataset into these racks, in which it was not asked for of late."""

    dataset: Dataset
    racks: tuple[str, ...]
    job: int
    priority: int


class Hasten(Struct, frozen=True):
    """What was asked for earlier is needed for this job too, and as soon as this."""

    id: str
    job: int
    priority: int


class Cancel(Struct, frozen=True):
    """Nobody needs it any more."""

    id: str


Step = Ask | Hasten | Cancel
Key = tuple[Dataset, str]


def plan(
    jobs: Iterable[Job],
    asked: Mapping[Key, Asked],
    *,
    racks_of: RacksOf,
    may_read: MayRead,
    ahead_seconds: float,
    again_seconds: float,
    wall: float,
    now: float,
) -> list[Step]:
    """The steps to be taken now. `asked`: what was asked for, by dataset and rack; `wall` is in
    seconds since 1970, `now` monotonic."""
    jobs = list(jobs)
    ahead = _ahead(jobs, asked, since=now - again_seconds)
    asks: list[Ask] = []
    alive: set[int] = set()
    taken: set[Key] = set()
    hastened: dict[tuple[str, int], int] = {}
    for job in jobs:
        alive.add(job.id)
        priority = _priority(job, wall, ahead_seconds=ahead_seconds, late_seconds=again_seconds)
        if priority is None:
            continue
        racks = racks_of(job.hosts)
        full = priority < STARTED_PRIORITY and ahead[job.user] >= MOST_AHEAD
        for dataset in _datasets(job):
            if not racks or not may_read(job, dataset):
                continue
            missing = []
            for rack in racks:
                known = asked.get((dataset, rack))
                if known is not None and (job.id in known.jobs or now - known.at < again_seconds):
                    if job.id not in known.jobs or _matters(priority, known.priority):
                        hastened[known.id, job.id] = max(priority, known.priority)
                elif not full and (dataset, rack) not in taken:
                    missing.append(rack)
                    taken.add((dataset, rack))
            if missing:
                asks.append(Ask(dataset, tuple(missing), job.id, priority))
                ahead[job.user] += 1
    # The gateways have room for so many.
    asks.sort(key=lambda ask: -ask.priority)
    steps: list[Step] = [*asks]
    steps += [Hasten(id_, job_id, priority) for (id_, job_id), priority in hastened.items()]
    needed = {id_ for id_, _ in hastened}
    gone = {
        each.id
        for each in asked.values()
        if not each.jobs & alive and not (each.over and now - each.at < again_seconds)
    } - needed
    return steps + [Cancel(id_) for id_ in sorted(gone)]


def _ahead(jobs: Iterable[Job], asked: Mapping[Key, Asked], *, since: float) -> Counter[str]:
    """How much was asked for of late, by the users of the jobs it is for."""
    users = {job.id: job.user for job in jobs}
    late = {each.id: each for each in asked.values() if each.at > since}
    counted: Counter[str] = Counter()
    for each in late.values():
        counted.update({users[id_] for id_ in each.jobs if id_ in users})
    return counted


def due(
    jobs: Iterable[Job], *, ahead_seconds: float, again_seconds: float, wall: float
) -> set[Dataset]:
    """The datasets of the jobs that `plan` has something to do for."""
    return {
        dataset
        for job in jobs
        if _priority(job, wall, ahead_seconds=ahead_seconds, late_seconds=again_seconds) is not None
        for dataset in _datasets(job)
    }


def _datasets(job: Job) -> Sequence[Dataset]:
    hint = hint_of(job)
    return hint.datasets if hint is not None else ()


def _matters(priority: int, before: int) -> bool:
    return priority >= before + _PRIORITY_STEP or priority == STARTED_PRIORITY > before


def _priority(job: Job, wall: float, *, ahead_seconds: float, late_seconds: float) -> int | None:
    """None: not yet, or no more, since it has long been reading for itself."""
    if job.state == "running":
        return None if job.start < wall - late_seconds else STARTED_PRIORITY
    if job.state != "pending" or not job.hosts or job.start <= 0:
        return None
    left = job.start - wall
    if left > ahead_seconds:
        return None
    return _SOONEST_PRIORITY - int(min(max(left, 0.0), _SOONEST_PRIORITY - 1))
