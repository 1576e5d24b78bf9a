"""Whom this node asks for what it does not hold: the home in its rack, the first home, a rack that
holds it. What is asked of the others here, `source.py` does in turn.

A node has a role for each chunk. A *reader* asks the home in its rack; the *rack* home asks the
first home; the first home answers for the whole *cluster*, and asks the origin. A role is what a
node is asked as, or what it takes itself for; it never becomes less in the course of a question.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import structlog
from msgspec import DecodeError, Struct, ValidationError, structs

from gateway.cluster.heat import Heat
from gateway.cluster.members import Member, Members
from gateway.cluster.placement import Placement
from gateway.cluster.suspects import Suspects
from gateway.errors import FeedrackError, VersionChanged, from_code
from gateway.model.objects import ObjectInfo, ObjectRef, Span
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.asking import (
    AGE,
    ERROR,
    ERROR_STATUS,
    HEAD_LENGTH,
    TIER,
    HeadQuestion,
    Level,
    SpanQuestion,
    decode_info,
)
from gateway.tiers.peers.client import PeerAnswer, PeerClient, PeerFailed
from gateway.tiers.peers.moving import MovedAnswer, Moving
from gateway.tiers.protocol import Holders, NoHolders, TierName

Role = Literal["reader", "rack", "cluster"]

# So many of one kind are asked before the next kind is.
_TRIES = 2
_LOOKED_AT = 3
_LONGEST_HEAD_BYTES = 256 * 1024
_ERROR_BYTES = 4096
# A node that came lately asks whoever was at home before it; not for longer than this, and not
# after so many times in a row for nothing.
_LATELY_SECONDS = 600.0
_FOR_NOTHING = 32

log = structlog.get_logger()


class Place(Struct, frozen=True):
    """What decides where something is at home: a key and a chunk's number. Of a packed object,
    those of its shard."""

    ref: ObjectRef
    number: int


class NotThere(FeedrackError):  # noqa: N818 - an answer, as its kind in gateway.errors
    """The peer does not have it, or has no time for it."""


class OriginLost(FeedrackError):  # noqa: N818 - as above
    """The peer has asked the origin, which did not answer."""


class ToldHead(Struct, frozen=True):
    """What a peer says of a key: how long ago the origin said so, where it comes from, and, if they
    are short, the object's bytes to come."""

    info: ObjectInfo
    age_seconds: float
    tier: TierName
    bytes: "PeerBytes | None"


class PeerBytes:
    """`Incoming` from a peer. What of `question` an answer does not bring is asked for anew."""

    def __init__(
        self,
        near: "Near",
        answer: PeerAnswer,
        tier: TierName,
        question: SpanQuestion | None = None,
    ) -> None:
        self._near = near
        self._answer = answer
        self._question = question
        # How much of the question has come; the answers so far brought, or will bring, so much.
        self._came_bytes = 0
        self._crosses = not near.placement.same_rack(answer.member)
        self.tier: TierName = tier
        # Whether any came.
        self.gave = False

    async def read_into(self, memory: memoryview) -> int:
        try:
            size_bytes = await self._answer.read_into(memory)
            if not size_bytes and self._rest is not None:
                self._answer = await self._near.rest(self._answer.member, self._rest)
                size_bytes = await self._answer.read_into(memory)
        except PeerFailed as error:
            self._near.broke_off(error)
            raise
        self._came_bytes += size_bytes
        if size_bytes:
            self.gave = True
        if self._crosses:
            self._near.metrics.cross_rack_bytes.inc(size_bytes)
        return size_bytes

    async def close(self) -> None:
        self._answer.close()

    @property
    def _rest(self) -> SpanQuestion | None:
        """What is still to be asked for."""
        question = self._question
        if question is None or not isinstance(self._answer, MovedAnswer):
            return None
        offset = question.offset + self._came_bytes
        return structs.replace(question, offset=offset) if offset < question.until else None


