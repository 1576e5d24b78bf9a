"""Where connections come in: listening sockets, bound here or by the process before this one."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.config import parse_listen
from gateway.s3.census import Census
from gateway.s3.parting import FAREWELL_SECONDS
from gateway.s3.tls import Certificate

log = structlog.get_logger()

_BACKLOG = 1024
# How many connections one process takes at a wake where no other listens on the socket.
_AT_ONCE = 64
# What the system is out of, so that accepting again at once would only spin.
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_PAUSE_SECONDS = 1.0
# How long a connection is left to those who have fewer. They need a fraction of it to wake up.
_COURTESY_SECONDS = 0.005

Protocols = Callable[[], asyncio.Protocol]


class Door(Protocol):
    """Lets connections in, from `open` until `close`."""

    async def open(self, make: Protocols) -> None:
        """Begins to take connections, each with a protocol that `make` gives. OSError where the
        address cannot be had."""
        ...

    def close(self) -> None:
        """Takes no more. Those that are in stay. Safe to call twice."""
        ...


class Acceptor:
    """Takes connections from listening sockets: `at_once` of them at a wake. With one, whoever of
    those that share a socket is busy takes fewer; `yields` says whether another should have the
    next one, who then has some milliseconds to take it. The sockets are closed with it."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make: Protocols,
        *,
        at_once: int,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
        handshake_timeout_seconds: float | None = None,
        yields: Callable[[], bool] = lambda: False,
    ) -> None:
        self._listeners = list(listeners)
        self._yields = yields
        self._make = make
        self._at_once = at_once
        self._context = context
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._wake, listener)

    def close(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    def _wake(self, listener: socket.socket) -> None:
        if self._yields():
            self._loop.remove_reader(listener.fileno())
            self._loop.call_later(_COURTESY_SECONDS, self._accept_after_all, listener)
        else:
            self._accept(listener)

    def _accept_after_all(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._listen_again(listener)
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._at_once):
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("no connection can be taken", reason=str(error))  # noqa: TRY400
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._listen_again, listener)
                return
            client.setblocking(False)
            task = self._loop.create_task(self._enter(client))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._wake, listener)

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
    """TCP, and TLS with a certificate. `listeners` are sockets that others may listen on too, who
    are all in the `census`."""

    def __init__(
        self,
        listen: str,
        *,
        listeners: Sequence[socket.socket] = (),
        census: Census | None = None,
        certificate: Certificate | None = None,
        handshake_timeout_seconds: float | None = None,
    ) -> None:
        self._listen = listen
        self._listeners = listeners
        self._census = census
        self._certificate = certificate
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._acceptor: Acceptor | None = None
        self.port = port_of(listeners) if listeners else 0

    async def open(self, make: Protocols) -> None:
        listeners = self._listeners or bind(self._listen, "s3.listen")
        self.port = port_of(listeners)
        census = self._census
        if census is not None:
            census.open()
        self._acceptor = Acceptor(
            listeners,
            make,
            at_once=1 if self._listeners else _AT_ONCE,
            context=self._current_context,
            handshake_timeout_seconds=self._handshake_timeout_seconds,
            yields=census.has_more if census is not None else lambda: False,
        )

    def close(self) -> None:
        if self._census is not None:
            self._census.shut()
        if self._acceptor is not None:
            self._acceptor.close()

    def _current_context(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate is not None else None


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
