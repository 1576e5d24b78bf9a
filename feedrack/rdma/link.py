"""The connection to a gateway: a session, the tokens of its requests, and the fence.

A token that went out lets the gateway at memory for as long as the queue pair stands. So whoever
does not learn how a request ended has the session fenced before the memory is used for anything
else; all other requests of the session then end, too, and the next one connects anew.
"""

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from feedrack.client import TROUBLE, Answer, said_of
from feedrack.client import Client as HttpClient
from feedrack.rdma.memory import Memory
from feedrack.rdma.opening import Cause, NoRdma, Opened, Wanted, open_once
from gateway.rdma.device import Pair, VerbFailed
from gateway.rdma.token import Token, render_token
from gateway.rdma.wire import (
    SESSION_QUERY,
    BadDocument,
    Prepare,
    Prepared,
    Step,
    read_document,
)
from gateway.rdma.wire import Session as SessionDocument

log = logging.getLogger("feedrack.rdma")

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_MOST_DOUBLINGS = 32
# How long other threads wait for one that connects, from when it began to.
_OTHERS_WAIT_SECONDS = 2.0
# A gateway learns RDMA by being configured anew, other services never do.
_NO_GATEWAY_SECONDS = 300.0
NODE_HEADER = "x-feedrack-node"


class Session:
    """A connected queue pair, and which numbers its tokens have used. For any thread."""

    def __init__(self, opened: Opened, pair: Pair, prepared: Prepared, node: str) -> None:
        self.opened = opened
        self.id = prepared.session
        self.idle_seconds = prepared.idle_seconds
        # Which of the gateways behind one name it is with.
        self.node = node
        self.used_at = float("-inf")
        # How many requests have a token of it. The link's lock guards it.
        self.leases = 0
        # Whether anything was moved by it.
        self.proven = False
        self._pair = pair
        self._numbers = itertools.count()

    def is_own(self, headers: Mapping[str, str]) -> bool:
        """Whether an answer is the gateway's that this session is with: not one of a proxy, or of
        another node behind the same name."""
        return bool(self.node) and headers.get(NODE_HEADER) == self.node

    def token(self, memory: Memory) -> str:
        """A token for this memory, good for one request. VerbFailed."""
        address, rkey = memory.locate(self.opened)
        token = Token(self.id, next(self._numbers), address, memory.size_bytes, rkey)
        return render_token(token)

    def end(self) -> None:
        """Fences it: the gateway does not touch any memory here any more. Safe to call twice.
        MemoryLost."""
        self.opened.fence(self._pair)


class Lease(NamedTuple):
    """One request's right to move by RDMA."""

    session: Session
    token: str


