"""Requests to other nodes: signed, over kept connections, and never waited for beyond a bound.

A connection is made within a second. A node that works on an answer says so every second (102), so
one that says nothing for three is given up; once bytes come, a pause of ten ends the answer. A
member that leaves the cluster has its connections cut at once, whatever was waited for.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from hashlib import sha256
from time import monotonic
from typing import Any, Literal

from gateway.cluster.members import Member, Members
from gateway.cluster.proof import (
    NODE,
    SERVER_NONCE,
    SIGNATURE,
    UNKNOWN_NONCE,
    Prover,
    is_nonce,
)
from gateway.errors import TierUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.wire import Watch, Wire
from gateway.tiers.wire_heads import Head, MalformedAnswerError
from gateway.tiers.wires import Endpoint, Wires

BODY_HASH = "x-feedrack-content-sha256"

_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_BODY_SECONDS = 10.0
# Connections to one node at a time; and how long to wait for one of them.
_CONNECTIONS = 256
_TURN_SECONDS = 5.0
# A nonce may be renewed just as it is used, but hardly twice.
_SIGNINGS = 3

Reason = Literal["connect", "lost", "late", "unproven", "malformed", "busy", "refused"]


class PeerFailed(TierUnavailable):
    """A node cannot be asked, or its answer is of no use. `reason` is for those who count."""

    def __init__(self, member: Member, reason: Reason, what: object) -> None:
        super().__init__(f"node {member.id}: {reason}: {what}")
        self.member = member
        self.reason = reason


class PeerAnswer:
    """A proven answer, its body still to come. Reading raises PeerFailed."""

    def __init__(self, member: Member, head: Head, length_bytes: int, lent: "_Lent") -> None:
        self.member = member
        self.status = head.status
        self.headers = head.headers
        self.left_bytes = length_bytes
        self._persists = head.persists
        self._lent: _Lent | None = lent
        self._end_if_whole()

    async def read_into(self, memory: memoryview) -> int:
        """Puts the next bytes at the beginning of `memory`: how many, 0 at the body's end."""
        if self._lent is None:
            return 0
        try:
            size_bytes = await self._lent.wire.receive_into(
                memory[: self.left_bytes], self.left_bytes
            )
        except TimeoutError as error:
            raise PeerFailed(self.member, "late", error) from error
        except OSError as error:
            raise PeerFailed(self.member, "lost", error) from error
        if not size_bytes:
            raise PeerFailed(self.member, "lost", f"{self.left_bytes} bytes are missing")
        self.left_bytes -= size_bytes
        self._end_if_whole()
        return size_bytes

    async def read(self, size_bytes: int) -> bytes:
        """Exactly so many bytes."""
        memory = memoryview(bytearray(min(size_bytes, self.left_bytes)))
        if len(memory) < size_bytes:
            raise PeerFailed(self.member, "malformed", "the answer is too short")
        got_bytes = 0
        while got_bytes < size_bytes:
            got_bytes += await self.read_into(memory[got_bytes:])
        return bytes(memory)

    def close(self) -> None:
        """Ends it; what was not read is cut off. Safe twice."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.give_back(reusable=False)

    def _end_if_whole(self) -> None:
        if not self.left_bytes and self._lent is not None:
            self._lent.give_back(reusable=self._persists)
            self._lent = None


class PeerClient:
    """Asks members. Everything it raises is PeerFailed."""

    def __init__(
        self,
        members: Members,
        prover: Prover,
        metrics: Metrics,
        *,
        connect_seconds: float = _CONNECT_SECONDS,
        answer_seconds: float = _ANSWER_SECONDS,
        body_seconds: float = _BODY_SECONDS,
    ) -> None:
        self._members = members
        self._prover = prover
        self._metrics = metrics
        self._connect_seconds = connect_seconds
        self._answer_watch = Watch(answer_seconds)
        self._body_watch = Watch(body_seconds)
        # Never used: nodes do not speak TLS to each other.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._lines: dict[str, _Line] = {}
        members.on_change.append(self._cut_leavers)

    async def ask(
        self,
        member: Member,
        target: str,
        *,
        what: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> PeerAnswer:
        """A member's answer to a request, whatever its status but 401 and 403. `what` names it in
        metrics."""
        begun = monotonic()
        try:
            answer = await self._ask(member, method, target, headers or {}, body)
        except PeerFailed as error:
            self._metrics.peer_requests.labels(what, error.reason).inc()
            raise
        self._metrics.peer_requests.labels(what, str(answer.status)).inc()
        self._metrics.peer_seconds.labels(what).observe(monotonic() - begun)
        return answer

    async def ask_whole(
        self,
        member: Member,
        target: str,
        *,
        what: str,
        method: str = "GET",
        body: bytes = b"",
        limit_bytes: int = 1024**2,
    ) -> tuple[int, bytes]:
        """Status and body of a short answer."""
        answer = await self.ask(member, target, what=what, method=method, body=body)
        try:
            if answer.left_bytes > limit_bytes:
                raise PeerFailed(member, "malformed", "the answer is too long")
            return answer.status, await answer.read(answer.left_bytes)
        finally:
            answer.close()

    def close(self) -> None:
        """Cuts all connections."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.wires.close()
        self._answer_watch.close()
        self._body_watch.close()

    async def _ask(
        self, member: Member, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> PeerAnswer:
        line = self._line(member)
        if body:
            headers = {**headers, BODY_HASH: sha256(body).hexdigest()}
        for _ in range(_SIGNINGS):
            proven = self._prover.signed_request(
                method, target, headers, node=self._members.me, server_nonce=line.nonce
            )
            request = _request(method, target, member.peers, proven, body)
            head, lent = await self._exchange(member, line, request)
            answer = self._proven(member, head, lent, proven[SIGNATURE])
            nonce = head.headers.get(SERVER_NONCE, "")
            if is_nonce(nonce):
                line.nonce = nonce
            if head.status != 401:
                lent.wire.watched_by(self._body_watch)
                return answer
            answer.close()
        raise PeerFailed(member, "refused", "it does not take our signature")

    def _proven(self, member: Member, head: Head, lent: "_Lent", asked: str) -> PeerAnswer:
        length_bytes = head.length_bytes
        if head.status == 403:
            lent.give_back(reusable=False)
            raise PeerFailed(member, "refused", "it knows another secret")
        if length_bytes is None or head.chunked:
            lent.give_back(reusable=False)
            raise PeerFailed(member, "malformed", "an answer of unknown length")
        genuine = head.headers.get(NODE) == member.id and self._prover.signs_answer(
            asked, head.status, length_bytes, head.headers
        )
        if not genuine:
            lent.give_back(reusable=False)
            raise PeerFailed(member, "unproven", "who answers is not who was asked")
        return PeerAnswer(member, head, length_bytes, lent)

    async def _exchange(
        self, member: Member, line: "_Line", request: bytes
    ) -> "tuple[Head, _Lent]":
        try:
            lent = await self._lend(member, line, fresh=False)
            try:
                return await lent.wire.ask(request), lent
            except ConnectionError:
                lent.give_back(reusable=False)
                # A node closes what is idle when it likes, also just as it is asked.
                kept = lent.wire.idle_since and not lent.wire.answered
                if not kept or self._lines.get(member.id) is not line:
                    raise
            except BaseException:
                lent.give_back(reusable=False)
                raise
            lent = await self._lend(member, line, fresh=True)
            try:
                return await lent.wire.ask(request), lent
            except BaseException:
                lent.give_back(reusable=False)
                raise
        except MalformedAnswerError as error:
            raise PeerFailed(member, "malformed", error) from error
        except TimeoutError as error:
            raise PeerFailed(member, "late", error) from error
        except OSError as error:
            raise PeerFailed(member, "lost", error) from error

    async def _lend(self, member: Member, line: "_Line", *, fresh: bool) -> "_Lent":
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await line.turns.acquire()
        except TimeoutError as error:
            raise PeerFailed(member, "busy", "all connections are in use") from error
        try:
            wire = await line.wires.take(line.endpoint, fresh=fresh)
        except OSError as error:
            line.turns.release()
            raise PeerFailed(member, "connect", error) from error
        except BaseException:
            line.turns.release()
            raise
        wire.watched_by(self._answer_watch)
        return _Lent(line, wire)

    def _line(self, member: Member) -> "_Line":
        line = self._lines.get(member.id)
        if line is None or line.peers != member.peers or line.incarnation != member.incarnation:
            if line is not None:
                line.wires.close()
            wires = Wires(
                limit=_CONNECTIONS,
                connect_seconds=self._connect_seconds,
                read_seconds=_ANSWER_SECONDS,
                tls=self._tls,
                create=_socket,
            )
            line = self._lines[member.id] = _Line(member, _endpoint(member), wires)
        return line

    def _cut_leavers(self) -> None:
        for id_ in [id_ for id_ in self._lines if self._members.get(id_) is None]:
            self._lines.pop(id_).wires.close()


class _Line:
    """The connections to one run of one node, and its nonce as last heard."""

    def __init__(self, member: Member, endpoint: Endpoint, wires: Wires) -> None:
        self.peers = member.peers
        self.incarnation = member.incarnation
        self.endpoint = endpoint
        self.wires = wires
        self.turns = asyncio.Semaphore(_CONNECTIONS)
        self.nonce = UNKNOWN_NONCE


class _Lent:
    """A connection in use."""

    __slots__ = ("_back", "_line", "wire")

    def __init__(self, line: _Line, wire: Wire) -> None:
        self._line = line
        self.wire = wire
        self._back = False

    def give_back(self, *, reusable: bool) -> None:
        """Ends its use. Safe twice."""
        if not self._back:
            self._back = True
            self._line.turns.release()
            usable = reusable and not self.wire.closed
            self._line.wires.give_back(self.wire, self._line.endpoint, reusable=usable)


def _endpoint(member: Member) -> Endpoint:
    host, _, port = member.peers.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise PeerFailed(member, "connect", "it does not say where it can be asked")
    return Endpoint(host.strip("[]"), int(port), tls=False)


def _request(method: str, target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"content-length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a header's value has a line break in it")
    return text.encode("ascii") + b"\r\n\r\n" + body


def _socket(address: Any) -> socket.socket:
    return socket.socket(address[0], address[1], address[2])
