"""What a node that leaves hands over, and to whom. Pure.

Two passes. In the first goes what no other member of the cluster is known to hold: without it, the
origin would be asked again. In the second goes what another rack holds, but no other node of this
one. Small objects are not listed anywhere: they go in the first pass, and whoever holds them
already says so.
"""

from collections.abc import Collection, Sequence
from typing import Literal

from msgspec import Struct

from gateway.cluster.members import Member
from gateway.cluster.placement import homes
from gateway.model.objects import Span

Pass = Literal["cluster", "rack"]
PASSES: tuple[Pass, ...] = ("cluster", "rack")

# What one request asks to take, at most.
BATCH_BYTES = 64 * 1024**2
BATCH_SPANS = 256


class Batch(Struct, frozen=True):
    """What one node is asked to take at once."""

    member: Member
    spans: tuple[Span, ...]
    size_bytes: int


def heirs(members: Sequence[Member], me: str, rack: str, *, rack_aware: bool) -> list[Member]:
    """Who may take over: the rest of the rack, or of the cluster where there is none."""
    others = [each for each in members if each.id != me and each.state == "serving"]
    near = [each for each in others if each.rack == rack]
    return near if near and rack_aware else others


def is_due(holders: Collection[Member] | None, rack: str, which: Pass) -> bool:
    """Whether a span goes in this pass. `holders`: the other members that hold it; None: it is
    listed nowhere."""
    if not holders:
        return which == "cluster"
    return which == "rack" and all(each.rack != rack for each in holders)


def batches(spans: Sequence[Span], members: Sequence[Member]) -> list[Batch]:
    """The spans by who is their home among `members`, in portions."""
    found: list[Batch] = []
    open_: dict[str, tuple[Member, list[Span], int]] = {}
    for each in spans:
        best = homes(members, each.version.ref.current, each.number)
        if not best:
            continue
        member, waiting, size_bytes = open_.get(best[0].id, (best[0], [], 0))
        if waiting and (size_bytes + each.size_bytes > BATCH_BYTES or len(waiting) >= BATCH_SPANS):
            found.append(Batch(member, tuple(waiting), size_bytes))
            waiting, size_bytes = [], 0
        waiting.append(each)
        open_[member.id] = (member, waiting, size_bytes + each.size_bytes)
    found += [Batch(member, tuple(some), size) for member, some, size in open_.values()]
    return found
