"""Who has a queue pair to this node, and for how long. Times are handed in; nothing here waits."""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gateway.rdma.lines import Line
from gateway.rdma.token import SESSION_DIGITS, UsedNumbers
from gateway.rdma.wire import PairAddress

State = Literal["preparing", "ready", "ended"]

# How long a client may take from `prepare` to `ready`.
PREPARE_SECONDS = 10.0


# What the names of nodes begin with, which are tenants here as well.
NODE_PREFIX = "node:"


def party(tenant: str) -> str:
    """Whose part of what this node has a tenant's is of: all other nodes together are one party,
    or each more of them would leave less to the clients."""
    return NODE_PREFIX if tenant.startswith(NODE_PREFIX) else tenant


class TooManySessions(Exception):  # noqa: N818 - named as the other refusals are
    """This tenant, or all of them, have as many as they may."""


class Session:
    """One client's connection. `peer` is its end; `transfers` are under way."""

    __slots__ = ("id", "knocked", "line", "peer", "since", "state", "tenant", "transfers", "used")

    def __init__(self, tenant: str, line: Line, peer: PairAddress, now: float) -> None:
        self.id = secrets.token_hex(SESSION_DIGITS // 2)
        self.tenant = tenant
        self.line = line
        self.peer = peer
        self.state: State = "preparing"
        # When it came to this state, or was used last.
        self.since = now
        # When its client was last asked whether it is still there.
        self.knocked = now
        self.used = UsedNumbers()
        self.transfers = 0


class SessionTable:
    """All sessions of a node: at most `most`, `most_per_tenant` of one tenant, half of `most` of
    other nodes."""

    def __init__(
        self, *, most: int, most_per_tenant: int, idle_seconds: float, knock_seconds: float
    ) -> None:
        self.most = most
        self._most_per_tenant = most_per_tenant
        self._idle_seconds = idle_seconds
        self._knock_seconds = knock_seconds
        self._sessions: dict[str, Session] = {}
        self._counts: dict[str, int] = {}
        self._parties: Counter[str] = Counter()
        self._places: list[tuple[str, PairAddress]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    @contextmanager
    def place(self, tenant: str, peer: PairAddress) -> Iterator[None]:
        """Counts as one more of the tenant's to `peer` while there is none yet. TooManySessions."""
        if len(self._sessions) + self.places >= self.most:
            raise TooManySessions(f"this node has {self.most} RDMA sessions already")
        if party(tenant) == NODE_PREFIX:
            nodes = sum(1 for other, _ in self._places if party(other) == NODE_PREFIX)
            if self._parties[NODE_PREFIX] + nodes >= max(1, self.most // 2):
                raise TooManySessions("other nodes have half of this one's RDMA sessions already")
        own = self.count(tenant) + sum(1 for other, _ in self._places if other == tenant)
        if own >= self._most_per_tenant:
            raise TooManySessions(f"{tenant} has {own} RDMA sessions already")
        place = (tenant, peer)
        self._places.append(place)
        try:
            yield
        finally:
            # One that is equal is as good.
            self._places.remove(place)

    @property
    def places(self) -> int:
        """How many are kept for sessions that are yet to be."""
        return len(self._places)

    def having(self, peer: PairAddress) -> Iterator[str]:
        """The tenants who keep a place for that queue pair."""
        return (tenant for tenant, other in self._places if other.is_same_pair(peer))

    def count(self, tenant: str) -> int:
        """How many a tenant has."""
        return self._counts.get(tenant, 0)

    @property
    def parties(self) -> int:
        """How many have any."""
        return len(self._parties)

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._counts[session.tenant] = self.count(session.tenant) + 1
        self._parties[party(session.tenant)] += 1

    def find(self, id_: str, tenant: str) -> Session | None:
        """A tenant's own session; another's is as good as none."""
        session = self._sessions.get(id_)
        return session if session is not None and session.tenant == tenant else None

    def remove(self, session: Session) -> None:
        """It has ended. Safe to call twice."""
        session.state = "ended"
        if self._sessions.pop(session.id, None) is None:
            return
        self._counts[session.tenant] -= 1
        if not self._counts[session.tenant]:
            del self._counts[session.tenant]
        own = party(session.tenant)
        self._parties[own] -= 1
        if not self._parties[own]:
            del self._parties[own]

    def overdue(self, now: float) -> list[tuple[Session, str]]:
        """The sessions that are to end, and why."""
        found = []
        for each in self._sessions.values():
            for_seconds = now - each.since
            if each.state == "preparing" and for_seconds >= PREPARE_SECONDS:
                found.append((each, "never ready"))
            elif each.state == "ready" and not each.transfers and for_seconds >= self._idle_seconds:
                found.append((each, "not used"))
        return found

    def resting(self, now: float) -> list[Session]:
        """The sessions of which nothing was heard for long: their clients are to be asked."""
        return [
            each
            for each in self._sessions.values()
            if each.state == "ready"
            and each.line.at_rest
            and now - max(each.since, each.knocked) >= self._knock_seconds
        ]