class _Attempt:
    """One thread's attempt to connect, for which others wait `until`."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.over = threading.Event()


class Link:
    """One client's way to its gateway by RDMA, opened at the first need. For any thread; a child
    calls `forked` before anything else.

    One thread connects; its lock is never held while the gateway is waited for."""

    def __init__(
        self, http: HttpClient, wanted: Wanted, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._http = http
        self._wanted = wanted
        self._now = now
        self.forked()

    def forked(self) -> None:
        """Begins at the beginning, as a process does that has nothing open."""
        self._lock = threading.Lock()
        self._opened: Opened | None = None
        self._session: Session | None = None
        self._attempt: _Attempt | None = None
        self._failures = 0
        self._trouble: Cause | None = None
        self._not_before = float("-inf")

    def opened(self) -> Opened:
        """The device. NoRdma."""
        with self._lock:
            return self._device()

    def lease(self, memory: Memory) -> Lease:
        """A token for this memory, on a session that stands. Where another thread is connecting,
        it is waited for 2 seconds. To be given back. NoRdma, and Unavailable where the endpoint
        does not even answer who it is."""
        session = self._standing()
        try:
            return Lease(session, session.token(memory))
        except BaseException as error:
            self._let_go(session)
            if isinstance(error, (VerbFailed, ValueError)):
                raise NoRdma("memory", f"the memory cannot be registered: {error}") from error
            raise

    def give_back(self, lease: Lease) -> None:
        """Its request is over, however it ended. Until then the session does not rest."""
        self._let_go(lease.session)

    def succeeded(self, lease: Lease) -> None:
        """A request moved by RDMA."""
        lease.session.proven = True
        self._failures = 0

    def declined(self, lease: Lease, headers: dict[str, str]) -> None:
        """The gateway did not know the token's session, or had no part in it."""
        why = "the gateway has ended the session"
        if not lease.session.is_own(headers):
            # Another one behind the same name. Whoever sent it there may have sent it to the
            # session's own before, which is at the memory.
            why = "another node answered: RDMA needs the address of one node"
        self.fence(lease, Cause("gateway", why))

    def fence(self, lease: Lease, why: Cause) -> None:
        """Once this returns, the gateway neither reads nor writes any memory of this process's.
        MemoryLost; no request meets the session again, however this ends."""
        session = lease.session
        with self._lock:
            if self._session is session:
                self._session = None
                self._pause(why, proven=session.proven)
        session.end()
        log.debug("rdma session ended: %s", why.text)

    def close(self) -> None:
        """Ends session and device; what was registered is no more. MemoryLost, where all else is
        ended."""
        with self._lock:
            session, self._session = self._session, None
            opened, self._opened = self._opened, None
            # Whoever connects finds out that it was in vain.
            self._attempt = None
        try:
            if session is not None:
                session.end()
        finally:
            if session is not None:
                self._cancel(session.id)
            if opened is not None:
                opened.close()

    def _device(self) -> Opened:
        if self._opened is None:
            self._opened = open_once(self._wanted, self._now)
        return self._opened

    def _standing(self) -> Session:
        """The session; made here, or by another thread that began before. NoRdma, Unavailable."""
        while True:
            with self._lock:
                opened = self._device()
                session = self._session
                if session is not None and self._has_rested(session):
                    # The gateway has ended it by now.
                    self._session = None
                    session.end()
                    session = None
                if session is not None:
                    self._hold(session)
                    return session
                attempt = self._attempt
                if attempt is None:
                    if self._trouble is not None and self._now() < self._not_before:
                        raise NoRdma(*self._trouble)
                    attempt = self._attempt = _Attempt(self._now() + _OTHERS_WAIT_SECONDS)
                    break
            if not attempt.over.wait(max(0.0, attempt.until - self._now())):
                raise NoRdma("connect", "another thread is connecting")
        try:
            return self._connected(opened, attempt)
        finally:
            with self._lock:
                if self._attempt is attempt:
                    self._attempt = None
            attempt.over.set()

    def _connected(self, opened: Opened, attempt: _Attempt) -> Session:
        """A new session, which is the link's from now on. NoRdma, Unavailable."""
        if not self._http.finds_gateway():
            cause = Cause("gateway", "the endpoint is no feedrack gateway")
            with self._lock:
                self._trouble, self._not_before = cause, self._now() + _NO_GATEWAY_SECONDS
            raise NoRdma(*cause)
        try:
            session = self._connect(opened)
        except NoRdma as trouble:
            with self._lock:
                if self._attempt is attempt:
                    self._pause(Cause(trouble.reason, str(trouble)), proven=False)
            raise
        with self._lock:
            if self._attempt is attempt:
                self._session = session
                self._hold(session)
                return session
        session.end()
        self._cancel(session.id)
        raise NoRdma("connect", "the client was closed meanwhile")

    def _hold(self, session: Session) -> None:
        session.used_at = self._now()
        session.leases += 1

    def _let_go(self, session: Session) -> None:
        with self._lock:
            session.leases -= 1
            # The gateway counts from the end of a transfer, too.
            session.used_at = self._now()

    def _has_rested(self, session: Session) -> bool:
        return not session.leases and self._now() - session.used_at >= session.idle_seconds

    def _connect(self, opened: Opened) -> Session:
        """Prepare, connect, ready. NoRdma."""
        try:
            pair = opened.pair()
        except VerbFailed as error:
            raise NoRdma("connect", f"there is no queue pair: {error}") from error
        prepared: Prepared | None = None
        try:
            answer = self._ask("prepare", Prepare(pair.address), 200)
            prepared = _read(answer)
            opened.connect(pair, prepared.address)
            self._ask("ready", SessionDocument(prepared.session), 204)
        except BaseException as error:
            opened.fence(pair)
            if prepared is not None:
                self._cancel(prepared.session)
            if isinstance(error, (*TROUBLE, VerbFailed)):
                raise NoRdma("connect", f"not connected: {error!r}") from error
            raise
        return Session(opened, pair, prepared, answer.headers.get(NODE_HEADER, ""))

    def _pause(self, trouble: Cause, *, proven: bool) -> None:
        """After a failure, how long not to connect: not at all where all had been well."""
        self._failures += 1
        self._trouble = trouble
        # A job that runs for days fails more often than a float has powers of two.
        doubled = 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS)
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * doubled)
        # Half of it by chance: a gateway's clients all lose it at the same moment.
        pause = longest * (0.5 + random.random() / 2)  # noqa: S311
        self._not_before = self._now() + (0.0 if proven and self._failures == 1 else pause)

    def _ask(self, step: Step, document: msgspec.Struct, expected: int) -> Answer:
        """The answer to a step. NoRdma where it is not the one expected."""
        answer = self._http.ask_service(((SESSION_QUERY, step),), msgspec.json.encode(document))
        if answer.status == 501:
            raise NoRdma("gateway", f"the gateway has no RDMA: {said_of(answer)}")
        if answer.status != expected:
            raise NoRdma("connect", f"{step}: {answer.status} {said_of(answer)}")
        return answer

    def _cancel(self, session: str) -> None:
        try:
            self._ask("cancel", SessionDocument(session), 204)
        except (*TROUBLE, NoRdma) as error:
            # The gateway asks for a sign of life, and ends it then.
            log.debug("rdma session not cancelled: %r", error)


def _read(answer: Answer) -> Prepared:
    try:
        return read_document(Prepared, answer.body)
    except BadDocument as error:
        raise NoRdma("connect", f"the gateway's answer is off: {error}") from error
