"""The version table never lets an old answer pass for the present one.

A `World` is an origin, the questions and writes in flight to it, and a clock. The law that the
table is held to is `World._believed_is_true`: by a state machine that does anything in any order,
and by all orders there are for a few at a time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from gateway.model.objects import ObjectInfo, ObjectRef
from gateway.store.versions import Ticket, VersionTable

KEYS = ("a", "b", "c")
# One key is busier than the others, so that what is in flight overlaps.
BUSY = st.sampled_from(["a", "a", "a", "a", "b", "c"])
FRESHNESS_SECONDS = (0.0, 1.0, 10.0, None)


def ref_of(key: str, version_id: str | None = None) -> ObjectRef:
    return ObjectRef("main", "train", key, version_id)


def info_of(number: int, *, cacheable: bool = True, checksums_known: bool = True) -> ObjectInfo:
    return ObjectInfo(
        etag=f"e{number}",
        size_bytes=number,
        last_modified_ms=0,
        version_id=f"v{number}",
        cacheable=cacheable,
        checksums_known=checksums_known,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Held(NamedTuple):
    """What the origin held of a key from `at` on. `past_us`: put there by another client."""

    at: float
    info: ObjectInfo | None
    past_us: bool


class Origin:
    """The truth: the history of every key, and the versions of it that can be asked by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self.history = {key: [Held(clock(), None, past_us=True)] for key in KEYS}
        self.by_id: dict[ObjectRef, ObjectInfo] = {}

    def put(self, key: str, *, past_us: bool, cacheable: bool = True) -> ObjectInfo:
        self._last += 1
        info = info_of(self._last, cacheable=cacheable)
        self.history[key].append(Held(self._clock(), info, past_us))
        self.by_id[ref_of(key, info.version_id)] = info
        return info

    def delete(self, key: str, *, past_us: bool) -> None:
        self.history[key].append(Held(self._clock(), None, past_us))

    def delete_newest_version(self, key: str) -> None:
        """Deletes by version id, through us: the version before it is current again."""
        info = self.now(ref_of(key))
        if info is None:
            return
        del self.by_id[ref_of(key, info.version_id)]
        earlier = [
            held.info
            for held in self.history[key]
            if held.info is not None and ref_of(key, held.info.version_id) in self.by_id
        ]
        self.history[key].append(
            Held(self._clock(), earlier[-1] if earlier else None, past_us=False)
        )

    def now(self, ref: ObjectRef) -> ObjectInfo | None:
        if ref.version_id is not None:
            return self.by_id.get(ref)
        return self.history[ref.key][-1].info


class Question:
    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.answer: ObjectInfo | None = None
        self.place = -1


class Write:
    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.applied = False
        self.taught: ObjectInfo | None = None


class World:
    """A table, the origin it remembers, what is in flight between them, and the law."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.origin = Origin(self.clock)
        self.table = VersionTable(now=self.clock)
        self.writing: list[Write] = []
        self.asking: list[Question] = []
        # The newest place in each key's history that a valid answer has shown to the table.
        self.noticed = dict.fromkeys(KEYS, 0)

    def ask(self, key: str, version_id: str | None = None) -> Question:
        question = Question(self.table.begin_read(ref_of(key, version_id)))
        self.asking.append(question)
        return question

    def answer(self, question: Question) -> None:
        ref = question.ticket.ref
        question.answer = self.origin.now(ref)
        question.place = len(self.origin.history[ref.key]) - 1

    def learn(self, question: Question) -> None:
        ref = question.ticket.ref
        if question.answer is not None:
            valid = self.table.valid(question.ticket)
            assert self.table.learn(question.ticket, question.answer) <= valid
            if valid and ref.version_id is None:
                self.noticed[ref.key] = max(self.noticed[ref.key], question.place)
        self.table.end_read(question.ticket)
        self.asking.remove(question)

    def write(self, key: str) -> Write:
        write = Write(self.table.begin_write(ref_of(key)))
        self.writing.append(write)
        return write

    def end(self, write: Write, *, taught: bool) -> None:
        self.writing.remove(write)
        self.table.end_write(write.ticket, write.taught if taught else None)

    def check(self) -> None:
        for key in KEYS:
            for freshness in FRESHNESS_SECONDS:
                self._believed_is_true(key, freshness)
            self._noticed_stays_noticed(key)
            self._versions_asked_by_id_are_there(key)
        tickets = [one.ticket for one in self.writing] + [one.ticket for one in self.asking]
        held = {ticket.ref.current for ticket in tickets}
        for key in KEYS:
            assert ref_of(key) in held or self.table.generation(ref_of(key)) == 0
        assert len(self.table) <= len(KEYS)

    def _believed_is_true(self, key: str, freshness: float | None) -> None:
        """A version is believed only while no write of its key is in flight, and only if the
        origin still holds it, or held it less than `freshness` seconds ago and lost it to writes
        past us alone. So nothing believed is ever older than the last write that has ended."""
        believed = self.table.trusted(ref_of(key), freshness)
        if believed is None:
            return
        assert not [write for write in self.writing if write.ticket.ref.key == key]
        later = self.origin.history[key][self._place(key, believed) + 1 :]
        assert all(held.past_us for held in later)
        if later and freshness is not None:
            assert self.clock.now - later[0].at < freshness

    def _noticed_stays_noticed(self, key: str) -> None:
        believed = self.table.trusted(ref_of(key), None)
        if believed is not None:
            assert self._place(key, believed) >= self.noticed[key]

    def _versions_asked_by_id_are_there(self, key: str) -> None:
        for held in self.origin.history[key]:
            if held.info is not None:
                ref = ref_of(key, held.info.version_id)
                assert self.table.trusted(ref, None) in (None, self.origin.now(ref))

    def _place(self, key: str, info: ObjectInfo) -> int:
        """Where in the key's history `info` was last current."""
        history = self.origin.history[key]
        return max(place for place, held in enumerate(history) if held.info == info)


