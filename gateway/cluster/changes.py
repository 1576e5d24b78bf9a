"""What the stream of changes says: who is a member, which keys are being changed, who has heard of
it. Pure: entries in, what follows from them out.

    join, leave, update    a member comes, goes, tells something else of itself
    begin, end             a member changes keys at the origin, from before until after

Entries are in one order for all who read them. So at its own begin a writer knows exactly who was a
member by then, and may go on once each of those has said that it has come so far, or is gone.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gateway.cluster.members import Member, decode_member
from gateway.model.objects import ObjectRef

# A place in the stream: milliseconds and a number, as Redis gives them.
Position = tuple[int, int]


class Run(NamedTuple):
    """One run of a node."""

    id: str
    incarnation: str


class ChangeId(NamedTuple):
    """Names a change: whose it is, and its number there."""

    run: Run
    number: int


class Begun(Struct, frozen=True):
    """Keys that must not be trusted from here on."""

    change: ChangeId
    refs: tuple[ObjectRef, ...]


class Ended(Struct, frozen=True):
    """That is over. `abandoned`: the writer is gone, and what it asked of the origin may still
    happen."""

    change: ChangeId
    abandoned: bool


class Applied(Struct):
    """What follows from one entry."""

    begun: Begun | None = None
    ended: tuple[Ended, ...] = ()
    gone: Run | None = None
    members: bool = False


_encode_refs = msgspec.msgpack.Encoder().encode
_decode_refs = msgspec.msgpack.Decoder(tuple[tuple[bytes, bytes, bytes], ...]).decode


def encode_refs(refs: Iterable[ObjectRef]) -> bytes:
    """Keys as an entry carries them. Names need not be text."""
    return _encode_refs([(_raw(each.origin), _raw(each.bucket), _raw(each.key)) for each in refs])


def decode_refs(raw: bytes) -> tuple[ObjectRef, ...]:
    """ValueError where it is none of ours."""
    try:
        found = _decode_refs(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return tuple(ObjectRef(_text(one), _text(two), _text(three)) for one, two, three in found)


def position(raw: bytes) -> Position:
    """A stream's id as one that can be compared. ValueError."""
    high, _, low = raw.partition(b"-")
    return int(high), int(low or b"0")


def written(place: Position) -> str:
    """As Redis takes it."""
    return f"{place[0]}-{place[1]}"


class Picture:
    """The members and what they are changing, as of the last entry applied."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.open: dict[ChangeId, tuple[ObjectRef, ...]] = {}

    def begin_with(
        self, members: Iterable[Member], changes: Mapping[ChangeId, tuple[ObjectRef, ...]]
    ) -> None:
        """What was so at one entry."""
        self.members = {each.id: each for each in members}
        self.open = dict(changes)

    def runs(self) -> set[Run]:
        return {run_of(each) for each in self.members.values()}

    def apply(self, fields: Mapping[bytes, bytes]) -> Applied:
        """Takes in the next entry. ValueError where it is not understood: a later version's."""
        try:
            return self._apply(fields)
        except (KeyError, msgspec.MsgspecError) as error:
            raise ValueError(f"an entry that lacks something: {error!r}") from error

    def _apply(self, fields: Mapping[bytes, bytes]) -> Applied:
        kind = fields[b"k"]
        if kind in (b"join", b"update"):
            return self._came(decode_member(fields[b"d"]))
        run = Run(fields[b"n"].decode(), fields[b"i"].decode())
        if kind == b"leave":
            return self._went(run)
        change = ChangeId(run, int(fields[b"c"]))
        if kind == b"begin":
            refs = decode_refs(fields[b"d"])
            self.open[change] = refs
            return Applied(begun=Begun(change, refs))
        if kind == b"end":
            known = self.open.pop(change, None) is not None
            return Applied(ended=(Ended(change, abandoned=False),) if known else ())
        raise ValueError(f"an entry of an unknown kind {kind!r}")

    def _came(self, member: Member) -> Applied:
        before = self.members.get(member.id)
        self.members[member.id] = member
        if before is None or before.incarnation == member.incarnation:
            return Applied(members=True)
        gone = run_of(before)
        return Applied(members=True, gone=gone, ended=self._abandon(gone))

    def _went(self, run: Run) -> Applied:
        member = self.members.get(run.id)
        if member is None or member.incarnation != run.incarnation:
            return Applied()
        del self.members[run.id]
        return Applied(members=True, gone=run, ended=self._abandon(run))

    def _abandon(self, run: Run) -> tuple[Ended, ...]:
        left = [change for change in self.open if change.run == run]
        for change in left:
            del self.open[change]
        return tuple(Ended(change, abandoned=True) for change in left)


class Waits:
    """Which members a writer still waits for, change by change."""

    def __init__(self) -> None:
        self._acked: dict[Run, Position] = {}
        self._missing: dict[int, set[Run]] = {}
        self._at: dict[int, Position] = {}

    def begun(self, number: int, place: Position, runs: Iterable[Run]) -> bool:
        """Our own begin was met at `place`, when those were members; whether all have come so far
        already."""
        missing = {run for run in runs if self._acked.get(run, (0, 0)) < place}
        if not missing:
            return True
        self._missing[number] = missing
        self._at[number] = place
        return False

    def acked(self, run: Run, place: Position) -> list[int]:
        """A member has come to `place`; the changes that wait for nobody any more."""
        if place <= self._acked.get(run, (0, 0)):
            return []
        self._acked[run] = place
        return self._without(run, place)

    def gone(self, run: Run) -> list[int]:
        """As `acked`, of a member that is none any more."""
        self._acked.pop(run, None)
        return self._without(run, None)

    def forget(self, number: int) -> None:
        """Nobody waits for this change any more."""
        self._missing.pop(number, None)
        self._at.pop(number, None)

    def missing(self) -> set[Run]:
        """Everybody somebody waits for."""
        return set().union(*self._missing.values()) if self._missing else set()

    def _without(self, run: Run, place: Position | None) -> list[int]:
        settled = []
        for number, missing in list(self._missing.items()):
            if place is None or place >= self._at[number]:
                missing.discard(run)
                if not missing:
                    settled.append(number)
                    self.forget(number)
        return settled


class Watch:
    """Who has not renewed its lease for longer than one lasts. `patience_seconds`: a lease and a
    margin, for clocks that do not run alike."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._seen: dict[Run, tuple[int, float]] = {}

    def saw(self, run: Run, renewals: int, now: float) -> bool:
        """The count of a member's renewals was seen at `now`; whether its lease is over by then,
        unless it renews it first: whoever ends its membership does so only if the count still
        stands."""
        before = self._seen.get(run)
        if before is None or before[0] != renewals:
            self._seen[run] = renewals, now
            return False
        return now - before[1] >= self._patience_seconds

    def suspects(self, now: float) -> bool:
        """Whether the count of some member has stood for half as long."""
        return any(now - at >= self._patience_seconds / 2 for _, at in self._seen.values())

    def forget_others(self, runs: set[Run]) -> None:
        """Nobody else needs watching."""
        self._seen = {run: seen for run, seen in self._seen.items() if run in runs}


def run_of(member: Member) -> Run:
    return Run(member.id, member.incarnation)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
