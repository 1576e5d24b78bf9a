"""Which jobs are to be bound to their places, and which to be let go. Pure.

A job that waits for its data is submitted so that Slurm itself starts it at the bound, wherever
there is room: whatever becomes of us, that happens. From then on there are three states, all of
them Slurm's own, so that nothing has to be remembered here:

    submitted   not eligible before the bound, its own constraint      → bind, if there is time left
    bound       eligible, the places as its constraint                 → relax at the bound
    relaxed     eligible, its own constraint                           → nothing

A job whose constraint is neither was changed by somebody, whose word counts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from scheduler_plugin.hints import Hint, hint_of
from scheduler_plugin.slurm.model import Host, Job

# A wait that is as good as over is left to Slurm.
_TOO_SHORT_SECONDS = 3.0
_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


class Bind(Struct, frozen=True):
    """Give the job its places as its constraint; it may start from `start` on."""

    job_id: int
    features: str
    start: float


class Relax(Struct, frozen=True):
    """Give it back what it came with."""

    job_id: int
    features: str


def decide(
    jobs: Iterable[Job], now: float, *, hosts: Sequence[Host] | None = None
) -> Iterator[Bind | Relax]:
    """What is to be done at `now`, seconds since 1970. `hosts`: where they are known, a job none of
    whose places can be had is not kept waiting."""
    features = None
    if hosts is not None:
        features = frozenset(name for each in hosts if each.usable for name in each.features)
    for job in jobs:
        hint = hint_of(job) if job.state == "pending" else None
        if hint is None or hint.wait is None or not hint.prefer:
            continue
        hopeless = features is not None and features.isdisjoint(_places(hint))
        if is_bound(job, hint):
            if now >= hint.wait.bound or hopeless:
                yield Relax(job.id, hint.wait.constraint)
        elif _as_submitted(job, hint) and now < hint.wait.bound - _TOO_SHORT_SECONDS:
            if hopeless:
                continue
            yield Bind(job.id, hint.prefer, hint.wait.begin)


def is_bound(job: Job, hint: Hint) -> bool:
    """Whether it waits for its places and for no other."""
    return (
        hint.wait is not None
        and hint.prefer != ""
        and _same(job.features, hint.prefer)
        and not _same(hint.prefer, hint.wait.constraint)
    )


def _as_submitted(job: Job, hint: Hint) -> bool:
    wait = hint.wait
    return (
        wait is not None
        and _same(job.features, wait.constraint)
        and job.eligible >= wait.bound - 1.0
        and wait.begin < wait.bound
    )


def _places(hint: Hint) -> frozenset[str]:
    """The features that make up the preference, without the user's own in front."""
    _, bracket, inside = hint.prefer.rpartition("[")
    if not bracket:
        inside = hint.prefer.rpartition("&")[2]
    return frozenset(_NAMES.findall(re.sub(r"\*\d+", "", inside)))


def _same(left: str, right: str) -> bool:
    """As Slurm writes it: where nothing is asked for it may say so in words."""
    return _plain(left) == _plain(right)


def _plain(features: str) -> str:
    return "" if features == "(null)" else features
