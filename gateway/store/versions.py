"""What this node may believe of each key: the current version, and for how long. Pure.

Law 2, "read what was written", rests on three rules kept here and nowhere else:

* A write through us begins before the origin hears of it and ends before the client does. From
  begin to end nothing remembered of the key is trusted, and every reader asks the origin.
* What a question to the origin taught is remembered only if no write of that key began or ended
  since the question was asked: such an answer serves its own reader and is then forgotten.
* What a write itself taught is remembered only if no other write of the key overlapped it, since
  the origin alone knows which of two overlapping writes came last.

What was written past us is noticed late, but not unlearned again: where the answers to overlapping
questions name different versions neither is remembered, since nobody knows the later one.

`generation` counts a key's begins and ends. It exists only while somebody holds a ticket, so the
table stays as small as what is in flight, plus a bounded number of remembered versions.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from gateway.model.objects import KnownObject, ObjectInfo, ObjectRef, known_object


class Ticket(Struct, frozen=True, eq=False):
    """Held from before a question or a write goes to the origin until it is over. `answers` counts
    what the table had remembered by then."""

    ref: ObjectRef
    generation: int
    drawn_at: float
    answers: int
    epoch: int = 0


class _InFlight(Struct):
    generation: int = 0
    tickets: int = 0
    writers: int = 0


class _Known(Struct, frozen=True):
    what: KnownObject
    since: float
    number: int


class Observer(Protocol):
    """Who is told what may be believed, in the call that decides it. Must not raise."""

    def remembered(self, ref: ObjectRef, info: ObjectInfo, since: float) -> None:
        """`info` may be believed of `ref`, as known since then."""
        ...

    def dropped(self, ref: ObjectRef) -> None:
        """Nothing may be believed of the key any more, under any version id."""
        ...

    def dropped_all(self) -> None:
        """Nothing may be believed of any key any more."""
        ...


class VersionTable:
    """Remembered versions by key and version id, with the right to believe them.

    `now` is a monotonic clock in seconds; `limit` bounds the keys remembered. `trusted_until` says
    until when what is remembered is good at all: for as long as other nodes tell of their writes.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        limit: int = 65_536,
        observer: Observer | None = None,
        trusted_until: Callable[[], float] | None = None,
    ) -> None:
        self._now = now
        self._trusted_until = trusted_until
        self._epoch = 0
        self._limit = limit
        self._observer = observer
        self._known: OrderedDict[ObjectRef, dict[str | None, _Known]] = OrderedDict()
        self._in_flight: dict[ObjectRef, _InFlight] = {}
        self._kept_unseen: OrderedDict[ObjectRef, None] = OrderedDict()
        self._answers = 0

    @property
    def trusts(self) -> bool:
        """Whether anything that this node remembers may be believed now."""
        return self._trusted_until is None or self._now() < self._trusted_until()

    def trusted(self, ref: ObjectRef, freshness_seconds: float | None) -> ObjectInfo | None:
        """The version to believe without asking; `freshness_seconds` None believes for ever."""
        known = self.believed(ref, freshness_seconds)
        return known.info if known is not None else None

    def believed(self, ref: ObjectRef, freshness_seconds: float | None) -> KnownObject | None:
        """As `trusted`, with the version's name."""
        versions = self._known.get(ref.current)
        known = versions.get(ref.version_id) if versions is not None else None
        if known is None or not self.trusts:
            return None
        if freshness_seconds is not None and self._now() - known.since >= freshness_seconds:
            return None
        self._known.move_to_end(ref.current)
        return known.what

    def aged(
        self, ref: ObjectRef, freshness_seconds: float | None
    ) -> tuple[ObjectInfo, float] | None:
        """As `trusted`, with how many seconds ago the origin said so."""
        what = self.believed(ref, freshness_seconds)
        if what is None:
            return None
        return what.info, self._now() - self._known[ref.current][ref.version_id].since

    def now(self) -> float:
        """The clock that tickets are drawn by."""
        return self._now()

    def present(self, ref: ObjectRef) -> object:
        """Names the present: two questions put in one present may share one answer. Where nothing
        is trusted no two are: nobody would have told of a write between them. Nor while others may
        be writing the key: they are answered before this node hears that it is over."""
        state = self._in_flight.get(ref.current)
        if state is None:
            return (0, self._epoch) if self.trusts else object()
        if not self.trusts or (state.writers and self._trusted_until is not None):
            return object()
        return state.generation, self._epoch

    def generation(self, ref: ObjectRef) -> int:
        """How many writes of the key began or ended; 0 while nobody asks for it or writes it."""
        state = self._in_flight.get(ref.current)
        return state.generation if state is not None else 0

    def begin_read(self, ref: ObjectRef) -> Ticket:
        """Call before asking the origin; hand the ticket to `learn` and then to `end_read`."""
        return self._ticket(ref, self._enter(ref))

    def learn(self, ticket: Ticket, info: ObjectInfo, *, age_seconds: float = 0.0) -> bool:
        """Remembers the answer if it is still sure to be the last word; says whether it did.
        `age_seconds`: so long before the ticket was drawn the origin said so, to another node that
        still believed it when it was asked."""
        if not self.valid(ticket):
            return False
        known = self._known.get(ticket.ref.current, {}).get(ticket.ref.version_id)
        contradicted = (
            known is not None
            and known.number > ticket.answers
            and not _same_version(known.what.info, info)
        )
        if contradicted or not info.cacheable:
            self.forget(ticket.ref)
            return False
        self._remember(ticket, info, age_seconds)
        return True

    def valid(self, ticket: Ticket) -> bool:
        """Whether no write of the key began or ended since the ticket was drawn."""
        state = self._in_flight.get(ticket.ref.current)
        return (
            state is not None
            and not state.writers
            and state.generation == ticket.generation
            and self._epoch == ticket.epoch
        )

    def end_read(self, ticket: Ticket) -> None:
        self._leave(ticket.ref)

    def begin_write(self, ref: ObjectRef) -> Ticket:
        """Call before the origin hears of the write. Nothing of the key is trusted from here on."""
        state = self._enter(ref)
        state.writers += 1
        state.generation += 1
        self._drop(ref)
        return self._ticket(ref, state)

    def end_write(self, ticket: Ticket, info: ObjectInfo | None) -> bool:
        """Call before the client is answered. `info`: the version written, None where it is not
        known or the write failed. Says whether `info` is now remembered."""
        ref = ticket.ref
        state = self._in_flight[ref.current]
        alone = (
            state.writers == 1
            and state.generation == ticket.generation
            and self._epoch == ticket.epoch
        )
        state.writers -= 1
        state.generation += 1
        self._leave(ref)
        if info is None or not info.cacheable or not alone:
            return False
        self._remember(ticket, info)
        return True

    def forget(self, ref: ObjectRef) -> None:
        """Believes nothing of the key any more: it was written past us."""
        self.end_write(self.begin_write(ref), None)

    def missed(self, refs: Iterable[ObjectRef] | None) -> None:
        """Writes of these keys may have gone by unnoticed (None: of any): nothing is believed of
        them, and what was asked until now, of whatever key, teaches nothing."""
        self._epoch += 1
        if refs is not None:
            for ref in refs:
                self._drop(ref)
            return
        self._known.clear()
        if self._observer is not None:
            self._observer.dropped_all()

    def note_kept(self, ref: ObjectRef) -> None:
        """Notes that the bytes of the current version are kept though its head was never seen:
        the next reader should ask for the head alone."""
        self._kept_unseen[ref.current] = None
        if len(self._kept_unseen) > self._limit:
            self._kept_unseen.popitem(last=False)

    def is_kept(self, ref: ObjectRef) -> bool:
        return ref.current in self._kept_unseen

    def __len__(self) -> int:
        return len(self._known)

    def _enter(self, ref: ObjectRef) -> _InFlight:
        state = self._in_flight.setdefault(ref.current, _InFlight())
        state.tickets += 1
        return state

    def _ticket(self, ref: ObjectRef, state: _InFlight) -> Ticket:
        return Ticket(ref, state.generation, self._now(), self._answers, self._epoch)

    def _leave(self, ref: ObjectRef) -> None:
        state = self._in_flight[ref.current]
        state.tickets -= 1
        if not state.tickets:
            del self._in_flight[ref.current]

    def _remember(self, ticket: Ticket, info: ObjectInfo, age_seconds: float = 0.0) -> None:
        ref = ticket.ref
        since = ticket.drawn_at - age_seconds
        self._answers += 1
        self._kept_unseen.pop(ref.current, None)
        versions = self._known.setdefault(ref.current, {})
        # Few versions of one key are read at a time; the bound keeps a history walk from growing.
        if len(versions) >= 16 and ref.version_id not in versions:
            versions.pop(next(iter(versions)))
        versions[ref.version_id] = _Known(known_object(ref, info), since, self._answers)
        self._known.move_to_end(ref.current)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        if self._observer is not None:
            self._observer.remembered(ref, info, since)

    def _drop(self, ref: ObjectRef) -> None:
        self._known.pop(ref.current, None)
        self._kept_unseen.pop(ref.current, None)
        if self._observer is not None:
            # Of keys not remembered here too: an observer may remember longer.
            self._observer.dropped(ref)


def _same_version(one: ObjectInfo, other: ObjectInfo) -> bool:
    """Whether both speak of one version; what else they tell of it may differ."""
    return (one.etag, one.size_bytes, one.version_id) == (
        other.etag,
        other.size_bytes,
        other.version_id,
    )
