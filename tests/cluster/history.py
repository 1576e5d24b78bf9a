"""Whether what clients saw has an order: real time per key, every key a register. Pure.

A register's value is an ETag, or None where there is no object. A put or delete that was answered
took effect between its request and its answer; one that failed or timed out, at any time from its
request on, or never. A copy reads one key and writes another. A listing reads every key of its
prefix: those it shows and those it does not.

The search keeps all states a key may be in (Lowe, "Testing for linearizability", 2017: just-in-time
linearization): reads that agree with a state are taken at once, writes only when somebody's answer
needs them, writes of unknown outcome only where a read has seen what they may have written.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Value = str | None
What = Literal["put", "delete", "copy", "get", "list"]


@dataclass(frozen=True)
class Operation:
    """What one client asked and was told, in seconds of one monotonic clock.

    `answered` None: it failed or timed out: nobody knows what it did. `value`: the ETag put,
    copied or read. A copy says its `source`; one with `value` None found it missing. A listing says
    which keys it `covers` and which it `shows`.
    """

    what: What
    key: str
    asked: float
    answered: float | None
    value: Value = None
    source: str = ""
    covers: frozenset[str] = frozenset()
    shows: Mapping[str, str] = field(default_factory=dict)
    client: int = 0
    node: int = 0


@dataclass(frozen=True)
class Violation:
    """An answer that no order explains; `around` are the key's operations near it."""

    key: str
    why: str
    culprit: Operation
    around: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"{self.key}: {self.why}", *(self._line(each) for each in self.around)]
        return "\n".join(lines)

    def _line(self, each: Operation) -> str:
        mark = ">" if each is self.culprit else " "
        ended = "never    " if each.answered is None else f"{each.answered:9.3f}"
        source = f" from {each.source}" if each.source else ""
        value = each.shows.get(self.key) if each.what == "list" else each.value
        return (
            f"  {mark} {each.asked:9.3f} to {ended} client {each.client:2} by n{each.node + 1}: "
            f"{each.what} {each.key}{source} {value or '-'}"
        )


@dataclass(frozen=True)
class _Step:
    """An operation as one key sees it. `values`: what it read, wrote, or may have written."""

    number: int
    writes: bool
    values: frozenset[Value]
    asked: float
    answered: float
    told: Operation

    @property
    def value(self) -> Value:
        [value] = self.values
        return value

    @property
    def certain(self) -> bool:
        return self.answered < math.inf


# A value, the open steps that have been taken, and the uncertain ones that were made use of.
_State = tuple[Value, frozenset[int], frozenset[int]]


def check(
    history: Iterable[Operation],
    initial: Mapping[str, str] | None = None,
    *,
    lenient: Collection[str] = (),
) -> list[Violation]:
    """For each key the first answer that no order explains. `initial`: what was there before. Of
    `lenient` keys nothing is held against what is read after a write of unknown outcome."""
    operations = list(history)
    found = []
    for key, steps in sorted(_by_key(operations, initial or {}).items()):
        if key in lenient:
            steps = _until_unsure(steps)
        culprit = _first_unexplained(steps, (initial or {}).get(key))
        if culprit is not None:
            found.append(_explain(key, culprit, steps, (initial or {}).get(key)))
    return found


def _until_unsure(steps: list[_Step]) -> list[_Step]:
    """Without what was read after the first write of unknown outcome was asked for."""
    unsure = min((step.asked for step in steps if step.writes and not step.certain), default=None)
    if unsure is None:
        return steps
    kept = [step for step in steps if step.writes or step.answered < unsure]
    return [replace(step, number=number) for number, step in enumerate(kept)]


def _by_key(operations: list[Operation], initial: Mapping[str, str]) -> dict[str, list[_Step]]:
    steps: dict[str, list[_Step]] = defaultdict(list)
    ever = _ever_held(operations, initial)

    def add(key: str, told: Operation, values: Iterable[Value], *, writes: bool) -> None:
        answered = math.inf if told.answered is None else told.answered
        step = _Step(len(steps[key]), writes, frozenset(values), told.asked, answered, told)
        steps[key].append(step)

    for each in operations:
        done = each.answered is not None
        if each.what == "put":
            add(each.key, each, [each.value], writes=True)
        elif each.what == "delete":
            add(each.key, each, [None], writes=True)
        elif each.what == "copy" and done:
            add(each.source, each, [each.value], writes=False)
            if each.value is not None:
                add(each.key, each, [each.value], writes=True)
        elif each.what == "copy":
            add(each.key, each, ever[each.source], writes=True)
        elif each.what == "get" and done:
            add(each.key, each, [each.value], writes=False)
        elif each.what == "list" and done:
            for key in each.covers:
                add(key, each, [each.shows.get(key)], writes=False)
    return steps


