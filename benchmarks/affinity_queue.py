"""The simulator's scheduler: who waits, and who starts where. Pure.

First come, first served, but whoever cannot start is passed by those behind it that can. So that
large jobs are not passed for ever, one that takes whole nodes and has waited for an hour has nodes
set aside, those that will be free first, of one rack where one has enough: for one job of each size
at a time. On these nobody else starts but jobs that will have ended by then, as in Slurm's
backfill. How long jobs run is known, but not how long they will be kept waiting for data.

A job may be bound to its preferred places until a time. Until then it starts nowhere else, and
holds up nobody.
"""

import heapq

from msgspec import Struct

from benchmarks.affinity_nodes import GPUS, Nodes, bits, first, members
from benchmarks.affinity_policies import Wish
from benchmarks.affinity_workload import Work

PATIENCE_SECONDS = 3600.0


class Ticket(Struct):
    """A job that waits."""

    work: Work
    wish: Wish
    nodes: int = 0

    @property
    def number(self) -> int:
        return self.work.number


class _Aside(Struct):
    """Nodes that are kept for a job, and when they should all be free."""

    number: int
    nodes: int
    ready: float


Start = tuple[Ticket, int]


class Queue:
    """Jobs that wait, over the nodes that they wait for. What starts has its GPUs taken."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._everything = (1 << nodes.count) - 1
        # By GPUs, those who wait for any place, by number.
        self._lines: dict[int, list[tuple[int, Ticket]]] = {}
        self._bound: dict[int, Ticket] = {}
        self._aside: dict[int, _Aside] = {}
        # When the jobs on each node should have ended.
        self._until = [0.0] * nodes.count

    @property
    def waiting(self) -> int:
        """How many do."""
        return len(self._bound) + sum(map(len, self._lines.values()))

    def submit(self, work: Work, wish: Wish, now: float, *, bound: bool) -> list[Start]:
        """A job comes; it, if it starts at once. `bound`: for now to its preferred places alone."""
        ticket = Ticket(work, wish, wish.nodes if bound else 0)
        if bound:
            if self._start(ticket, now):
                return [(ticket, ticket.nodes)]
            self._bound[ticket.number] = ticket
            return []
        line = self._lines.setdefault(work.gpus, [])
        if not line and self._start(ticket, now):
            return [(ticket, ticket.nodes)]
        heapq.heappush(line, (ticket.number, ticket))
        return []

    def unbind(self, number: int, now: float) -> list[Start]:
        """A job may start anywhere from now on; it, if it does at once."""
        ticket = self._bound.pop(number, None)
        if ticket is None:
            return []
        ticket.nodes = 0
        line = self._lines.setdefault(ticket.work.gpus, [])
        heapq.heappush(line, (ticket.number, ticket))
        if line[0][0] != number or not self._start(ticket, now):
            return []
        heapq.heappop(line)
        return [(ticket, ticket.nodes)]

    def free(self, nodes: int, gpus: int, now: float) -> list[Start]:
        """A job has ended; those who start now."""
        self._nodes.give(nodes, gpus)
        started: list[Start] = []
        heads = [(line[0][0], size) for size, line in self._lines.items() if line]
        bound = [(number, 0) for number, each in self._bound.items() if each.nodes & nodes]
        candidates = [*heads, *bound]
        heapq.heapify(candidates)
        while candidates:
            number, size = heapq.heappop(candidates)
            line = self._lines[size] if size else []
            ticket = line[0][1] if size else self._bound[number]
            if not self._start(ticket, now):
                continue
            started.append((ticket, ticket.nodes))
            if size:
                heapq.heappop(line)
                if line:
                    heapq.heappush(candidates, (line[0][0], size))
            else:
                del self._bound[number]
        for size, line in self._lines.items():
            if line and size >= GPUS and size not in self._aside:
                work = line[0][1].work
                if now - work.submitted >= PATIENCE_SECONDS:
                    self._set_aside(work)
        return started

    def _start(self, ticket: Ticket, now: float) -> bool:
        """Tries to; then the ticket has its nodes."""
        work, wish = ticket.work, ticket.wish
        among = self._open_to(work, now)
        if ticket.nodes:
            found = self._nodes.find_within(work.gpus, among, wish.places)
        else:
            found = self._nodes.find(work.gpus, among, wish.places)
        if not found:
            return False
        self._nodes.take(found, min(GPUS, work.gpus))
        for node in members(found):
            self._until[node] = max(self._until[node], now + work.seconds)
        aside = self._aside.get(work.gpus)
        if aside is not None and aside.number == work.number:
            del self._aside[work.gpus]
        ticket.nodes = found
        return True

    def _open_to(self, work: Work, now: float) -> int:
        """The nodes that are not kept for somebody else, or not yet needed by whom."""
        found = self._everything
        for each in self._aside.values():
            if each.number != work.number and now + work.seconds > each.ready:
                found &= ~each.nodes
        return found

    def _set_aside(self, work: Work) -> None:
        """Keeps nodes for it, if there are enough that are not kept for others."""
        count = work.gpus // GPUS
        kept = 0
        for each in self._aside.values():
            kept |= each.nodes
        racks = [each & ~kept for each in self._nodes.racks]
        enough = [each for each in racks if each.bit_count() >= count]
        if enough:
            chosen = min((self._soonest(each, count) for each in enough), key=self._ready)
        else:
            everywhere = self._everything & ~kept
            if everywhere.bit_count() < count:
                return
            chosen = self._soonest(everywhere, count)
        self._aside[work.gpus] = _Aside(work.number, chosen, self._ready(chosen))

    def _soonest(self, nodes: int, count: int) -> int:
        return bits(sorted(members(nodes), key=self._until.__getitem__)[:count])

    def _ready(self, nodes: int) -> float:
        return max(self._until[each] for each in members(nodes))


def racks_in(nodes: Nodes, chosen: int) -> list[tuple[int, list[int]]]:
    """The racks of these nodes, each with the places that they have in it."""
    return [
        (rack, _places(nodes.racks[rack], chosen & nodes.racks[rack]))
        for rack in nodes.racks_of(chosen)
    ]


def _places(rack: int, chosen: int) -> list[int]:
    start = first(rack, 1).bit_length() - 1
    return [each - start for each in members(chosen)]