class Interleavings(RuleBasedStateMachine):
    """Anything in any order, over three keys."""

    questions = Bundle("questions")
    writes = Bundle("writes")

    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.now += seconds

    @rule(target=questions, key=BUSY, by_id=st.booleans(), answered=st.booleans())
    def begin_question(self, key: str, by_id: bool, answered: bool) -> Question:
        current = self.world.origin.now(ref_of(key))
        version_id = current.version_id if by_id and current is not None else None
        question = self.world.ask(key, version_id)
        if answered:
            self.world.answer(question)
        return question

    @rule(question=questions)
    def origin_answers(self, question: Question) -> None:
        if question.answer is None:
            self.world.answer(question)

    @rule(question=consumes(questions))
    def learn_and_end_question(self, question: Question) -> None:
        self.world.learn(question)

    @rule(target=writes, key=BUSY)
    def begin_write(self, key: str) -> Write:
        return self.world.write(key)

    @rule(
        write=writes,
        kind=st.sampled_from(["put", "put uncacheable", "delete", "delete newest version"]),
    )
    def origin_applies(self, write: Write, kind: str) -> None:
        key, origin = write.ticket.ref.key, self.world.origin
        if write.applied:
            return
        write.applied = True
        match kind:
            case "delete":
                origin.delete(key, past_us=False)
            case "delete newest version":
                origin.delete_newest_version(key)
            case _:
                write.taught = origin.put(key, past_us=False, cacheable=kind == "put")

    @rule(write=consumes(writes), taught=st.booleans())
    def end_write(self, write: Write, taught: bool) -> None:
        """A write that was never applied has failed; an origin may teach nothing of any."""
        self.world.end(write, taught=taught)

    @rule(key=BUSY, delete=st.booleans())
    def written_past_us(self, key: str, delete: bool) -> None:
        if delete:
            self.world.origin.delete(key, past_us=True)
        else:
            self.world.origin.put(key, past_us=True)

    @rule(key=BUSY)
    def forget(self, key: str) -> None:
        self.world.table.forget(ref_of(key))
        assert self.world.table.trusted(ref_of(key), None) is None

    @invariant()
    def the_law_holds(self) -> None:
        self.world.check()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# Who may be in flight at once over one key, and the steps each takes.
ACTORS: dict[str, Callable[[World], Iterator[None]]] = {}


def actor(steps: Callable[[World], Iterator[None]]) -> None:
    ACTORS[steps.__name__] = steps


@actor
def question(world: World) -> Iterator[None]:
    asked = world.ask("a")
    yield
    world.answer(asked)
    yield
    world.learn(asked)
    yield


def _write(world: World, *, applied: bool, taught: bool, cacheable: bool = True) -> Iterator[None]:
    write = world.write("a")
    yield
    if applied:
        write.taught = world.origin.put("a", past_us=False, cacheable=cacheable)
    yield
    world.end(write, taught=taught)
    yield


