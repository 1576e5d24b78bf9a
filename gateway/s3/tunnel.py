"""A worker's long lane: the client's bytes, unchanged, over a Unix socket to the keeper and back.

What may be repeated is kept until it no longer may: a read until the first byte of its answer,
everything else until the keeper says that it acts upon it. If the keeper goes away before, the next
one gets the same bytes. See docs/workers.md; the other end is `s3/tunnel_end.py`.
"""

import asyncio
from typing import Any, cast

import msgspec
import structlog

from gateway.errors import ServiceUnavailable
from gateway.s3.connection import Connection
from gateway.s3.frames import FrameError, FrameReader, Kind, count_in, frame, header
from gateway.s3.line import Line, connect

log = structlog.get_logger()

# What is kept of a request that may be repeated.
_KEPT_BYTES = 65_536
# How often one request is sent: one that kills each keeper must not kill them for ever.
_ATTEMPTS = 3
_AGAIN_SECONDS = 0.1
_WATCH_SECONDS = 0.5
_SAFE = (b"GET ", b"HEAD ")


class Client(msgspec.Struct, frozen=True):
    """What the keeper must know of the client behind a tunnel."""

    remote: str
    secure: bool
    leaving: bool


class Tunnels:
    """Gives connections tunnels to the keeper that listens at `path`. Requests that need the keeper
    wait for one as long as the line says, and then get 503."""

    def __init__(self, path: str, line: Line) -> None:
        self.path = path
        self.waiting: set[TunnelLane] = set()
        self._line = line
        self._watch: asyncio.Task[None] | None = None

    def make(self, connection: Connection) -> "TunnelLane":
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_over())
        return TunnelLane(self, connection)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _watch_over(self) -> None:
        """Lets those go who have waited too long for a keeper that is not there."""
        loop = asyncio.get_running_loop()
        line = self._line
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if line.here:
                continue
            patient_since = loop.time() - line.patience_seconds
            if line.lost_at < patient_since:
                for lane in list(self.waiting):
                    if lane.since < patient_since:
                        lane.give_up()


class TunnelLane:
    """One connection's way to the keeper, opened when it is first needed."""

    def __init__(self, tunnels: Tunnels, connection: Connection) -> None:
        self._tunnels = tunnels
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._client: asyncio.Transport | None = None
        self._tunnel: _Tunnel | None = None
        self._opening: asyncio.Task[None] | None = None
        self.idle = True
        self.answering = False
        self.since = 0.0
        # What the keeper was sent of the request under way, as long as it can be sent again.
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._attempts = 0
        self._safe = False
        self._eof = False
        self._paused = False
        self._departs = False
        # Whether the long lane alone knows where requests end, and has been given some already.
        self.doubtful = False

    # What the connection tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.idle:
            self._begin(data)
        if self._kept is not None:
            self._keep(data)
        if self._tunnel is not None:
            self._tunnel.send(data, ask=self._kept is not None and not self._safe)
        elif self._opening is None:
            self._opening = self._loop.create_task(self._open())

    def eof_received(self) -> bool:
        self._eof = True
        if self._tunnel is not None:
            self._tunnel.write(frame(Kind.EOF))
        return True

    def pause_writing(self) -> None:
        self._paused = True
        if self._tunnel is not None:
            self._tunnel.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._tunnel is not None:
            self._tunnel.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._client = None
        self._rest()
        if self._opening is not None:
            self._opening.cancel()
        if self._tunnel is not None:
            self._tunnel.abort()

    def depart(self) -> None:
        self._departs = True
        if self._tunnel is not None:
            self._tunnel.retire()

    # What is sent, and what is kept of it

    def _begin(self, data: bytes) -> None:
        self.idle = False
        self.since = self._loop.time()
        self._safe = data.startswith(_SAFE)
        self._kept = None if self.doubtful else []
        self._kept_bytes = 0
        self._attempts = 0
        self._tunnels.waiting.add(self)
        if self._tunnel is not None and self._connection.leaving:
            self._tunnel.retire()

    def _keep(self, data: bytes) -> None:
        assert self._kept is not None  # noqa: S101 - the caller has looked
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > _KEPT_BYTES:
            # The keeper has to say that it acts upon these, before there are more than can be kept.
            self._safe = False
            self._connection.intake.pause("kept")

    def _keep_no_more(self) -> None:
        """What was sent is being acted upon: it can not be sent again."""
        self._kept = None
        self._tunnels.waiting.discard(self)
        self._connection.intake.resume("kept")

    def _rest(self) -> None:
        self._keep_no_more()
        self.idle = True
        self.answering = False

    # The tunnel's coming and going

    async def _open(self) -> None:
        self._attempts += 1
        while True:
            try:
                wire = connect(self._tunnels.path)
                await self._loop.create_unix_connection(cast(Any, lambda: _Tunnel(self)), sock=wire)
            except OSError:
                # Nobody listens, or too many wait already. How long is for `Tunnels` to say.
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    def opened(self, tunnel: "_Tunnel") -> None:
        self._tunnel = tunnel
        self._opening = None
        connection = self._connection
        leaving = connection.leaving or self._departs
        client = Client(connection.remote, connection.secure, leaving)
        tunnel.begin(client)
        for data in self._kept or ():
            tunnel.send(data, ask=not self._safe)
        if self._eof:
            tunnel.write(frame(Kind.EOF))
        if self._paused:
            tunnel.pause_reading()

    def lost(self, *, untouched: bool) -> None:
        """The tunnel has ended. `untouched`: the keeper has read nothing of the request."""
        self._tunnel = None
        self.hold_back(False)
        if self._client is None or (self.idle and not self.doubtful):
            return
        if self._kept is None:
            # Some of the answer is out, or the request may have had its effect.
            self._client.abort()
        elif self._attempts < _ATTEMPTS or untouched:
            if untouched:
                self._attempts = 0
            self._opening = self._loop.create_task(self._open())
        else:
            log.error("request given up", remote=self._connection.remote, attempts=self._attempts)
            self.give_up()

    def give_up(self) -> None:
        """Tells the client to come again later."""
        self._keep_no_more()
        failure = ServiceUnavailable(headers={"retry-after": "1"})
        self._connection.farewell(failure, "no keeper")
        if self._opening is not None:
            self._opening.cancel()
        if self._tunnel is not None:
            self._tunnel.abort()

    # What the keeper tells

    def acted_upon(self) -> None:
        self._keep_no_more()

    def answered(self, data: bytes) -> None:
        if not self.answering:
            self.answering = True
            self._keep_no_more()
        if self._client is not None:
            self._client.write(data)

    def rested(self) -> None:
        """Everything sent has been answered."""
        self.doubtful = self._connection.stays_long
        self._rest()
        if self._departs:
            self._connection.end()
        else:
            self._connection.rested()

    def half_closed(self) -> None:
        if self._client is not None and self._client.can_write_eof():
            self._client.write_eof()

    def closed(self) -> None:
        """The keeper has said its last word to the client."""
        self._rest()
        self._connection.end()

    def hold_back(self, held: bool) -> None:
        """The tunnel is full, or no longer."""
        if held:
            self._connection.intake.pause("tunnel")
        else:
            self._connection.intake.resume("tunnel")


