"""The simulator: jobs, their nodes and their data, event by event. Pure.

A job reads its dataset pass after pass (epoch after epoch) in random order, so what its rack lacks
is spread evenly over the first pass: that pass takes as long as computing does, or as bringing in
what is missing does, whichever is longer. What could not be kept comes again in every pass, until
there is room for it, which is looked for eight times in the job's life. Bytes of the own node and
of the own rack cost no time: a rack's own network is not modelled. A job in several racks brings
all it reads into each of them, and is kept waiting by the slowest.
"""

import heapq
import math
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from benchmarks.affinity_caches import Caches, Found
from benchmarks.affinity_links import Flow, Uplink
from benchmarks.affinity_nodes import Nodes
from benchmarks.affinity_policies import Policy, Rankings
from benchmarks.affinity_queue import Queue, Start, racks_in
from benchmarks.affinity_workload import GB, TB, Data, Work

# How often a job looks for room for what it could not keep.
_TURNS = 8


class Site(Struct, frozen=True, kw_only=True):
    """The cluster. `cache_bytes`: of a node, by rack, in turn. `uplink`: of a rack; `origin`: what
    a node can have from the origin; `warming`: what one job's warming takes; bytes a second."""

    nodes: int = 1000
    racks: int = 64
    cache_bytes: tuple[float, ...] = (4 * TB, 8 * TB, 16 * TB)
    uplink: float = 12.5 * GB
    origin: float = 2 * GB
    warming: float = 2 * GB


class Outcome(Struct):
    """What became of a job. Bytes: of the first pass, where they were (`own` node, `rack`, another
    rack, origin); what crossed into its racks `again` in later passes; what was `warmed` for it.
    `stalled_seconds`: how much longer it ran than it computed."""

    work: Work
    nodes: int = 0
    started: float = -1.0
    ended: float = -1.0
    stalled_seconds: float = 0.0
    own_bytes: float = 0.0
    rack_bytes: float = 0.0
    remote_bytes: float = 0.0
    origin_bytes: float = 0.0
    again_bytes: float = 0.0
    again_from_origin: float = 0.0
    warmed_bytes: float = 0.0
    warmed_from_origin: float = 0.0
    preferred: bool = False

    @property
    def waited_seconds(self) -> float:
        return self.started - self.work.submitted


class _Event(IntEnum):
    # At the same moment GPUs come free before somebody asks for them.
    FLOW = 0
    END = 1
    UNBIND = 2
    SUBMIT = 3


class _Phase(Struct, frozen=True):
    """So many bytes that a job would take evenly over so many seconds, at that rate at most."""

    size: float
    seconds: float
    fastest: float


_NOTHING = _Phase(0.0, 0.0, 0.0)


class _Part(Struct):
    """A job in one of its racks: what it is bringing in there, and what it cannot keep and so will
    have to bring in again in each of so many turns."""

    number: int
    rack: int
    nodes: int
    phase: _Phase
    passing: int = 0
    turns: int = 0
    began: float = 0.0
    stalled: float = 0.0


class _Warming(Struct):
    """What is brought into a rack for a job that waits."""

    data: Data
    rack: int
    parts: int
    flow: Flow


