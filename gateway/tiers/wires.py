"""The connections that are kept for the next request, and how new ones are made."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any

from msgspec import Struct

from gateway.tiers.wire import Watch, Wire

# Services close what is idle without a word, some after twenty seconds.
_IDLE_SECONDS = 15.0


class Endpoint(Struct, frozen=True):
    """Whom to connect to."""

    host: str
    port: int
    tls: bool


class Wires:
    """Up to `limit` connections, over all endpoints. `create`: a socket for an address."""

    def __init__(
        self,
        *,
        limit: int,
        connect_seconds: float,
        read_seconds: float,
        tls: ssl.SSLContext,
        create: Callable[[Any], socket.socket],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._turns = asyncio.Semaphore(limit)
        self._connect_seconds = connect_seconds
        self._watch = Watch(read_seconds)
        self._tls = tls
        self._create = create
        self._now = now
        self._idle: dict[Endpoint, list[Wire]] = {}
        self._busy: set[Wire] = set()

    async def take(self, endpoint: Endpoint, *, fresh: bool = False) -> Wire:
        """A connection of one's own until `give_back`; waits for one. `fresh`: a new one. OSError,
        TimeoutError where none can be made."""
        await self._turns.acquire()
        try:
            wire = (None if fresh else self._kept(endpoint)) or await self._connect(endpoint)
        except BaseException:
            self._turns.release()
            raise
        self._busy.add(wire)
        return wire

    def give_back(self, wire: Wire, endpoint: Endpoint, *, reusable: bool) -> None:
        """Ends the use of a connection. Safe twice."""
        if wire not in self._busy:
            return
        self._busy.discard(wire)
        self._turns.release()
        if not reusable:
            wire.close()
            return
        wire.rest()
        wire.idle_since = self._now()
        idle = self._idle.setdefault(endpoint, [])
        idle.append(wire)
        # The oldest are at the front, and will hardly be asked for.
        while idle and self._is_old(idle[0]):
            idle.pop(0).close()

    def close(self) -> None:
        """Cuts all connections, those in use as well."""
        self._watch.close()
        for wire in (*self._busy, *(wire for idle in self._idle.values() for wire in idle)):
            wire.close()
        self._idle.clear()

    def _kept(self, endpoint: Endpoint) -> Wire | None:
        idle = self._idle.get(endpoint)
        while idle:
            wire = idle.pop()
            if not self._is_old(wire) and wire.is_quiet():
                return wire
            wire.close()
        return None

    def _is_old(self, wire: Wire) -> bool:
        return self._now() - wire.idle_since > _IDLE_SECONDS

    async def _connect(self, endpoint: Endpoint) -> Wire:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_seconds):
            addresses = await loop.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM
            )
            for address in addresses[:-1]:
                try:
                    # An address that leads nowhere must not take the time of all.
                    async with asyncio.timeout(self._connect_seconds / 4):
                        return await self._connect_to(endpoint, address)
                except OSError:
                    continue
            return await self._connect_to(endpoint, addresses[-1])

    async def _connect_to(self, endpoint: Endpoint, address: Any) -> Wire:
        sock = self._create(address)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, address[4])
            if endpoint.tls:
                sock = self._tls.wrap_socket(
                    sock, server_hostname=endpoint.host, do_handshake_on_connect=False
                )
            wire = Wire(sock, self._watch)
        except BaseException:
            sock.close()
            raise
        try:
            await wire.handshake()
        except BaseException:
            wire.close()
            raise
        return wire