class _Tunnel(asyncio.Protocol):
    """The worker's end of one Unix connection."""

    def __init__(self, lane: TunnelLane) -> None:
        self._lane = lane
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        # Bytes sent, how many of them when the tunnel last was at rest, and what of it is said.
        self._sent_bytes = 0
        self._rest_bytes = 0
        self._retired = False
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lane.opened(self)

    def begin(self, client: Client) -> None:
        self._retired = client.leaving
        self.write(frame(Kind.BEGIN, msgspec.json.encode(client)))

    def send(self, data: bytes, *, ask: bool) -> None:
        self._sent_bytes += len(data)
        kind = Kind.ASK if ask else Kind.DATA
        if len(data) <= _KEPT_BYTES:
            self.write(frame(kind, data))
        else:
            self.write(header(kind, len(data)))
            self.write(data)

    def retire(self) -> None:
        if not self._retired:
            self._retired = True
            self.write(frame(Kind.RETIRE))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._frames.feed(data):
                if self._over:
                    return
                self._heed(kind, payload)
        except FrameError:
            log.exception("a tunnel is broken")
            assert self._transport is not None  # noqa: S101 - data came over it
            self._transport.abort()

    def _heed(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.DATA:
                self._lane.answered(payload)
            case Kind.GO:
                self._lane.acted_upon()
            case Kind.DONE:
                if count_in(payload) == self._sent_bytes and not self._lane.idle:
                    self._lane.rested()
                    if not self._lane.doubtful:
                        self._rest_bytes = self._sent_bytes
            case Kind.EOF:
                self._lane.half_closed()
            case Kind.CLOSE:
                self._end(untouched=count_in(payload) == self._rest_bytes)
            case _:
                raise FrameError(f"{kind.name} is not for a worker")

    def _end(self, *, untouched: bool) -> None:
        """The keeper has closed: its end of the tunnel only, where it has read nothing since the
        last rest, else the client's connection."""
        self._over = True
        if untouched:
            self._lane.lost(untouched=True)
        else:
            self._lane.closed()
        assert self._transport is not None  # noqa: S101 - data came over it
        self._transport.close()

    def pause_writing(self) -> None:
        self._lane.hold_back(True)

    def resume_writing(self) -> None:
        self._lane.hold_back(False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if not self._over:
            self._over = True
            self._lane.lost(untouched=False)
