"""Where the bytes of one span come from, one place after the other: near before far.

Every place is asked once, and again if it broke off after it had given something; the origin last.
Bytes that break off are gone on with from the next place, at the byte where they stopped. So, when
a first home dies in the midst of its fill, whoever comes next is asked by those who followed it for
what is missing alone; and takes what they have already from them, so that the origin gives nothing
twice.
"""

from gateway.cluster.members import Member
from gateway.model.objects import Span
from gateway.model.ranges import ByteRange
from gateway.tiers.peers.asking import Level, SpanQuestion
from gateway.tiers.peers.client import PeerFailed
from gateway.tiers.peers.near import Near, NotThere, OriginLost, PeerBytes, Place, Role
from gateway.tiers.protocol import Incoming, OpenedObject, Origin, TierName

_OTHER_RACKS = 2


class OriginBytes:
    """`Incoming` from an origin's answer, which must begin at the right byte."""

    tier: TierName = "origin"

    def __init__(self, opened: OpenedObject) -> None:
        self._opened = opened

    async def read_into(self, memory: memoryview) -> int:
        return await self._opened.read_into(memory)

    async def close(self) -> None:
        await self._opened.close()


class OriginSource:
    """The origin alone."""

    at_origin = True

    def __init__(self, span: Span, origin: Origin) -> None:
        self._span = span
        self._origin = origin

    async def open(self, offset: int, stop: int) -> Incoming:
        version, start = self._span.version, self._span.start
        opened = await self._origin.open(
            version.ref, wanted=ByteRange(start + offset, start + stop), if_match=version.etag
        )
        return OriginBytes(opened)

    def goes_on(self) -> bool:
        return False


class NearSource:
    """Other nodes first. `role` is what this node is asked as; `keeps`: what comes in is kept here
    from its first byte on, so that others can have it. `offers`: peers that can give so many first
    bytes of the span."""

    def __init__(
        self,
        near: Near,
        span: Span,
        place: Place,
        origin: Origin,
        *,
        role: Role,
        keeps: bool,
    ) -> None:
        self._near = near
        self._span = span
        self._place = place
        self._origin = OriginSource(span, origin)
        self._role = role
        self._keeps = keeps
        self._asked: set[tuple[str, Level]] = set()
        self._last: tuple[Member, Level, PeerBytes] | None = None
        self._racks: list[str] | None = None
        self._offers: dict[str, int] = {}
        self.at_origin = False
        # Whom this waits for just now.
        self.leans_on: str | None = None

    def offer(self, peer: str, have_bytes: int) -> None:
        """A peer can give so many of the first bytes."""
        if have_bytes > self._offers.get(peer, 0):
            self._offers[peer] = have_bytes

    async def open(self, offset: int, stop: int) -> Incoming:
        if self._last is not None:
            # One that gave something and broke off may give more: it is still the nearest.
            (member, level, coming), self._last = self._last, None
            if coming.gave:
                self._asked.discard((member.id, level))
        while not self.at_origin:
            chosen = await self._next(offset)
            if chosen is None:
                break
            member, level = chosen
            until = stop
            if level == "partial":
                until = min(stop, self._offers.pop(member.id))
            else:
                self._asked.add((member.id, level))
            have_bytes = offset if self._keeps and level == "cluster" else 0
            question = SpanQuestion(self._span, level, offset, until, have_bytes)
            # Who is asked for what it has waits for nobody.
            self.leans_on = member.id if level in ("rack", "cluster") else None
            before = level == "held" and self._racks is None
            try:
                coming = await self._near.bytes(member, question)
            except (PeerFailed, NotThere):
                if before:
                    self._near.came_before(had_it=False)
                continue
            except OriginLost:
                # Its way to the origin may be cut where ours is not.
                break
            if before:
                self._near.came_before(had_it=True)
            self._last = member, level, coming
            return coming
        self.at_origin = True
        self.leans_on = None
        return await self._origin.open(offset, stop)

    def goes_on(self) -> bool:
        return not self.at_origin

    async def _next(self, offset: int) -> tuple[Member, Level] | None:
        """Whom to ask, and as what; None for the origin."""
        near, place = self._near, self._place
        self._role = near.role(place, self._role)
        if self._role == "reader":
            for member in near.others(near.in_this_rack(place)):
                if self._is_new(member, "rack"):
                    return member, "rack"
        elif self._racks is None and ("", "held") not in self._asked:
            # Once: what this node was not at home for until lately.
            self._asked.add(("", "held"))
            before = near.before_me(place)
            if before is not None and self._is_new(before, "held"):
                return before, "held"
        if self._role != "cluster":
            for member in near.others(near.in_cluster(place)):
                if self._is_new(member, "cluster"):
                    return member, "cluster"
            return None
        for peer, have_bytes in sorted(self._offers.items(), key=lambda each: -each[1]):
            offering = near.members.get(peer)
            if have_bytes > offset and offering is not None and near.may_ask(offering):
                return offering, "partial"
        if self._racks is None:
            self._racks = await self._racks_holding()
        while self._racks:
            home = near.home_in(self._racks.pop(0), place)
            if home is not None and self._is_new(home, "held"):
                return home, "held"
        return None

    async def _racks_holding(self) -> list[str]:
        here = self._near.members.here()
        found = await self._near.holders.racks_holding(self._span)
        return [rack for rack in found if here is None or rack != here.rack][:_OTHER_RACKS]

    def _is_new(self, member: Member, level: Level) -> bool:
        return (member.id, level) not in self._asked