def _ever_held(operations: list[Operation], initial: Mapping[str, str]) -> dict[str, set[Value]]:
    """What each key may ever have held; copies carry it on."""
    held: dict[str, set[Value]] = defaultdict(set)
    for key, value in initial.items():
        held[key].add(value)
    for each in operations:
        if each.what == "put" or (each.what == "copy" and each.value is not None):
            held[each.key].add(each.value)
    unsure = [each for each in operations if each.what == "copy" and each.value is None]
    grew = True
    while grew:
        before = sum(map(len, held.values()))
        for each in unsure:
            held[each.key] |= held[each.source]
        grew = sum(map(len, held.values())) > before
    return held


def _first_unexplained(steps: list[_Step], initial: Value) -> _Step | None:
    events = sorted(
        [(step.asked, 0, step.number) for step in steps]
        + [(step.answered, 1, step.number) for step in steps if step.certain]
    )
    search = _Search()
    states: set[_State] = {(initial, frozenset(), frozenset())}
    for _, ends, number in events:
        step = steps[number]
        if not ends:
            search.open(step)
            if step.certain and not step.writes:
                states = {search.agree(state) for state in states}
            continue
        states = _fewest(search.close(step, states))
        if not states:
            return step
    return None


class _Search:
    """The steps that are open at a moment, and the ways states go on from there."""

    def __init__(self) -> None:
        self._reads: dict[int, _Step] = {}
        self._writes: dict[int, _Step] = {}
        self._unsure: dict[int, _Step] = {}

    def open(self, step: _Step) -> None:
        if not step.certain:
            self._unsure[step.number] = step
        elif step.writes:
            self._writes[step.number] = step
        else:
            self._reads[step.number] = step

    def close(self, step: _Step, states: set[_State]) -> set[_State]:
        """The states in which `step` has been taken."""
        reached: set[_State] = set()
        seen: set[_State] = set()
        ahead = list(states)
        while ahead:
            state = ahead.pop()
            if state in seen:
                continue
            seen.add(state)
            value, taken, used = state
            if step.number in taken:
                reached.add((value, taken - {step.number}, used))
            else:
                ahead += self._onward(state)
        self._reads.pop(step.number, None)
        self._writes.pop(step.number, None)
        return reached

    def agree(self, state: _State) -> _State:
        """With all open reads taken that saw this value."""
        value, taken, used = state
        reads = [number for number, read in self._reads.items() if read.value == value]
        return value, taken.union(reads), used

    def _onward(self, state: _State) -> Iterable[_State]:
        _, taken, used = state
        for number, write in self._writes.items():
            if number not in taken:
                yield self.agree((write.value, taken | {number}, used))
        wanted = {read.value for number, read in self._reads.items() if number not in taken}
        for value in wanted:
            # Of those that may have written the same, any serves as well as another.
            alike: set[frozenset[Value]] = set()
            for number, write in self._unsure.items():
                if number in used or value not in write.values or write.values in alike:
                    continue
                alike.add(write.values)
                yield self.agree((value, taken, used | {number}))


def _fewest(states: set[_State]) -> set[_State]:
    """Without those that only differ by having used more."""
    best: dict[tuple[Value, frozenset[int]], list[frozenset[int]]] = defaultdict(list)
    for value, taken, used in sorted(states, key=lambda state: len(state[2])):
        kept = best[value, taken]
        if not any(less <= used for less in kept):
            kept.append(used)
    return {(value, taken, used) for (value, taken), many in best.items() for used in many}


def _explain(key: str, culprit: _Step, steps: list[_Step], initial: Value) -> Violation:
    writes = [step for step in steps if step.writes]
    if culprit.writes:
        why = "no order of the reads around this write explains them all"
    elif (
        culprit.value is not None
        and culprit.value != initial
        and not any(
            culprit.value in write.values and write.asked < culprit.answered for write in writes
        )
    ):
        why = "a value was read that nobody had written"
    else:
        sources = [write for write in writes if culprit.value in write.values]
        latest = max((write.answered for write in sources if write.certain), default=-math.inf)
        newer = [
            write
            for write in writes
            if write.certain and write.asked > latest and write.answered < culprit.asked
        ]
        if newer and not any(not write.certain for write in sources):
            last = max(newer, key=lambda write: write.answered)
            late = culprit.asked - last.answered
            missed = "delete" if last.value is None else f"write of {last.value}"
            why = f"stale: asked {late:.3f} s after a {missed} was acknowledged"
        else:
            why = "no order of the writes explains this read"

    def near(each: _Step, seconds: float) -> bool:
        return each.asked <= culprit.answered and each.answered >= culprit.asked - seconds

    told = [step.told for step in steps if step.writes and near(step, 30)][-12:]
    told += [step.told for step in steps if not step.writes and near(step, 2)][-20:]
    around = sorted({id(each): each for each in (*told, culprit.told)}.values(), key=_asked)
    return Violation(key, why, culprit.told, tuple(around))


def _asked(operation: Operation) -> float:
    return operation.asked