class Simulation:
    """One run of a policy over some jobs; `outcomes` by the jobs' numbers."""

    def __init__(self, site: Site, policy: Policy, jobs: Sequence[Work]) -> None:
        self.site = site
        self.policy = policy
        self.nodes = Nodes(site.nodes, site.racks)
        sizes = site.cache_bytes
        self.caches = Caches(
            [sizes[rack % len(sizes)] * count for rack, count in enumerate(self.nodes.sizes)],
            self.nodes.sizes,
        )
        self.uplinks = [Uplink(site.uplink) for _ in range(site.racks)]
        self.queue = Queue(self.nodes)
        self.rankings = Rankings(policy, self.nodes, self.caches)
        self.outcomes = [Outcome(each) for each in jobs]
        self.now = 0.0
        self._events: list[tuple[float, int, int, int]] = [
            (each.submitted, _Event.SUBMIT, each.number, 0) for each in jobs
        ]
        heapq.heapify(self._events)
        self._versions = [0] * site.racks
        self._parts: dict[int, list[_Part]] = {}
        self._reading: dict[int, _Part] = {}
        self._warming: dict[int, _Warming] = {}
        self._flows = 0

    def run(self) -> list[Outcome]:
        """Runs until the last job has ended."""
        while self._events:
            self.now, kind, number, version = heapq.heappop(self._events)
            if kind == _Event.FLOW:
                if version == self._versions[number]:
                    self._flow_ends(number)
            elif kind == _Event.END:
                self._end(number)
            elif kind == _Event.UNBIND:
                self._begin(self.queue.unbind(number, self.now))
            else:
                self._submit(self.outcomes[number].work)
        return self.outcomes

    def _submit(self, work: Work) -> None:
        wish = self.rankings.wish(work, self.now)
        bound = bool(wish.places) and self.policy.wait_seconds > 0
        started = self.queue.submit(work, wish, self.now, bound=bound)
        if started:
            self._begin(started)
            return
        if bound:
            until = self.now + self.policy.wait_seconds
            heapq.heappush(self._events, (until, _Event.UNBIND, work.number, 0))
        if self.policy.warms and wish.rack is not None:
            self._warm(work, wish.rack)

    def _begin(self, started: Sequence[Start]) -> None:
        for ticket, nodes in started:
            work, outcome = ticket.work, self.outcomes[ticket.number]
            outcome.started, outcome.nodes = self.now, nodes
            outcome.preferred = bool(nodes & ticket.wish.nodes)
            self._stop_warming(work.number)
            places = racks_in(self.nodes, nodes)
            found = self.caches.read(work.data, work.parts, places, self.now)
            parts = [
                self._part(work, rack, len(own), each)
                for (rack, own), each in zip(places, found, strict=True)
            ]
            self._parts[work.number] = parts
            for each in list(parts):
                self._bring(each)

    def _part(self, work: Work, rack: int, nodes: int, found: Found) -> _Part:
        """What a job has to bring into one of its racks first; counts where it finds its data."""
        outcome = self.outcomes[work.number]
        size = work.data.part_bytes
        remote, origin = found.remote.bit_count() * size, found.origin.bit_count() * size
        outcome.own_bytes += found.own.bit_count() * size
        outcome.rack_bytes += found.rack.bit_count() * size
        outcome.remote_bytes += remote
        outcome.origin_bytes += origin
        later = work.passes - 1.0
        phase = self._phase(remote + origin, origin, _first_seconds(work), nodes)
        turns = min(_TURNS, math.ceil(later)) if later > 0 and found.passing else 0
        return _Part(work.number, rack, nodes, phase, found.passing, turns)

    def _turn(self, part: _Part) -> None:
        """The next of a job's turns of bringing in what it could not keep: again and again, but for
        what there is room for by now."""
        outcome = self.outcomes[part.number]
        work = outcome.work
        later = work.passes - 1.0
        turns = min(_TURNS, math.ceil(later))
        kept = self.caches.put(part.rack, work.data, part.passing, self.now) & part.passing
        part.passing &= ~kept
        part.turns = part.turns - 1 if part.passing else 0
        passes = later / turns
        times = kept.bit_count() * min(1.0, passes) + part.passing.bit_count() * passes
        again = times * work.data.part_bytes
        cold = (part.passing & ~self.caches.anywhere(work.data)).bit_count() * passes
        outcome.again_bytes += again
        outcome.again_from_origin += cold * work.data.part_bytes
        seconds = (work.seconds - _first_seconds(work)) / turns
        part.phase = self._phase(again, cold * work.data.part_bytes, seconds, part.nodes)

    def _phase(self, size: float, origin: float, seconds: float, nodes: int) -> _Phase:
        fastest = size / seconds
        if origin > 0:
            fastest = min(fastest, size / origin * self.site.origin * nodes)
        return _Phase(size, seconds, fastest)

    def _bring(self, part: _Part) -> None:
        """Lets what a job brings into a rack flow; where that is nothing (more), it is through."""
        if part.phase.size > 0:
            part.began = self.now
            self._flows += 1
            self._reading[self._flows] = part
            flow = Flow(self._flows, part.phase.size, part.phase.fastest)
            self.uplinks[part.rack].add(flow, self.now)
            self._watch(part.rack)
            return
        parts = self._parts[part.number]
        parts.remove(part)
        outcome = self.outcomes[part.number]
        outcome.stalled_seconds = max(outcome.stalled_seconds, part.stalled)
        if not parts:
            del self._parts[part.number]
            end = outcome.started + outcome.work.seconds + outcome.stalled_seconds
            heapq.heappush(self._events, (max(self.now, end), _Event.END, part.number, 0))

    def _watch(self, rack: int) -> None:
        """Looks again at an uplink when the first of its flows is at its end."""
        self._versions[rack] += 1
        following = self.uplinks[rack].next_end()
        if following is not None:
            event = (max(self.now, following[0]), _Event.FLOW, rack, self._versions[rack])
            heapq.heappush(self._events, event)

    def _flow_ends(self, rack: int) -> None:
        for flow in self.uplinks[rack].finish(self.now):
            part = self._reading.pop(flow.owner, None)
            if part is None:
                self._warmed(flow)
            else:
                part.stalled += max(0.0, self.now - part.began - part.phase.seconds)
                part.phase = _NOTHING
                if part.turns:
                    self._turn(part)
                self._bring(part)
        self._watch(rack)

    def _end(self, number: int) -> None:
        outcome = self.outcomes[number]
        work = outcome.work
        outcome.ended = self.now
        self.caches.done(work.data, self.nodes.racks_of(outcome.nodes))
        self._begin(self.queue.free(outcome.nodes, min(8, work.gpus), self.now))

    def _warm(self, work: Work, rack: int) -> None:
        missing = work.parts & ~self.caches.parts(rack, work.data)
        if not missing or any(
            each.rack == rack and each.data is work.data for each in self._warming.values()
        ):
            return
        flow = Flow(
            -work.number - 1,
            missing.bit_count() * work.data.part_bytes,
            self.site.warming,
            is_read=False,
        )
        self._warming[work.number] = _Warming(work.data, rack, missing, flow)
        self.uplinks[rack].add(flow, self.now)
        self._watch(rack)

    def _stop_warming(self, number: int) -> None:
        """The job starts: what has not come is its own to read."""
        warming = self._warming.get(number)
        if warming is not None:
            self.uplinks[warming.rack].remove(warming.flow, self.now)
            self._warmed(warming.flow)
            self._watch(warming.rack)

    def _warmed(self, flow: Flow) -> None:
        """Keeps what a warming has brought; parts that came only in part are left out."""
        number = -flow.owner - 1
        warming = self._warming.pop(number)
        part_bytes = warming.data.part_bytes
        size = warming.parts.bit_count() * part_bytes - flow.left_bytes
        came = 0
        rest = warming.parts
        for _ in range(int(size / part_bytes + 1e-6)):
            came |= rest & -rest
            rest &= rest - 1
        cold = came & ~self.caches.anywhere(warming.data)
        outcome = self.outcomes[number]
        outcome.warmed_bytes += size
        outcome.warmed_from_origin += cold.bit_count() * part_bytes
        self.caches.put(warming.rack, warming.data, came, self.now)


def _first_seconds(work: Work) -> float:
    """How long computing takes over the first pass."""
    return work.seconds * min(1.0, 1.0 / work.passes)