@actor
def put(world: World) -> Iterator[None]:
    return _write(world, applied=True, taught=True)


@actor
def silent(world: World) -> Iterator[None]:
    return _write(world, applied=True, taught=False)


@actor
def failed(world: World) -> Iterator[None]:
    return _write(world, applied=False, taught=False)


@actor
def stranger(world: World) -> Iterator[None]:
    world.origin.put("a", past_us=True)
    yield


def orders(lengths: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every way in which actors with so many steps each can take turns."""
    if not any(lengths):
        yield ()
    for number, length in enumerate(lengths):
        if length:
            rest = (*lengths[:number], length - 1, *lengths[number + 1 :])
            for following in orders(rest):
                yield (number, *following)


@pytest.mark.parametrize(
    "cast",
    [
        "question put put",
        "question put silent",
        "question question put",
        "question put failed",
        "put put put",
        "put silent failed",
        "question question stranger stranger",
        "question put stranger stranger",
        "put put stranger",
    ],
)
def test_the_law_holds_in_every_order_that_there_is(cast: str) -> None:
    names = cast.split()
    lengths = tuple(1 if name == "stranger" else 3 for name in names)
    for order in orders(lengths):
        world = World()
        world.origin.put("a", past_us=True)
        actors = [ACTORS[name](world) for name in names]
        for number in order:
            next(actors[number])
            world.clock.now += 1
            world.check()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> VersionTable:
    return VersionTable(now=clock)


A = ref_of("a")
ONE, TWO = info_of(1), info_of(2)


def learn(table: VersionTable, ref: ObjectRef, info: ObjectInfo) -> bool:
    ticket = table.begin_read(ref)
    learned = table.learn(ticket, info)
    table.end_read(ticket)
    return learned


def test_an_answer_is_believed_until_it_is_too_old(table: VersionTable, clock: Clock) -> None:
    ticket = table.begin_read(A)
    clock.now += 4
    assert table.learn(ticket, ONE)
    table.end_read(ticket)
    clock.now += 5.5
    # Its age counts from the question: nobody knows when the origin looked.
    assert table.trusted(A, 10) == ONE
    clock.now += 0.5
    assert table.trusted(A, 10) is None
    assert table.trusted(A, 11) == ONE
    assert table.trusted(A, None) == ONE


def test_with_no_freshness_the_origin_is_always_asked(table: VersionTable) -> None:
    assert learn(table, A, ONE)
    assert table.trusted(A, 0) is None


def test_nothing_is_believed_while_a_write_is_in_flight(table: VersionTable) -> None:
    learn(table, A, ONE)
    write = table.begin_write(A)
    assert table.trusted(A, None) is None
    assert not learn(table, A, ONE)
    assert table.trusted(A, None) is None
    assert table.end_write(write, TWO)
    assert table.trusted(A, None) == TWO


@pytest.mark.parametrize("taught", [TWO, None])
def test_a_question_from_before_a_write_teaches_nothing(
    table: VersionTable, taught: ObjectInfo | None
) -> None:
    question = table.begin_read(A)
    table.end_write(table.begin_write(A), taught)
    assert not table.valid(question)
    assert not table.learn(question, ONE)
    table.end_read(question)
    assert table.trusted(A, None) == taught


def test_a_question_from_within_a_write_teaches_nothing(table: VersionTable) -> None:
    write = table.begin_write(A)
    question = table.begin_read(A)
    table.end_write(write, None)
    assert not table.learn(question, ONE)
    table.end_read(question)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_overlapping_writes_neither_is_believed(
    table: VersionTable, first_to_end: int
) -> None:
    writes = [(table.begin_write(A), ONE), (table.begin_write(A), TWO)]
    if first_to_end:
        writes.reverse()
    for write, taught in writes:
        assert not table.end_write(write, taught)
        assert table.trusted(A, None) is None


def test_writes_one_after_another_are_each_believed(table: VersionTable) -> None:
    question = table.begin_read(A)
    assert table.end_write(table.begin_write(A), ONE)
    assert table.end_write(table.begin_write(A), TWO)
    assert table.trusted(A, None) == TWO
    table.end_read(question)


def test_a_write_of_one_key_leaves_the_others_alone(table: VersionTable) -> None:
    learn(table, A, ONE)
    question = table.begin_read(ref_of("b"))
    table.end_write(table.begin_write(ref_of("c")), None)
    assert table.trusted(A, None) == ONE
    assert table.learn(question, TWO)
    table.end_read(question)


def test_answers_that_contradict_each_other_are_not_believed(table: VersionTable) -> None:
    first, second, third = (table.begin_read(A) for _ in range(3))
    assert table.learn(second, TWO)
    assert not table.learn(first, ONE)
    assert table.trusted(A, None) is None
    assert not table.learn(third, ONE)
    assert table.trusted(A, None) is None
    for ticket in (first, second, third):
        table.end_read(ticket)
    assert learn(table, A, TWO)


def test_answers_that_tell_more_or_less_of_one_version_do_not_contradict(
    table: VersionTable,
) -> None:
    first, second = table.begin_read(A), table.begin_read(A)
    known, unknown = info_of(1), info_of(1, checksums_known=False)
    assert table.learn(second, unknown)
    assert table.learn(first, known)
    assert table.trusted(A, None) == known
    table.end_read(first)
    table.end_read(second)


def test_a_later_question_is_believed_over_an_earlier_one(table: VersionTable) -> None:
    assert learn(table, A, ONE)
    assert learn(table, A, TWO)
    assert table.trusted(A, None) == TWO


def test_what_must_not_be_kept_is_not_remembered_and_ends_what_was(table: VersionTable) -> None:
    assert learn(table, A, ONE)
    assert not learn(table, A, info_of(2, cacheable=False))
    assert table.trusted(A, None) is None
    assert not table.end_write(table.begin_write(A), info_of(3, cacheable=False))
    assert table.trusted(A, None) is None


def test_the_current_version_and_one_by_its_id_are_two_things(table: VersionTable) -> None:
    old = ref_of("a", "v1")
    learn(table, A, TWO)
    learn(table, old, ONE)
    assert table.trusted(A, None) == TWO
    assert table.trusted(old, None) == ONE
    assert table.trusted(ref_of("a", "v2"), None) is None
    table.end_write(table.begin_write(A), None)
    assert table.trusted(old, None) is None


def test_generations_tell_whether_a_question_may_be_shared(table: VersionTable) -> None:
    question = table.begin_read(A)
    before = table.generation(A)
    write = table.begin_write(A)
    within = table.generation(A)
    table.end_write(write, None)
    after = table.generation(A)
    assert len({before, within, after}) == 3
    assert table.generation(ref_of("a", "v1")) == after
    table.end_read(question)


def test_a_forgotten_key_is_asked_anew_and_questions_under_way_teach_nothing(
    table: VersionTable,
) -> None:
    learn(table, A, ONE)
    question = table.begin_read(A)
    table.forget(A)
    assert table.trusted(A, None) is None
    assert not table.learn(question, ONE)
    table.end_read(question)


def test_the_least_recently_used_key_is_forgotten_first(clock: Clock) -> None:
    table = VersionTable(now=clock, limit=3)
    for key in ("a", "b", "c"):
        learn(table, ref_of(key), ONE)
    assert table.trusted(A, None) == ONE
    learn(table, ref_of("d"), ONE)
    assert len(table) == 3
    assert table.trusted(A, None) == ONE
    assert table.trusted(ref_of("b"), None) is None


def test_many_keys_and_many_versions_take_bounded_room(clock: Clock) -> None:
    table = VersionTable(now=clock, limit=10)
    for number in range(1000):
        learn(table, ref_of(f"k{number}"), ONE)
        table.note_kept(ref_of(f"n{number}"))
    assert len(table) == 10
    assert sum(table.is_kept(ref_of(f"n{number}")) for number in range(1000)) == 10
    for number in range(100):
        learn(table, ref_of("a", f"v{number}"), info_of(number))
    believed = [table.trusted(ref_of("a", f"v{number}"), None) for number in range(100)]
    assert believed[-16:] == [info_of(number) for number in range(84, 100)]
    assert not any(believed[:-16])


def test_bytes_kept_unseen_are_noted_until_the_key_is_known_or_written(
    table: VersionTable,
) -> None:
    for end in (
        lambda: learn(table, A, ONE),
        lambda: table.end_write(table.begin_write(A), None),
        lambda: table.forget(A),
    ):
        table.note_kept(ref_of("a", "v1"))
        assert table.is_kept(A)
        end()
        assert not table.is_kept(A)
