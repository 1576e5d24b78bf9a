"""The protocol of coherence without processes, sockets and real time: nodes, a stream, an origin.

Every step that could be interleaved with others is one of its own: a question put, to the origin or
to another node that asks in its turn, shared by who asks the same, answered, and learned from; a
change begun, met in the stream, acknowledged, made at the origin, answered, ended;
a lease renewed, lapsed, ended by others; a node frozen (nobody steps it), dead, back. What decides
is the real thing (`Picture`, `Waits`, `Watch`, `VersionTable`, `Coherence`); what is done here by
hand is what `membership.py` and `writing.py` do with them over Redis.

Checked: a read answers with nothing older than what was answered, or read, before it began.
"""

from collections.abc import Callable
from random import Random
from typing import Any, cast

from gateway.cluster.changes import (
    Begun,
    ChangeId,
    Ended,
    Picture,
    Position,
    Run,
    Waits,
    Watch,
    encode_refs,
    run_of,
)
from gateway.cluster.members import Member, encode_member
from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.store.coherence import Coherence
from gateway.store.versions import Ticket, VersionTable

LEASE = 3.0
MARGIN = 0.05
DOUBT = 30.0
KEYS = [ObjectRef("origin", "bucket", f"key{number}") for number in range(3)]
# What an origin takes, at the most, to do what it was asked for.
_LANDS_WITHIN = DOUBT * 0.9


class StaleError(AssertionError):
    """A read saw what was over."""


class Write:
    """One write on its way."""

    def __init__(self, node: "SimulatedNode", key: ObjectRef, tickets: list[Ticket]) -> None:
        self.node = node
        self.key = key
        self.tickets = tickets
        self.number = 0
        self.run: Run | None = None
        self.settled = False
        self.released_at: float | None = None
        self.version = 0
        self.answered = False


class Question:
    """One question on its way: to the origin, or to another node. Those in `waiting` share it, and
    hear the version and since when it is known."""

    def __init__(self, key: ObjectRef, ticket: Ticket, via: "SimulatedNode | None") -> None:
        self.key = key
        self.ticket = ticket
        self.via = via
        self.under_way = False
        # The version, and how old that is, once the answer is on its way back.
        self.seen: tuple[int, float] | None = None
        self.waiting: list[Told] = []


Told = Callable[[int, float], None]


