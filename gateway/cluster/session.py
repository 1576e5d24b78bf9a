"""One membership of this node, and what it promises and relies on."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from msgspec import Struct

from gateway.cluster.changes import Begun, Ended, Position, Run
from gateway.errors import CoordinatorUnavailable, FeedrackError
from gateway.index.cluster import Link
from gateway.model.objects import ObjectRef

# Of a lease: by as much another clock may run faster than ours.
MARGIN = 0.05
# For so long an origin may take to do what it was asked for by somebody who has stopped waiting.
DOUBT_SECONDS = 30


class Expelled(CoordinatorUnavailable):
    """This membership has been ended: by others, who saw no sign of life, or with Redis's data."""


class Hindered(CoordinatorUnavailable):
    """This node cannot take note of what others change, so nobody may wait until it has."""


class Claimed(FeedrackError):  # noqa: N818 - named as the other internal errors are
    """Another node that is alive has this one's id, or others cut objects otherwise: this one
    cannot be a member."""


class Mark(Struct, frozen=True):
    """How far a node has followed which stream: one of a token of Redis's data and a process."""

    token: str
    process: str
    position: Position


class Memory(Protocol):
    """What this node remembers of objects. Awaited before anybody is told that it has heard."""

    def begun(self, begun: Begun) -> Awaitable[None]:
        """Nothing of these keys is trusted from the call on; what must reach the disk has once
        what it returns is done."""
        ...

    def ended(self, ended: Ended) -> None:
        """They may be trusted again, as far as asked from now on."""
        ...

    async def missed(self, refs: Sequence[ObjectRef] | None) -> None:
        """This node was away: those keys were changed meanwhile; None: any may have been. What was
        held for changes of others is over, and answers to questions put until now teach nothing."""
        ...


class Session(Struct, eq=False):
    """One membership. `until`: the lease, monotonic."""

    run: Run
    token: str
    process: str
    until: float
    quiet_until: float
    established: bool
    ready: bool = False
    lost: bool = False


def keys(link: Link, run: Run) -> list[str]:
    """As the scripts take them (`scripts.py`)."""
    names = ("meta", "members", "runs", "renewals", "told", "changes")
    return [*(link.key(name) for name in names), link.key("open", *run)]