class Near:
    """The other nodes, as a node's reads see them."""

    def __init__(
        self,
        members: Members,
        placement: Placement,
        client: PeerClient,
        metrics: Metrics,
        *,
        holders: Holders | None = None,
        moving: Moving | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = members
        self.placement = placement
        self.metrics = metrics
        self.holders: Holders = holders or NoHolders()
        self.suspects = Suspects(now=now)
        self._client = client
        self._moving = moving
        self._now = now
        self._heat = Heat()
        self._began = now()
        self._for_nothing = 0

    @property
    def me(self) -> str:
        return self.members.me

    # Who is at home
    def role(self, place: Place, role: Role) -> Role:
        """The role this node has to play, at least `role`."""
        if role == "reader" and self._is_first(self.in_this_rack(place)):
            role = "rack"
        if role == "rack" and self._is_first(self.in_cluster(place)):
            role = "cluster"
        return role

    def is_home(self, place: Place) -> bool:
        """Whether what comes in here for the place is to be kept here."""
        return self.role(place, "reader") != "reader"

    def is_hot(self, span: Span) -> bool:
        """Counts a read of a span that is at home elsewhere; whether it is worth a replica."""
        return self._heat.read((span.version.digest, span.number), self._now())

    def in_this_rack(self, place: Place) -> Iterator[Member]:
        """Those to ask in this rack, the best first, up to this node."""
        found = self.placement.in_this_rack(place.ref, place.number, count=_LOOKED_AT)
        return self._sound(found)

    def in_cluster(self, place: Place) -> Iterator[Member]:
        """Those to ask of all, the best first, up to this node."""
        return self._sound(self.placement.in_cluster(place.ref, place.number, count=_LOOKED_AT))

    def others(self, found: Iterator[Member]) -> list[Member]:
        """The first of those to ask, as many as are worth it."""
        return [each for each in found if each.id != self.me][:_TRIES]

    def home_in(self, rack: str, place: Place) -> Member | None:
        """The home in another rack."""
        home = self.placement.home_in(rack, place.ref, place.number)
        return home if home is not None and self.may_ask(home) else None

    def may_ask(self, member: Member) -> bool:
        return member.id != self.me and member.id not in self.suspects

    def before_me(self, place: Place) -> Member | None:
        """Who was at home in this rack before this node came, where that was lately."""
        if self._for_nothing >= _FOR_NOTHING or self._now() - self._began > _LATELY_SECONDS:
            return None
        here = self.members.here()
        if here is None:
            return None
        for other in self.placement.in_this_rack(place.ref, place.number, count=_LOOKED_AT):
            if self.may_ask(other):
                return other if other.joined < here.joined else None
        return None

    def came_before(self, *, had_it: bool) -> None:
        """What came of asking who was at home before."""
        self._for_nothing = 0 if had_it else self._for_nothing + 1

    # Asking
    async def bytes(self, member: Member, question: SpanQuestion) -> PeerBytes:
        """Bytes of a span, begun. NotThere, OriginLost, VersionChanged, PeerFailed."""
        answer = await self._begun(member, question)
        return PeerBytes(self, answer, self._tier(answer), question)

    async def rest(self, member: Member, question: SpanQuestion) -> PeerAnswer:
        """More of what was answered in part. PeerFailed, VersionChanged."""
        try:
            return await self._begun(member, question)
        except (NotThere, OriginLost) as error:
            raise PeerFailed(member, "lost", "it has no more of it") from error

    async def head(
        self,
        ref: ObjectRef,
        role: Role,
        *,
        freshness_seconds: float | None,
        first_bytes: int,
        checksums: bool,
    ) -> ToldHead | None:
        """What a key holds, from the nearest who may tell; None where the origin is to be asked.
        Raises what the origin says of the key, S3Errors."""
        place = Place(ref.current, 0)
        for member, level in self._tellers(place, role):
            question = HeadQuestion(ref, level, freshness_seconds, first_bytes, checksums)
            try:
                told = await self._told(member, question)
            except (PeerFailed, NotThere):
                if level == "held":
                    self.came_before(had_it=False)
                continue
            except OriginLost:
                return None
            if level == "held":
                self.came_before(had_it=True)
            return told
        return None

    def broke_off(self, error: PeerFailed) -> None:
        """An answer ended early."""
        self.metrics.peer_requests.labels("bytes", error.reason).inc()
        # One that was cut may be the fault of a single fill; who has died is noticed soon enough.
        if error.reason == "late":
            self.suspects.failed(error.member.id)

    def _tellers(self, place: Place, role: Role) -> Iterator[tuple[Member, Level]]:
        if role == "reader":
            yield from ((each, "rack") for each in self.others(self.in_this_rack(place)))
            role = self.role(place, role)
        if role != "reader":
            before = self.before_me(place)
            if before is not None:
                yield before, "held"
        if role != "cluster":
            yield from ((each, "cluster") for each in self.others(self.in_cluster(place)))

    async def _begun(self, member: Member, question: SpanQuestion) -> PeerAnswer:
        wanted_bytes = question.until - question.offset
        what = f"span {question.level}"
        answer = await self._ask(member, question.target(), what, wanted_bytes)
        try:
            await self._check_bytes(answer, question)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _check_bytes(self, answer: PeerAnswer, question: SpanQuestion) -> None:
        if answer.status != 200:
            raise await self._refusal(answer, question.span.version.ref)
        wanted_bytes = question.until - question.offset
        may_be_short = question.level == "partial" or isinstance(answer, MovedAnswer)
        short = may_be_short and 0 < answer.left_bytes <= wanted_bytes
        if answer.left_bytes != wanted_bytes and not short:
            raise self._malformed(answer, "it is not as long as what was asked for")

    async def _told(self, member: Member, question: HeadQuestion) -> ToldHead:
        answer = await self._ask(member, question.target(), f"head {question.level}")
        try:
            return await self._read_head(answer, question)
        except BaseException:
            answer.close()
            raise

    async def _read_head(self, answer: PeerAnswer, question: HeadQuestion) -> ToldHead:
        if answer.status != 200:
            raise await self._refusal(answer, question.ref)
        length = answer.headers.get(HEAD_LENGTH, "")
        if not (length.isascii() and length.isdigit() and int(length) <= _LONGEST_HEAD_BYTES):
            raise self._malformed(answer, "a head of no length")
        try:
            info = decode_info(await answer.read(int(length)))
            age_seconds = float(answer.headers.get(AGE, ""))
        except (DecodeError, ValidationError, ValueError) as error:
            raise self._malformed(answer, error) from error
        if not 0 <= age_seconds < float("inf"):
            raise self._malformed(answer, "an age that is none")
        if answer.left_bytes not in (0, info.size_bytes):
            raise self._malformed(answer, "bytes that are not the object's")
        tier = self._tier(answer)
        coming = PeerBytes(self, answer, tier) if answer.left_bytes else None
        return ToldHead(info, age_seconds, tier, coming)

    async def _ask(
        self, member: Member, target: str, what: str, wanted_bytes: int = 0
    ) -> PeerAnswer:
        try:
            if self._moving is not None and wanted_bytes:
                return await self._moving.ask(member, target, what=what, wanted_bytes=wanted_bytes)
            return await self._client.ask(member, target, what=what)
        except PeerFailed as error:
            if error.reason != "busy":
                self.suspects.failed(member.id)
            log.info("peer passed over", peer=member.id, what=what, reason=str(error))
            raise

    async def _refusal(self, answer: PeerAnswer, ref: ObjectRef) -> FeedrackError:
        """What an answer that is none says."""
        code = answer.headers.get(ERROR)
        if answer.status == 412:
            return VersionChanged(f"{ref.bucket}/{ref.key} is another version now")
        if code == "TierUnavailable":
            return OriginLost(answer.member.id)
        status = answer.headers.get(ERROR_STATUS, "")
        if code is not None and status.isascii() and status.isdigit():
            message = await answer.read(min(answer.left_bytes, _ERROR_BYTES))
            return from_code(code, int(status), message.decode("utf-8", "replace"))
        return NotThere(f"{answer.member.id}: {answer.status}")

    def _malformed(self, answer: PeerAnswer, why: object) -> PeerFailed:
        self.metrics.peer_requests.labels("bytes", "malformed").inc()
        self.suspects.failed(answer.member.id)
        return PeerFailed(answer.member, "malformed", why)

    def _tier(self, answer: PeerAnswer) -> TierName:
        said = answer.headers.get(TIER)
        if said == "origin":
            return "origin"
        near = self.placement.same_rack(answer.member) and said in ("disk", "rack")
        return "rack" if near else "remote"

    def _sound(self, found: Sequence[Member]) -> Iterator[Member]:
        for member in found:
            if member.id not in self.suspects:
                yield member
                if member.id == self.me:
                    return

    def _is_first(self, found: Iterator[Member]) -> bool:
        """Whether this node is the first to ask, or there is nobody."""
        first = next(found, None)
        return first is None or first.id == self.me
