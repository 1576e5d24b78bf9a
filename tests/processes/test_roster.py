"""Whatever dies, and whenever: the wanted processes come back, one keeper at a time, and a
restart never leaves fewer workers than there were."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.processes.roster import Action, Kill, Roster, Spawn, Tell


class Family:
    """Plays the processes of a roster: `do` acts on its orders until it has none."""

    def __init__(self, workers: int = 2) -> None:
        self.now = 1000.0
        self.roster = Roster(workers=workers, drain_seconds=30.0)
        self.told: list[Action] = []
        self.alive: dict[int, Spawn] = {}
        self.ordered: dict[int, list[str]] = {}
        self.do()

    def do(self) -> list[Action]:
        done: list[Action] = []
        while actions := self.roster.step(self.now):
            for action in actions:
                if isinstance(action, Spawn):
                    self.alive[action.number] = action
                    self.ordered[action.number] = []
                elif isinstance(action, Tell):
                    self.ordered[action.number].append(action.order)
            done += actions
            assert len(done) < 1000, "it never comes to rest"
        self.roster.seen_settled()
        self.told += done
        return done

    def ready(self, number: int) -> list[Action]:
        """It comes as far as it may: to stand by, or to serve."""
        if self.roster.members[number].waits:
            self.roster.prepared(number)
        else:
            self.roster.ready(number, self.now)
        return self.do()

    def die(self, number: int) -> list[Action]:
        del self.alive[number]
        self.fell_back = self.roster.gone(number, self.now)
        return self.do()

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.do()

    def start(self) -> "Family":
        for number in list(self.alive):
            self.ready(number)
        assert self.roster.up
        return self

    def of(self, role: str) -> list[int]:
        return [number for number, spawn in self.alive.items() if spawn.role == role]

    def settle(self) -> None:
        """Everyone does as told: comes to serve, and ends when ordered to."""
        for _ in range(200):
            for number in list(self.alive):
                if {"drain", "retire"} & set(self.ordered[number]):
                    self.die(number)
                elif not self.roster.members[number].serving:
                    self.ready(number)
            self.later(10.0)
            ending = any({"drain", "retire"} & set(self.ordered[n]) for n in self.alive)
            if self.roster.over or (self.roster.settled and not ending):
                return
        raise AssertionError("it never settles")


def test_a_node_starts_with_its_keeper_and_all_its_workers() -> None:
    family = Family(workers=3)
    assert [family.alive[number].role for number in family.alive] == ["keeper", *["worker"] * 3]
    assert not family.roster.up
    family.start()
    assert family.roster.settled


@pytest.mark.parametrize("role", ["keeper", "worker"])
def test_a_child_that_dies_before_the_node_is_up_fails_it(role: str) -> None:
    family = Family()
    family.die(family.of(role)[0])
    assert family.roster.failed


@pytest.mark.parametrize("role", ["keeper", "worker"])
def test_the_dead_are_replaced_at_once_and_those_who_die_young_after_longer_and_longer(
    role: str,
) -> None:
    family = Family().start()
    pauses = []
    for _ in range(8):
        family.die(family.of(role)[-1])
        waited = family.now
        count = 1 if role == "keeper" else 2
        while len(family.of(role)) < count:
            assert family.roster.wake_at(family.now) < float("inf")
            family.later(family.roster.wake_at(family.now) - family.now)
        pauses.append(family.now - waited)
        family.ready(family.of(role)[-1])
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    family.later(60.0)
    family.die(family.of(role)[-1])
    assert len(family.of(role)) == count


def test_a_restart_replaces_workers_one_by_one_and_the_keeper_last() -> None:
    family = Family().start()
    keeper, one, two = family.alive
    family.roster.restart(workers=2, drain_seconds=30.0)
    [spawned] = family.do()
    assert isinstance(spawned, Spawn)
    assert (spawned.role, spawned.generation) == ("worker", 2)
    assert family.later(5.0) == []
    told = family.ready(spawned.number)
    # The first has its successor, and so the second gets one.
    assert told[0] == Tell(one, "retire")
    [next_spawned] = told[1:]
    assert isinstance(next_spawned, Spawn)
    # Nobody waits for those who retire: they may have clients for hours.
    told = family.ready(next_spawned.number)
    assert told[0] == Tell(two, "retire")
    # The next keeper stands by before this one ends, and begins when it has.
    [successor] = told[1:]
    assert isinstance(successor, Spawn)
    assert (successor.role, successor.generation, successor.waits) == ("keeper", 2, True)
    assert family.ready(successor.number) == [Tell(keeper, "drain")]
    assert family.die(keeper) == [Tell(successor.number, "go")]
    too_early = family.roster.settled
    assert not too_early
    family.ready(successor.number)
    assert family.roster.settled
    assert family.die(one) == family.die(two) == []


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 1)])
def test_a_restart_may_change_how_many_workers_there_are(before: int, after: int) -> None:
    family = Family(workers=before).start()
    family.roster.restart(workers=after, drain_seconds=30.0)
    family.do()
    family.settle()
    assert len(family.of("worker")) == after
    assert {spawn.generation for spawn in family.alive.values()} == {2}


@pytest.mark.parametrize("role", ["keeper", "worker"])
def test_a_new_process_that_does_not_serve_takes_everyone_back(role: str) -> None:
    family = Family().start()
    family.roster.restart(workers=3, drain_seconds=30.0)
    family.do()
    while not (new := [n for n in family.of(role) if family.alive[n].generation == 2]):
        for number in list(family.alive):
            if "drain" in family.ordered[number]:
                family.die(number)
            elif not family.roster.members[number].serving:
                family.ready(number)
    family.die(new[0])
    assert family.fell_back
    assert family.roster.generation == 1
    family.settle()
    assert len(family.of("worker")) == 2
    # Those of the first generation that were never replaced are still there.
    assert {spawn.generation for spawn in family.alive.values()} == {1}


def test_a_keeper_that_cannot_stand_by_leaves_the_one_there_is_alone() -> None:
    family = Family().start()
    [keeper] = family.of("keeper")
    family.roster.restart(workers=2, drain_seconds=30.0)
    family.do()
    while len(family.of("keeper")) < 2:
        family.ready(next(n for n in family.alive if not family.roster.members[n].serving))
    family.die(family.of("keeper")[1])
    assert family.fell_back
    family.settle()
    assert family.of("keeper") == [keeper]
    assert family.ordered[keeper] == []


def test_a_keeper_that_dies_is_followed_by_the_one_that_stands_by() -> None:
    family = Family().start()
    [keeper] = family.of("keeper")
    family.roster.restart(workers=2, drain_seconds=30.0)
    family.do()
    while len(family.of("keeper")) < 2:
        family.ready(next(n for n in family.alive if not family.roster.members[n].serving))
    [_, successor] = family.of("keeper")
    assert family.die(keeper) == [Tell(successor, "go")]
    family.settle()
    assert family.of("keeper") == [successor]


def test_what_served_once_is_replaced_in_its_own_generation() -> None:
    family = Family().start()
    family.roster.restart(workers=2, drain_seconds=30.0)
    family.do()
    family.settle()
    family.die(family.of("worker")[0])
    assert not family.fell_back
    family.settle()
    assert {spawn.generation for spawn in family.alive.values()} == {2}


def test_a_drain_ends_the_workers_and_then_the_keeper() -> None:
    family = Family().start()
    keeper, one, two = family.alive
    family.roster.drain()
    assert family.do() == [Tell(keeper, "announce"), Tell(one, "drain"), Tell(two, "drain")]
    assert family.die(one) == []
    assert family.die(two) == [Tell(keeper, "drain")]
    assert not family.roster.over
    assert family.die(keeper) == []
    assert family.roster.over


def test_who_retires_drains_with_the_others() -> None:
    family = Family().start()
    family.roster.restart(workers=2, drain_seconds=30.0)
    [spawned] = family.do()
    assert isinstance(spawned, Spawn)
    family.ready(spawned.number)
    family.roster.drain()
    drained = {action.number for action in family.do() if action == Tell(action.number, "drain")}
    assert drained == set(family.of("worker"))


def test_who_retires_for_too_long_drains_and_is_killed_if_that_does_not_end() -> None:
    family = Family().start()
    _, one, _ = family.alive
    family.roster.restart(workers=2, drain_seconds=30.0)
    [spawned] = family.do()
    family.later(50.0)
    assert Tell(one, "retire") in family.ready(spawned.number)
    retired = family.now
    for number in family.of("worker"):
        if not family.roster.members[number].serving:
            family.ready(number)
    family.later(6 * 3600 - 0.1)
    assert "drain" not in family.ordered[one]
    assert family.roster.wake_at(family.now) == retired + 6 * 3600
    assert Tell(one, "drain") in family.later(0.2)
    assert Kill(one, "does not end") not in family.later(59.0)
    assert Kill(one, "does not end") in family.later(1.5)
    assert family.later(1000.0) == []


def test_who_does_not_come_to_serve_or_does_not_end_is_killed_once() -> None:
    family = Family().start()
    family.die(family.of("worker")[0])
    late = family.of("worker")[-1]
    assert family.later(59.0) == []
    assert family.roster.wake_at(family.now) == family.now + 1.0
    assert family.later(1.0) == [Kill(late, "does not come to serve")]
    assert family.later(1.0) == []
    family.die(late)
    family.settle()
    family.roster.drain()
    family.do()
    workers = family.of("worker")
    assert family.later(59.0) == []
    assert family.later(1.0) == [Kill(number, "does not end") for number in workers]


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "die", "obey", "restart", "later", "drain"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(st.integers(1, 4), _EVENTS)
@settings(deadline=None)
def test_whatever_happens_there_is_one_keeper_and_a_way_back(
    workers: int, events: list[tuple[str, int]]
) -> None:
    family = Family(workers).start()
    for event, which in events:
        number = list(family.alive)[which % len(family.alive)] if family.alive else None
        orders = set(family.ordered[number]) if number is not None else set()
        act: Callable[[], object] | None = None
        match event:
            case "ready" if number is not None:
                act = lambda number=number: family.ready(number)  # noqa: E731
            case "die" if number is not None:
                act = lambda number=number: family.die(number)  # noqa: E731
            case "obey" if number is not None and orders & {"drain", "retire"}:
                act = lambda number=number: family.die(number)  # noqa: E731
            case "restart" if not family.roster.draining:
                family.roster.restart(workers=which % 4 + 1, drain_seconds=30.0)
                act = family.do
            case "later":
                act = lambda which=which: family.later(which)  # noqa: E731
            case "drain" if which == 0:
                family.roster.drain()
                act = family.do
        if act is not None:
            act()
        assert sum(not family.roster.members[each].waits for each in family.of("keeper")) <= 1
        assert family.roster.members.keys() == family.alive.keys()
    family.settle()
    if family.roster.draining:
        assert not family.alive
    else:
        assert len(family.of("keeper")) == 1


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_restart_never_has_fewer_serving_workers_than_the_smaller_number(
    before: int, after: int
) -> None:
    family = Family(before).start()
    family.roster.restart(workers=after, drain_seconds=30.0)
    family.do()
    for _ in range(100):
        serving = [
            member
            for member in family.roster.members.values()
            if member.role == "worker" and member.serving and member.stays
        ]
        assert len(serving) >= min(before, after)
        assert len(family.of("worker")) <= before + after + 1
        starting = [
            number
            for number, member in family.roster.members.items()
            if not (member.prepared if member.waits else member.serving)
        ]
        ending = [n for n in family.of("keeper") if "drain" in family.ordered[n]]
        if starting:
            family.ready(starting[0])
        elif ending:
            family.die(ending[0])
        else:
            break
    assert family.roster.settled
