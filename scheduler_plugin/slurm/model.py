"""What the daemon needs to know of Slurm, whatever its release and however it was asked."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

# From this release on a job of several nodes can be held for ever by its preference: see
# `places_for` in site/job_submit.lua.
STRICT_FROM = (24, 11, 0)

JobState = Literal["pending", "running", "ended"]


class SlurmUnavailable(Exception):  # noqa: N818 - as the other internal errors
    """Slurm does not answer, or not in a way that can be understood; the message says which."""


class Host(Struct, frozen=True):
    """A node of Slurm's. `usable`: neither down, drained nor reserved for maintenance. `load`: the
    part of its CPUs that is allocated, 0 to 1."""

    name: str
    features: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int = 1
    load: float = 0.0
    usable: bool = True


class Job(Struct, frozen=True, kw_only=True):
    """A job that has not ended. `features` is its constraint as it stands. `start` is when it began
    or is expected to, in seconds since 1970, 0 where nobody knows; `hosts` where, or, of one that
    waits, where backfill would put it now. `eligible`: not before. `burst_buffer`: the lines of its
    script that are meant for such a plugin."""

    id: int
    state: JobState
    user: str
    comment: str = ""
    admin_comment: str = ""
    features: str = ""
    prefer: str = ""
    partition: str = ""
    start: float = 0.0
    eligible: float = 0.0
    hosts: tuple[str, ...] = ()
    reason: str = ""
    burst_buffer: str = ""


class Slurm(Protocol):
    """The seam. Everything may raise SlurmUnavailable."""

    async def release(self) -> tuple[int, int, int]:
        """Such as (24, 11, 5)."""
        ...

    async def hosts(self) -> Sequence[Host]: ...

    async def default_partition(self) -> str:
        """Where jobs go that name none; "" where there is no such partition."""
        ...

    async def jobs(self, ids: Sequence[int] = ()) -> Sequence[Job]:
        """Those that wait or run; with `ids` of these alone."""
        ...

    async def hold(self, job_id: int, features: str, *, start: float) -> None:
        """Binds a job that waits to `features`, and lets it start from `start` on."""
        ...

    async def relax(self, job_id: int, features: str, *, release: bool) -> None:
        """Gives a job that waits the constraint it came with, "" for none; `release`: Slurm has
        given it up, and is to try again."""
        ...

    async def unprefer(self, job_id: int) -> None:
        """Takes its preference from a job that waits."""
        ...
