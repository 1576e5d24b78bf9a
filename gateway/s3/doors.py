"""Where connections come in: listening sockets, bound here or by the process before this one."""

import asyncio
import errno
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.config import parse_listen
from gateway.s3.parting import FAREWELL_SECONDS
from gateway.s3.tls import Certificate

log = structlog.get_logger()

_BACKLOG = 1024
# How many connections one process takes at a wake where no other listens on the socket.
_AT_ONCE = 64
# What the system is out of, so that accepting again at once would only spin.
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_PAUSE_SECONDS = 1.0
# A process that is full leaves clients to the others that listen. Those that nobody has taken for
# so long are let in all the same, to be told that there are too many.
_LEFT_SECONDS = 1.0
_LOOK_SECONDS = 0.05

Protocols = Callable[[], asyncio.Protocol]


class Door(Protocol):
    """Lets connections in, from `open` until `close`."""

    async def open(self, make: Protocols, room: Callable[[], int]) -> None:
        """Begins to take connections, each with a protocol that `make` gives. `room` says how many
        more are welcome; whether others are taken too is the door's to know. OSError where the
        address cannot be had."""
        ...

    def close(self) -> None:
        """Takes no more. Those that are in stay. Safe to call twice."""
        ...


class Acceptor:
    """Takes connections from listening sockets: `at_once` of them at a wake. With one, whoever of
    those that share a socket is busy takes fewer. Where `room` has none left, clients are left to
    the others, and taken only when nobody takes them. The sockets are closed with it."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make: Protocols,
        *,
        at_once: int,
        room: Callable[[], int] | None = None,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
        handshake_timeout_seconds: float | None = None,
    ) -> None:
        self._listeners = list(listeners)
        self._make = make
        self._at_once = at_once
        self._room = room
        self._context = context
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._at_once):
            if not self._has_room():
                self._loop.remove_reader(listener.fileno())
                self._wait_for_room(listener, None)
                return
            try:
                if not self._take(listener):
                    return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("no connection can be taken", reason=str(error))  # noqa: TRY400
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._listen_again, listener)
                return

    def _take(self, listener: socket.socket) -> bool:
        """Takes a connection in. False where there is none; OSError where it cannot be had."""
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        client.setblocking(False)
        task = self._loop.create_task(self._enter(client))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)
        return True

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    # Full

    def _has_room(self) -> bool:
        return self._room is None or self._room() > len(self._entering)

    def _wait_for_room(self, listener: socket.socket, left_since: float | None) -> None:
        """Looks from time to time. `left_since`: since when there always was a client left."""
        if listener not in self._listeners:
            return
        if self._has_room():
            self._listen_again(listener)
            return
        now = self._loop.time()
        if not _has_client(listener):
            left_since = None
        elif left_since is None:
            left_since = now
        elif now - left_since >= _LEFT_SECONDS and not self._turn_away(listener):
            left_since = None
        self._loop.call_later(_LOOK_SECONDS, self._wait_for_room, listener, left_since)

    def _turn_away(self, listener: socket.socket) -> bool:
        """Lets clients in that will find no room: the others are full too. Whether there are
        more."""
        try:
            return all(self._take(listener) for _ in range(_AT_ONCE))
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            log.error("no connection can be taken", reason=str(error))  # noqa: TRY400
            return False

    async def _enter(self, client: socket.socket) -> None:
        # Of this moment, so that a certificate read again serves the next handshake.
        context = self._context()
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                client,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout_seconds if context else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if context else None,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            # The client has gone again, or speaks no TLS that is spoken here.
            log.debug("connection not established", reason=str(error))


class TcpDoor:
    """TCP, and TLS with a certificate. `listeners` are sockets that others listen on too: they are
    left clients that this process has no room for."""

    def __init__(
        self,
        listen: str,
        *,
        listeners: Sequence[socket.socket] = (),
        certificate: Certificate | None = None,
        handshake_timeout_seconds: float | None = None,
    ) -> None:
        self._listen = listen
        self._listeners = listeners
        self._certificate = certificate
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._acceptor: Acceptor | None = None
        self.port = port_of(listeners) if listeners else 0

    async def open(self, make: Protocols, room: Callable[[], int]) -> None:
        listeners = self._listeners or bind(self._listen, "s3.listen")
        self.port = port_of(listeners)
        self._acceptor = Acceptor(
            listeners,
            make,
            at_once=1 if self._listeners else _AT_ONCE,
            room=room if self._listeners else None,
            context=self._current_context,
            handshake_timeout_seconds=self._handshake_timeout_seconds,
        )

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def _current_context(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate is not None else None


def _has_client(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


def port_of(listeners: Sequence[socket.socket]) -> int:
    """The port that sockets from `bind` listen on."""
    return int(listeners[0].getsockname()[1])


def bind(listen: str, where: str) -> list[socket.socket]:
    """Listening sockets for all addresses of `listen`, on one port. OSError where one is taken;
    ConfigError names `where`."""
    host, port = parse_listen(listen, where)
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(error.errno, f"{where}: {listen}: {error.strerror}") from error
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(_BACKLOG)
            # Where the system is to choose, all addresses get what it chose for the first.
            port = listener.getsockname()[1]
    except OSError as error:
        for listener in listeners:
            listener.close()
        said = f"error while attempting to bind on {listen}: {error.strerror}".lower()
        raise OSError(error.errno, said) from error
    return listeners
