"""The port that other nodes ask. Everything on it is proven before it is looked at.

Each connection is a task that answers one request after the other. A request that takes its time
is kept alive by a 102 every second; bytes go out as they are there, from files where they lie in
one, and never faster than they are taken. Who takes nothing for a while is cut.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256

import structlog

from gateway.cluster.proof import (
    NODE,
    SERVER_NONCE,
    SIGNATURE,
    Prover,
    Verifier,
    proven_headers,
)
from gateway.config import parse_listen
from gateway.errors import FeedrackError
from gateway.peers.request import (
    HEAD_BYTES,
    PeerAnswer,
    PeerRequest,
    RequestHead,
    Route,
    WrongRequestError,
    parse_request,
    render_answer,
)
from gateway.store.giving import Given
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.client import BODY_HASH
from gateway.tiers.wire import Watch, Wire
from gateway.tiers.wire_heads import MalformedAnswerError

_CONNECTIONS = 4096
_REQUESTS = 1024
_BACKLOG = 1024
_IDLE_SECONDS = 60.0
_TAKE_SECONDS = 20.0
_BEAT_SECONDS = 1.0
_ALIVE = b"HTTP/1.1 102 Processing\r\n\r\n"
_BLOCK_BYTES = 262_144
_REGION_BYTES = 2 * 1024**2
_FILES_FROM_BYTES = 65_536
# Up to here head and first block are joined and leave in one packet.
_JOINED_BYTES = 65_536
_DRAIN_SECONDS = 10.0

log = structlog.get_logger()


class PeerPort:
    """Answers the members. `add` routes before `start`; `port` is the one that was bound."""

    def __init__(
        self,
        node: str,
        listen: str,
        prover: Prover,
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.monotonic,
        idle_seconds: float = _IDLE_SECONDS,
        take_seconds: float = _TAKE_SECONDS,
        most_requests: int = _REQUESTS,
    ) -> None:
        self._node = node
        self._listen = listen
        self._prover = prover
        self._verifier = Verifier(prover, now=now)
        self._metrics = metrics
        self._idle_watch = Watch(idle_seconds)
        self._take_watch = Watch(take_seconds)
        self._most_requests = most_requests
        self._routes: dict[tuple[str, str], Route] = {}
        self._listeners: list[socket.socket] = []
        self._wires: dict[Wire, asyncio.Task[None]] = {}
        self._requests = 0
        self._accepting: list[asyncio.Task[None]] = []
        self._closing = False
        self.port = 0

    def add(self, route: Route) -> None:
        """One more thing that is answered here."""
        assert (route.method, route.path) not in self._routes  # noqa: S101 - written here
        self._routes[route.method, route.path] = route

    async def start(self) -> None:
        """Begins to answer. OSError where the address cannot be had."""
        host, port = parse_listen(self._listen, "cluster.listen")
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind, protocol)
            self._listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(_BACKLOG)
            # Where the system is to choose, all addresses get what it chose for the first.
            port = listener.getsockname()[1]
        self.port = port
        self._accepting = [asyncio.create_task(self._accept(each)) for each in self._listeners]

    async def drain(self, timeout: float = _DRAIN_SECONDS) -> None:
        """Takes no new connection, and gives what is being answered some time."""
        self._stop_listening()
        self._closing = True
        deadline = time.monotonic() + timeout
        while self._requests and time.monotonic() < deadline:
            tasks = list(self._wires.values())
            await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Ends everything."""
        self._stop_listening()
        tasks = [*self._accepting, *self._wires.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._idle_watch.close()
        self._take_watch.close()

    def _stop_listening(self) -> None:
        listeners, self._listeners = self._listeners, []
        for task in self._accepting:
            task.cancel()
        for listener in listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                log.error("no peer can be let in", reason=str(error))  # noqa: TRY400
                await asyncio.sleep(_BEAT_SECONDS)
                continue
            if len(self._wires) >= _CONNECTIONS:
                client.close()
                continue
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(client, self._idle_watch)
            task = asyncio.create_task(self._serve(wire))
            self._wires[wire] = task
            task.add_done_callback(partial(self._forget, wire))

    def _forget(self, wire: Wire, _: "asyncio.Task[None]") -> None:
        self._wires.pop(wire, None)

    async def _serve(self, wire: Wire) -> None:
        try:
            while not self._closing:
                wire.watched_by(self._idle_watch)
                raw = await wire.receive_head(HEAD_BYTES)
                wire.watched_by(self._take_watch)
                self._requests += 1
                try:
                    await self._answer(wire, raw)
                finally:
                    self._requests -= 1
        except (WrongRequestError, MalformedAnswerError):
            self._metrics.peer_answers.labels("", "400").inc()
            await self._say_wrong(wire)
        except (OSError, _NotProvenError):
            # They have gone, or are nobody to talk to.
            pass
        except FeedrackError as error:
            log.warning("answer to a peer broken off", reason=str(error))
        except Exception:
            log.exception("a peer's connection failed")
        finally:
            wire.close()

    async def _answer(self, wire: Wire, raw: bytes) -> None:
        head = parse_request(raw)
        # Whoever has no secret gets no further, and hears nothing but no.
        verdict = self._verifier.verify(head.method, head.target, head.headers)
        if verdict == "bad":
            self._metrics.peer_answers.labels("", "403").inc()
            await wire.send(render_answer(403, 0, {}))
            raise _NotProvenError
        body = await _body(wire, head)
        if verdict == "stale":
            await self._send(wire, head, "", PeerAnswer(401))
            return
        path, _, query = head.target.partition("?")
        asker, headers = head.headers.get(NODE, ""), proven_headers(head.headers)
        request = PeerRequest(head.method, path, query, asker, body, headers)
        route = self._routes.get((head.method, path))
        if route is None:
            await self._send(wire, head, "", PeerAnswer(404))
        elif self._requests > self._most_requests:
            await self._send(wire, head, path, PeerAnswer(503))
        else:
            answer = await self._found(wire, route, request)
            await self._send(wire, head, path, answer)

    async def _found(self, wire: Wire, route: Route, request: PeerRequest) -> PeerAnswer:
        """What a route answers; meanwhile the wire is told that somebody is at work."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def beat() -> None:
            nonlocal timer
            try:
                wire.send_now(_ALIVE)
            except OSError:
                # Whoever sends the answer meets it too.
                return
            timer = loop.call_later(_BEAT_SECONDS, beat)

        timer = loop.call_later(_BEAT_SECONDS, beat)
        try:
            return await route.answer(request)
        except Exception:
            log.exception("a peer's request failed", path=route.path)
            return PeerAnswer(500)
        finally:
            timer.cancel()

    async def _send(self, wire: Wire, asked: RequestHead, path: str, answer: PeerAnswer) -> None:
        try:
            self._metrics.peer_answers.labels(path, str(answer.status)).inc()
            length_bytes = answer.length_bytes
            headers = {**answer.headers, NODE: self._node, SERVER_NONCE: self._verifier.nonce}
            proven = self._prover.signed_answer(
                asked.headers.get(SIGNATURE, ""), answer.status, length_bytes, headers
            )
            head = render_answer(answer.status, length_bytes, proven) + answer.body
            if answer.given is None:
                await wire.send(head)
            else:
                await self._send_given(wire, head, answer.given)
            self._metrics.peer_sent_bytes.inc(length_bytes + answer.moved_bytes)
        finally:
            if answer.given is not None:
                await answer.given.reader.close()

    async def _send_given(self, wire: Wire, head: bytes, given: Given) -> None:
        """Sends a head and the bytes behind it, as they are there."""
        reader, position, block = given.reader, given.offset, given.block
        while True:
            left = given.until - position
            region = None
            if left >= _FILES_FROM_BYTES and not block:
                region = reader.region(position, min(left, _REGION_BYTES))
            if region is not None:
                if head:
                    await wire.send(head)
                await wire.send_file(region)
                position += region.size_bytes
            else:
                if not block:
                    block = reader.read_now(position, min(left, _BLOCK_BYTES)) or (
                        await reader.read(position, min(left, _BLOCK_BYTES))
                    )
                if head and len(head) + len(block) <= _JOINED_BYTES:
                    await wire.send(b"".join((head, block)))
                else:
                    if head:
                        await wire.send(head)
                    await wire.send(block)
                position += len(block)
            head = block = b""
            if position >= given.until:
                return
            # A fast peer takes all there is at once: others have their turn.
            await asyncio.sleep(0)

    async def _say_wrong(self, wire: Wire) -> None:
        try:
            await wire.send(render_answer(400, 0, {}))
        except OSError:
            log.debug("a peer that sends no request is gone")


class _NotProvenError(Exception):
    """Nobody who has the secret."""


async def _body(wire: Wire, head: RequestHead) -> bytes:
    """The request's body, as long as it says, and as it is signed."""
    memory = memoryview(bytearray(head.length_bytes))
    got_bytes = 0
    while got_bytes < len(memory):
        size_bytes = await wire.receive_into(memory[got_bytes:], len(memory) - got_bytes)
        if not size_bytes:
            raise ConnectionResetError("the request ended early")
        got_bytes += size_bytes
    body = bytes(memory)
    if body and head.headers.get(BODY_HASH) != sha256(body).hexdigest():
        raise WrongRequestError("the body is not what was signed")
    return body
