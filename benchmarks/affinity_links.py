"""The simulator's uplinks: one a rack, shared by what flows into it. Pure.

A fluid model. Each flow has a number of bytes and a fastest rate, that at which its job would take
them. While an uplink can give all of its flows their fastest rate it does; else the reads share it
fairly (max-min), and flows that are not reads have what these leave. Only what comes into a rack is
charged to its uplink: links are duplex, and what goes out is spread over many racks.
"""

import math

from msgspec import Struct

# What would end within so short a time has ended: late in a week no clock could tell.
_INSTANT_SECONDS = 1e-6


class Flow(Struct):
    """Bytes on their way into a rack. `owner`: whatever the caller knows it by."""

    owner: int
    left_bytes: float
    fastest: float
    is_read: bool = True
    rate: float = 0.0


class Uplink:
    """One rack's, of so many bytes a second."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.flows: list[Flow] = []
        self.moved = 0.0
        self.now = 0.0

    def add(self, flow: Flow, now: float) -> None:
        """A flow begins."""
        self.advance(now)
        self.flows.append(flow)
        self._share()

    def remove(self, flow: Flow, now: float) -> None:
        """A flow ends, at its end or before."""
        self.advance(now)
        self.flows.remove(flow)
        self._share()

    def finish(self, now: float) -> list[Flow]:
        """The flows that are at their end by now; they are gone."""
        self.advance(now)
        ended = [each for each in self.flows if each.left_bytes <= each.rate * _INSTANT_SECONDS]
        for each in ended:
            self.moved += each.left_bytes
            each.left_bytes = 0.0
            self.flows.remove(each)
        self._share()
        return ended

    def advance(self, now: float) -> None:
        """Lets time pass."""
        passed = now - self.now
        if passed > 0:
            for each in self.flows:
                came = min(each.left_bytes, each.rate * passed)
                each.left_bytes -= came
                self.moved += came
        self.now = now

    def next_end(self) -> tuple[float, Flow] | None:
        """The flow that is first at its end, and when, should nothing change."""
        best, soonest = None, math.inf
        for each in self.flows:
            if each.rate > 0:
                at = each.left_bytes / each.rate
                if at < soonest:
                    best, soonest = each, at
        return None if best is None else (self.now + soonest, best)

    def _share(self) -> None:
        left = self.bytes_per_second
        reads = [each for each in self.flows if each.is_read]
        left = _fill(reads, left)
        if len(reads) < len(self.flows):
            _fill([each for each in self.flows if not each.is_read], left)


def _fill(flows: list[Flow], rate: float) -> float:
    """Shares a rate out, max-min; what is left of it."""
    if sum(each.fastest for each in flows) <= rate:
        for each in flows:
            each.rate = each.fastest
            rate -= each.fastest
        return max(0.0, rate)
    waiting = len(flows)
    for each in sorted(flows, key=lambda flow: flow.fastest):
        each.rate = min(each.fastest, rate / waiting)
        rate -= each.rate
        waiting -= 1
    return max(0.0, rate)
