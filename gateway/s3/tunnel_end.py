"""The keeper's door: tunnels from its workers, each of which is a client's connection here.

Only processes of this user that can reach the socket's folder get in. See docs/workers.md; the
other end is `s3/tunnel.py`.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import structlog

from gateway.config import LimitsConfig
from gateway.s3 import remainder
from gateway.s3.connection import Connection
from gateway.s3.doors import Acceptor, Protocols
from gateway.s3.frames import FrameError, FrameReader, Kind, counted, frame, header
from gateway.s3.lanes import Gate
from gateway.s3.tunnel import Client

log = structlog.get_logger()

_CREDENTIALS = struct.Struct("3i")
# Up to here a frame's header and payload are joined: a copy costs less than a system call.
_JOINED_BYTES = 65_536
_BUFFER_BYTES = 1024**2
_AT_ONCE = 64
# Stands for the worker's TLS where a client has it: nothing is encrypted by it here.
_SECURE = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


class TunnelledConnection(Connection):
    """A client's connection that a worker holds. It ends when the worker says so; when this process
    ends first, only the tunnel does, and that at rest."""

    def __init__(self, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(gate, loop)
        self.retires = False
        self.departs = False
        self.on_rest: Callable[[], None] = lambda: None

    @property
    def leaving(self) -> bool:
        return self.retires

    @property
    def ends_at_rest(self) -> bool:
        # The tunnel does, which the worker must be able to tell from the client's connection.
        return False

    def rested(self) -> None:
        super().rested()
        self.on_rest()

    def depart(self) -> None:
        self.departs = True
        self.on_rest()

    def sweep(self, now: float) -> None:
        super().sweep(now)
        self.on_rest()


def tunnel_limits(limits: LimitsConfig) -> LimitsConfig:
    """What is left for the keeper to look after: workers count their clients, and cut those who
    take nothing, or ask nothing."""
    return msgspec.structs.replace(
        limits, connections=2**31, write_timeout_seconds=0.0, idle_timeout_seconds=0.0
    )


class TunnelDoor:
    """Takes tunnels in on a listening Unix socket that the supervisor holds. `on_lines` hears how
    many workers have a line here, `on_notes` what they note; `remainder` gives the bytes that a
    worker cannot read itself."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        leaving_seconds: float,
        on_lines: Callable[[int], None],
        on_notes: Callable[[bytes], None],
        remainder: remainder.Source,
    ) -> None:
        self._listener = listener
        self._leaving_seconds = leaving_seconds
        self._on_lines = on_lines
        self._on_notes = on_notes
        self.remainder = remainder
        self._sending: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None
        self._lines: set[TunnelEnd] = set()
        self.open_to_clients = False

    async def open(self, make: Protocols) -> None:
        self.open_to_clients = True
        self._acceptor = Acceptor([self._listener], lambda: TunnelEnd(self, make), at_once=_AT_ONCE)

    def close(self) -> None:
        """Takes no more tunnels; the next keeper will. Lines stay until their workers end them."""
        if self.open_to_clients:
            self.open_to_clients = False
            for line in self._lines:
                line.say_leaving(self._leaving_seconds)
        if self._acceptor is not None:
            self._acceptor.close()

    def spawn(self, sending: Coroutine[Any, Any, None]) -> None:
        """Sends a remainder, on the side."""
        task = asyncio.create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def end(self) -> None:
        """Ends what is still being sent, and tells the workers that this keeper is gone."""
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for line in list(self._lines):
            line.end()

    def take_line(self, line: "TunnelEnd") -> None:
        self._lines.add(line)
        self._on_lines(len(self._lines))

    def lose_line(self, line: "TunnelEnd") -> None:
        if line in self._lines:
            self._lines.remove(line)
            self._on_lines(len(self._lines))

    def take_notes(self, notes: bytes) -> None:
        self._on_notes(notes)


