"""Which jobs are to be bound to their places, and which to be let go. Pure.

A job that waits for its data is submitted so that Slurm itself starts it at the bound, wherever
there is room: whatever becomes of us, that happens. From then on there are three states, all of
them Slurm's own, so that nothing has to be remembered here:

    submitted   not eligible before the bound, its own constraint      → bind, if there is time left
    bound       eligible, the places as its constraint                 → relax at the bound
    relaxed     eligible, its own constraint                           → nothing

A job whose constraint is neither, or that is to start at another time, was changed by somebody,
whose word counts.

And one that Slurm has given up, since it finds that the places preferred for it can never hold it,
loses its preference: whatever a release makes of that, no job is to be worse off for it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from scheduler_plugin.hints import Wait, hint_of
from scheduler_plugin.slurm.model import Host, Job

# A wait that is as good as over is left to Slurm.
_TOO_SHORT_SECONDS = 3.0
# Slurm's reasons for trying a job no more.
_GIVEN_UP = frozenset({"BadConstraints"})
_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


class Bind(Struct, frozen=True):
    """Give the job its places as its constraint; it may start from `start` on."""

    job_id: int
    features: str
    start: float


class Relax(Struct, frozen=True):
    """Give it back what it came with; `release`: and have Slurm try again."""

    job_id: int
    features: str
    release: bool = False


class Unprefer(Struct, frozen=True):
    """Take its preference from it."""

    job_id: int


Step = Bind | Relax | Unprefer


def decide(
    jobs: Iterable[Job], now: float, *, hosts: Sequence[Host] | None = None
) -> Iterator[Step]:
    """What is to be done at `now`, seconds since 1970. `hosts`: where they are known, a job none of
    whose places can be had is not kept waiting."""
    features = None
    if hosts is not None:
        features = frozenset(name for each in hosts if each.usable for name in each.features)
    for job in jobs:
        hint = hint_of(job) if job.state == "pending" else None
        wait = hint.wait if hint is not None else None
        given_up = job.reason in _GIVEN_UP
        if hint is not None and given_up and job.prefer and _same(job.prefer, hint.prefer):
            yield Unprefer(job.id)
        if wait is None:
            continue
        hopeless = features is not None and features.isdisjoint(_places(wait))
        if is_bound(job, wait):
            if now >= wait.bound or hopeless:
                yield Relax(job.id, wait.constraint, release=given_up)
        elif _as_submitted(job, wait) and now < wait.bound - _TOO_SHORT_SECONDS:
            # Without a place to wait for it is let go at once, by the same way.
            yield Bind(job.id, wait.constraint if hopeless else wait.places, wait.begin)


def bound_by(job: Job) -> Wait | None:
    """The wait that a job is bound by now; None where it is not."""
    return _carried(job) if job.state == "pending" else None


def may_be_bound(job: Job) -> bool:
    """Whether it is bound, or would be if it were put back into the queue."""
    return _carried(job) is not None


def _carried(job: Job) -> Wait | None:
    """The wait whose places are its constraint, whatever its state."""
    hint = hint_of(job)
    wait = hint.wait if hint is not None else None
    return wait if wait is not None and is_bound(job, wait) else None


class Bounds:
    """What bound jobs are bound by, for as long as they are there: should somebody write something
    else into AdminComment, they are to be let go all the same."""

    def __init__(self) -> None:
        self._comments: dict[int, str] = {}

    def restore(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """These, which are all there are, with what ours said where it is gone."""
        found = [self._restored(job) for job in jobs]
        self._comments = {job.id: job.admin_comment for job in found if bound_by(job) is not None}
        return found

    def _restored(self, job: Job) -> Job:
        before = self._comments.get(job.id)
        if before is None or before == job.admin_comment:
            return job
        hint = hint_of(replace(job, comment=""))
        return replace(job, admin_comment=before) if hint is None else job


def is_bound(job: Job, wait: Wait) -> bool:
    """Whether it waits for its places and for no other."""
    return _same(job.features, wait.places) and not _same(wait.places, wait.constraint)


def _as_submitted(job: Job, wait: Wait) -> bool:
    return (
        _same(job.features, wait.constraint)
        and abs(job.eligible - wait.bound) <= 1.0
        and wait.begin < wait.bound
    )


def _places(wait: Wait) -> frozenset[str]:
    """The features that it waits for, without the user's own in front."""
    _, bracket, inside = wait.places.rpartition("[")
    return frozenset(_NAMES.findall(inside if bracket else wait.places.rpartition("&")[2]))


def _same(left: str, right: str) -> bool:
    """As Slurm writes it: where nothing is asked for it may say so in words."""
    return _plain(left) == _plain(right)


def _plain(features: str) -> str:
    return "" if features == "(null)" else features