class SimulatedNode:
    """One node's memory, lease and place in the stream."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.alive = False
        self.frozen = False
        self.incarnations = 0
        self.start_over()

    def start_over(self) -> None:
        """A new process: nothing is remembered."""
        self.run: Run | None = None
        self.place = 0
        self.lease_until = 0.0
        self.picture = Picture()
        self.waits = Waits()
        self.watch = Watch(LEASE * (1 + MARGIN))
        self.numbers = 0
        self.writes: dict[int, Write] = {}
        self.waiting: list[Write] = []
        self.questions: dict[object, Question] = {}
        self.versions = VersionTable(
            now=lambda: self.world.now,
            trusted_until=lambda: 1e9 if self.world.flaw == "leases last" else self.lease_until,
        )
        self.memory = Coherence(
            self.versions,
            cast(Any, None),
            {},
            immutable=frozenset(),
            doubt_seconds=DOUBT,
            later=self.world.later,
        )

    @property
    def member(self) -> bool:
        return self.run is not None and self.world.now < self.lease_until

    # The stream
    def join(self) -> None:
        world = self.world
        self.incarnations += 1
        run = Run(self.name, f"i{self.incarnations}")
        if self.name in world.runs and world.runs[self.name] != run:
            world.drop_run(world.runs[self.name], announce=False)
        sent = world.now
        member = _member(run)
        world.runs[self.name] = run
        world.renewals[run] = 1
        world.stream.append({b"k": b"join", b"d": encode_member(member)})
        before, self.place = self.place, len(world.stream)
        missed: list[ObjectRef] | None = None
        if self.run is not None:
            missed = [
                ref
                for fields in world.stream[before : self.place]
                if fields[b"k"] == b"begin" and world.flaw != "nothing was missed"
                for ref in world.refs_of(fields)
            ]
        _at_once(self.memory.missed(missed))
        self.picture.begin_with(
            [_member(each) for each in world.runs.values()],
            dict(world.open),
        )
        for change, refs in self.picture.open.items():
            _at_once(self.memory.begun(Begun(change, refs)))
        if world.flaw != "who joins hears of nothing that was left":
            for change, (refs, until) in world.doubted.items():
                if world.now < until:
                    _at_once(self.memory.begun(Begun(change, refs)))
                    self.memory.ended(Ended(change, abandoned=True))
        for write in list(self.writes.values()):
            # It will be announced again.
            write.settled, write.run = False, None
            self.waiting.append(write)
        self.writes.clear()
        self.waits = Waits()
        self.run = run
        self.lease_until = sent + LEASE

    def follow(self, limit: int) -> None:
        """Takes in the next entries, and tells their writers."""
        world, run = self.world, self.run
        if run is None:
            return
        owed: set[Run] = set()
        for fields in world.stream[self.place : self.place + limit]:
            self.place += 1
            applied = self.picture.apply(fields)
            if applied.begun is not None:
                begun = applied.begun
                if begun.change.run == run:
                    others = self.picture.runs() - {run}
                    if world.flaw == "nobody is waited for" or self.waits.begun(
                        begun.change.number, _position(self.place), others
                    ):
                        self._settle([begun.change.number])
                else:
                    _at_once(self.memory.begun(begun))
                    owed.add(begun.change.run)
            for ended in applied.ended:
                if ended.change.run != run:
                    self.memory.ended(ended)
            if applied.gone is not None:
                self._settle(self.waits.gone(applied.gone))
                if applied.gone == run:
                    self.lease_until = 0.0
                    return
        for writer in owed:
            world.acks.setdefault(writer, []).append((run, _position(self.place)))

    def take_acks(self) -> None:
        if self.run is not None:
            for run, place in self.world.acks.pop(self.run, []):
                self._settle(self.waits.acked(run, place))

    def _settle(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.writes:
                self.writes[number].settled = True

    def renew(self) -> None:
        world, run = self.world, self.run
        if run is None or world.runs.get(self.name) != run:
            # Ended by others: from here on nothing is trusted until it has joined again.
            self.lease_until = 0.0
            if self.alive:
                self.join()
            return
        world.renewals[run] += 1
        self.lease_until = world.now + LEASE
        for other, count in list(world.renewals.items()):
            if other != run and self.watch.saw(other, count, world.now):
                world.drop_run(other, announce=True)

    # Writes
    def begin_write(self, key: ObjectRef) -> None:
        write = Write(self, key, [self.versions.begin_write(key)])
        self.waiting.append(write)

    def announce(self) -> None:
        """Appends the begins that wait, as far as this node is a member."""
        world, run = self.world, self.run
        if run is None or world.runs.get(self.name) != run or not self.member:
            return
        for write in self.waiting:
            self.numbers += 1
            write.number, write.run = self.numbers, run
            self.writes[write.number] = write
            change = ChangeId(run, write.number)
            world.open[change] = (write.key,)
            world.stream.append(world.entry(b"begin", run, write.number, write.key))
        self.waiting.clear()

    def release(self, write: Write) -> None:
        """The origin may make it visible from now on."""
        if write.settled and write.released_at is None:
            world = self.world
            write.released_at = world.now
            world.latest[write.key] = world.latest.get(write.key, 0) + 1
            write.version = world.latest[write.key]
            world.at_origin.append(write)

    def answer(self, write: Write) -> None:
        """The client is told, if what was announced still stands."""
        if not write.settled or write.answered or write in self.world.at_origin:
            return
        if write.released_at is None or write.run != self.run or not self.member:
            return
        write.answered = True
        self.world.saw(write.key, write.version)
        self._end(write)

    def _end(self, write: Write) -> None:
        for ticket in write.tickets:
            self.versions.end_write(ticket, None)
        world = self.world
        del self.writes[write.number]
        assert write.run is not None
        if world.open.pop(ChangeId(write.run, write.number), None) is not None:
            world.stream.append(world.entry(b"end", write.run, write.number, write.key))

    # Reads
    def read(self, key: ObjectRef) -> None:
        floor = self.world.floor.get(key, 0)
        # Some want to know more than is remembered.
        wants_more = self.world.random.random() < 0.2
        info = None if wants_more else self.versions.trusted(key, 60.0)
        if info is not None:
            self.world.check(key, int(info.etag), floor, "memory", self)
            return
        self.ask(key, lambda seen, _: self.world.check(key, seen, floor, "a question", self))

    def ask(self, key: ObjectRef, told: Told, *, as_home: bool = False) -> None:
        """As `Reads._share` and `Reads._told`; who is asked as the home asks the origin."""
        versions, world = self.versions, self.world
        present = versions.present(key)
        if world.flaw == "questions are shared during writes" and versions.trusts:
            present = versions.generation(key), versions._epoch
        if world.flaw == "questions are shared without a lease":
            present = versions.generation(key)
        name = (key, present, as_home)
        question = self.questions.get(name)
        if question is None:
            ticket = versions.begin_read(key)
            others = [each for each in world.nodes if each is not self]
            may_be_told = versions.trusts and not ticket.generation and not as_home
            via = world.random.choice([None, *others, *others]) if may_be_told else None
            question = self.questions[name] = Question(key, ticket, via)
        question.waiting.append(told)

    def give(self, key: ObjectRef, told: Callable[[int, float], None]) -> None:
        """As `Giving.give_head`: `told` hears the version and its age."""
        known = self.versions.aged(key, 60.0)
        if self.world.flaw == "who is asked looks at no lease" and key in self.versions._known:
            what = self.versions._known[key][None]
            known = what.what.info, self.world.now - what.since
        if known is not None:
            told(int(known[0].etag), known[1])
            return
        self.ask(key, lambda seen, since: told(seen, self.world.now - since), as_home=True)

    def go_on(self, name: object) -> None:
        """The next thing that happens to a question."""
        question, world = self.questions[name], self.world
        if question.seen is not None:
            self._end_question(name, question)
        elif question.via is None:
            question.seen = world.value.get(question.key, 0), 0.0
        elif world.random.random() < 0.1:
            # Enough waited: what comes yet is not heard any more.
            question.via = None
        elif not question.under_way and question.via.alive and not question.via.frozen:
            question.under_way = True
            asked = question.via

            def told(seen: int, age: float) -> None:
                if question.via is asked:
                    question.seen = seen, age

            asked.give(question.key, told)

    def _end_question(self, name: object, question: Question) -> None:
        assert question.seen is not None
        seen, age = question.seen
        del self.questions[name]
        info = ObjectInfo(etag=str(seen), size_bytes=1, last_modified_ms=0)
        self.versions.learn(question.ticket, info, age_seconds=age)
        self.versions.end_read(question.ticket)
        self.world.told_by_nodes += question.via is not None
        for told in question.waiting:
            told(seen, question.ticket.drawn_at - age)


class World:
    """Redis, the origin, and who has been told what."""

    def __init__(self, seed: int, nodes: int, *, flaw: str = "") -> None:
        self.random = Random(seed)
        # What is done wrong on purpose, to see that it is found out.
        self.flaw = flaw
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.stream: list[dict[bytes, bytes]] = []
        self.runs: dict[str, Run] = {}
        self.renewals: dict[Run, int] = {}
        self.open: dict[ChangeId, tuple[ObjectRef, ...]] = {}
        self.doubted: dict[ChangeId, tuple[tuple[ObjectRef, ...], float]] = {}
        self.acks: dict[Run, list[tuple[Run, Position]]] = {}
        self.value: dict[ObjectRef, int] = {}
        self.latest: dict[ObjectRef, int] = {}
        self.at_origin: list[Write] = []
        # What must be seen by whoever begins to read now.
        self.floor: dict[ObjectRef, int] = {}
        self.reads_from_memory = 0
        self.told_by_nodes = 0
        self.answered = 0
        self.nodes = [SimulatedNode(self, f"n{number}") for number in range(nodes)]
        self._refs: dict[bytes, tuple[ObjectRef, ...]] = {}
        for node in self.nodes:
            node.alive = True
            node.join()

    def entry(self, kind: bytes, run: Run, number: int, key: ObjectRef) -> dict[bytes, bytes]:
        raw = encode_refs([key])
        self._refs[raw] = (key,)
        return {
            b"k": kind, b"n": run.id.encode(), b"i": run.incarnation.encode(),
            b"c": b"%d" % number, b"d": raw,
        }  # fmt: skip

    def refs_of(self, fields: dict[bytes, bytes]) -> tuple[ObjectRef, ...]:
        return self._refs[fields[b"d"]]

    def drop_run(self, run: Run, *, announce: bool) -> None:
        if self.runs.get(run.id) != run:
            self.renewals.pop(run, None)
            return
        del self.runs[run.id]
        self.renewals.pop(run, None)
        for change in [change for change in self.open if change.run == run]:
            self.doubted[change] = self.open.pop(change), self.now + DOUBT
        if announce:
            fields = {b"k": b"leave", b"n": run.id.encode(), b"i": run.incarnation.encode()}
            self.stream.append(fields)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, call))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, call in due:
            call()
        for write in list(self.at_origin):
            assert write.released_at is not None
            if self.now - write.released_at > _LANDS_WITHIN:
                self.land(write)

    def land(self, write: Write) -> None:
        """The origin makes it visible: the last to be made so is what the key holds."""
        self.at_origin.remove(write)
        # Versions are numbered in the order in which they become visible.
        self.latest[write.key] = write.version = self.latest.get(write.key, 0) + 1
        self.value[write.key] = write.version

    def saw(self, key: ObjectRef, version: int) -> None:
        self.floor[key] = max(self.floor.get(key, 0), version)
        self.answered += 1

    def check(
        self, key: ObjectRef, version: int, floor: int, where: str, node: SimulatedNode
    ) -> None:
        if version < floor:
            raise StaleError(f"{node.name} answered {version} of {key.key} from {where}: {floor}")
        self.floor[key] = max(self.floor.get(key, 0), version)
        self.reads_from_memory += where == "memory"

    def step(self) -> None:
        """One step of whatever may happen next."""
        choose = self.random
        node = choose.choice(self._awake() or self.nodes)
        kind = choose.choices(
            ["read", "read on", "follow", "acks", "write", "announce", "release", "land", "answer",
             "renew", "tick", "freeze", "kill", "back"],
            [60, 60, 30, 20, 3, 12, 14, 12, 14, 30, 12, 0.5, 0.5, 3],
        )[0]  # fmt: skip
        if kind == "tick":
            self.tick(choose.choice([0.01, 0.05, 0.2, 0.5]))
        elif kind == "freeze":
            # All others go on for a while, and it wakes up where it was.
            self._without(node, choose.randrange(1200))
        elif kind == "kill":
            if len(self._awake()) > 1:
                node.alive = False
        elif kind == "back":
            gone = [each for each in self.nodes if not each.alive]
            if gone:
                back = choose.choice(gone)
                back.start_over()
                back.alive = True
                back.join()
        elif kind == "land":
            if self.at_origin:
                self.land(choose.choice(self.at_origin))
        elif node.alive and not node.frozen:
            self._step_of(node, kind)

    def _awake(self) -> list[SimulatedNode]:
        return [each for each in self.nodes if each.alive and not each.frozen]

    def _without(self, node: SimulatedNode, steps: int) -> None:
        if len(self._awake()) < 2:
            return
        node.frozen = True
        for _ in range(steps):
            self.step()
        node.frozen = False

    def _step_of(self, node: SimulatedNode, kind: str) -> None:
        choose = self.random
        writes = list(node.writes.values())
        if kind == "read":
            node.read(choose.choice(KEYS))
        elif kind == "read on" and node.questions:
            node.go_on(choose.choice(list(node.questions)))
        elif kind == "follow":
            node.follow(choose.randrange(1, 6))
        elif kind == "acks":
            node.take_acks()
        elif kind == "write":
            node.begin_write(choose.choice(KEYS))
        elif kind == "announce":
            node.announce()
        elif kind == "release" and writes:
            node.release(choose.choice(writes))
        elif kind == "answer" and writes:
            node.answer(choose.choice(writes))
        elif kind == "renew":
            node.renew()


def _member(run: Run) -> Member:
    member = Member(
        id=run.id, incarnation=run.incarnation, rack="r", zone="z", peers="", s3="", admin="",
        capacity_bytes=1, version="",
    )  # fmt: skip
    assert run_of(member) == run
    return member


def _position(place: int) -> Position:
    return place, 0


def _at_once(awaitable: Any) -> None:
    """Runs what needs no waiting here: there is no disk."""
    iterator = awaitable.__await__()
    try:
        next(iterator)
    except StopIteration:
        return
    raise AssertionError("it waits for something")