class TunnelEnd(asyncio.Protocol):
    """The keeper's end of one Unix connection: a tunnel, or a line."""

    def __init__(self, door: TunnelDoor, make: Protocols) -> None:
        self._door = door
        self._make = make
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._client: TunnelledConnection | None = None
        self._wire: _Wire | None = None
        self._is_line = False
        self._reads = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._received_bytes = 0
        self._rest_bytes = 0
        # Whether the worker has been told that what came since the last rest is acted upon.
        self._gone_on = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._transport = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("socket")
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(raw)
        if user != os.getuid():
            log.warning("a tunnel of another user was refused", user=user)
            wire.abort()
            return
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None  # noqa: S101 - data came over it
        try:
            for kind, payload in self._frames.feed(data):
                if self._transport.is_closing():
                    return
                self._heed(kind, payload)
        except (FrameError, msgspec.MsgspecError):
            log.exception("a worker's tunnel is broken")
            self._transport.abort()

    def _heed(self, kind: Kind, payload: bytes) -> None:
        client, wire = self._client, self._wire
        if client is None and not self._is_line and not self._reads:
            self._be(kind, payload)
        elif kind is Kind.NOTES and self._is_line:
            self._door.take_notes(payload)
        elif client is None or wire is None:
            raise FrameError(f"{kind.name} has no place here")
        elif kind is Kind.DATA or kind is Kind.ASK:
            self._take(client, payload, asked=kind is Kind.ASK)
        elif kind is Kind.EOF:
            if not client.eof_received():
                wire.close()
        elif kind is Kind.RETIRE:
            client.retires = True
        else:
            raise FrameError(f"{kind.name} is not for a keeper")

    def _be(self, kind: Kind, payload: bytes) -> None:
        """Heeds the first frame, which says what this connection is for."""
        if kind is Kind.BEGIN:
            self._begin(msgspec.json.decode(payload, type=Client))
        elif kind is Kind.LINE:
            self._is_line = True
            self._door.take_line(self)
            self._write(frame(Kind.HERE))
        elif kind is Kind.READ:
            self._reads = True
            self._door.spawn(self._send_remainder(payload))
        else:
            raise FrameError(f"{kind.name} does not come first")

    async def _send_remainder(self, wanted: bytes) -> None:
        whole = await remainder.send(wanted, self._door.remainder, self._write_on, self._drain)
        if self._transport is not None:
            if whole:
                self._transport.close()
            else:
                self._transport.abort()

    def _write_on(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport is None:
            raise ConnectionResetError("the worker has what it wanted")
        self._transport.write(data)

    async def _drain(self) -> None:
        await self._writable.wait()

    def _begin(self, told: Client) -> None:
        assert self._transport is not None  # noqa: S101 - data came over it
        wire = self._wire = _Wire(self, self._transport, told)
        if not self._door.open_to_clients:
            wire.close()
            return
        client = self._make()
        assert isinstance(client, TunnelledConnection)  # noqa: S101 - the keeper makes no others
        self._client = client
        client.retires = told.leaving
        client.on_rest = self._look_for_rest
        client.connection_made(wire)

    def _take(self, client: TunnelledConnection, data: bytes, *, asked: bool) -> None:
        assert self._transport is not None  # noqa: S101 - data came over it
        if asked and not self._gone_on:
            # Before anything is done: a worker that has given up is found out here.
            self._gone_on = True
            self._transport.write(frame(Kind.GO))
            if self._transport.is_closing():
                return
        self._received_bytes += len(data)
        client.data_received(data)
        # What was answered at once leaves nothing that would say so later.
        self._look_for_rest()

    def _look_for_rest(self) -> None:
        client, wire = self._client, self._wire
        if client is None or wire is None or wire.is_closing() or not client.at_rest:
            return
        if self._received_bytes != self._rest_bytes:
            self._rest_bytes = self._received_bytes
            self._gone_on = False
            self._write(counted(Kind.DONE, self._received_bytes))
        if client.departs:
            wire.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def received_bytes(self) -> int:
        return self._received_bytes

    def say_leaving(self, seconds: float) -> None:
        self._write(counted(Kind.LEAVING, round(seconds)))

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._client is not None:
            self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._door.lose_line(self)
        if self._client is not None:
            self._client.connection_lost(exc)


class _Wire(asyncio.Transport):
    """A client's connection as its worker has it, in the shape of a transport."""

    def __init__(self, end: TunnelEnd, tunnel: asyncio.Transport, client: Client) -> None:
        super().__init__(
            {
                "peername": (client.remote, 0),
                "sslcontext": _SECURE if client.secure else None,
            }
        )
        self._end = end
        self._tunnel = tunnel
        self._closing = False
        self._shut = False

    def write(self, data: Any) -> None:
        if self._closing:
            return
        if len(data) <= _JOINED_BYTES:
            self._tunnel.write(b"".join((header(Kind.DATA, len(data)), data)))
        else:
            self._tunnel.write(header(Kind.DATA, len(data)))
            self._tunnel.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._shut:
            self._shut = True
            self._tunnel.write(frame(Kind.EOF))

    def close(self) -> None:
        """Ends the client's connection after what was written; or this tunnel alone, if nothing has
        come since the last rest: the worker tells by the count."""
        if not self._closing:
            self._closing = True
            self._tunnel.write(counted(Kind.CLOSE, self._end.received_bytes))
            self._tunnel.close()

    def abort(self) -> None:
        """Ends the tunnel without a word, which breaks the client's connection, or makes the worker
        ask again where it may."""
        self._closing = True
        self._tunnel.abort()

    def is_closing(self) -> bool:
        return self._closing or self._tunnel.is_closing()

    def pause_reading(self) -> None:
        self._tunnel.pause_reading()

    def resume_reading(self) -> None:
        self._tunnel.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._tunnel.get_write_buffer_size()
