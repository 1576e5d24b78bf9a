"""One client connection: two lanes behind one protocol, and limits on what a client may hold up.

A plain read of something held goes the fast lane: it is answered here, from memory or as files are
sent, without another object on the way. Every other request goes, its bytes unchanged, the long
lane (`s3/long_lane.py`: a full HTTP parser and everything S3 can do). One request at a time is
answered, by one lane; what a client sends meanwhile waits, and is not even read from the socket
beyond a little.

The long lane is given one message at a time, where its end is certain (`s3/plain.py`). Where it is
not, the connection stays on the long lane for good: so the two never differ on where a request
begins.

Header, idle and write timeouts (`s3/patience.py`) are looked after by one sweep over all
connections, so that a request costs no timer.
"""

import asyncio
from typing import cast

import structlog

from gateway.errors import RequestHeaderSectionTooLarge, RequestTimeout, S3Error, SlowDown
from gateway.s3.answer import Answer
from gateway.s3.call import ClientGoneError
from gateway.s3.held import HeldAnswer
from gateway.s3.intake import Intake
from gateway.s3.lanes import Gate, LongLane
from gateway.s3.parting import Parting
from gateway.s3.patience import Patience
from gateway.s3.plain import may_go_on, message_bytes, parse
from gateway.s3.sending import render_head
from gateway.s3.socket_files import SocketFiles
from gateway.tiers.protocol import FileRegion

log = structlog.get_logger()

# Requests sent at once that are answered in one go; then it is the turn of other connections.
_TURN_REQUESTS = 32


class Connection(asyncio.Protocol):
    """One connection, from its first byte to its last. A `Wire` for the answers of both lanes."""

    def __init__(self, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._loop = loop
        self._header_bytes = gate.limits.header_bytes
        self._transport: asyncio.Transport | None = None
        self.intake: Intake
        self._long: LongLane | None = None
        self._files: SocketFiles | None = None
        self.remote = ""
        self.secure = False
        self._deaf = False
        self._parting: Parting | None = None
        # The client sends nothing more; and what is being answered is to be the last.
        self._ended = False
        self._departs = False
        # A fast answer that is still being sent, and what came in while a request was answered.
        self._sending: asyncio.Task[None] | None = None
        self._backlog = b""
        self._going_on = False
        # The beginning of a head; what is still to come of the long lane's message; and whether
        # nobody here can say where its messages end.
        self._partial = b""
        self._owed_bytes = 0
        self._stays_long = False
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        # How much of a head that is still to end the long lane has.
        self._head_bytes = 0
        self._patience = Patience(gate.limits, loop.time())
        self.gone = asyncio.Event()

    @property
    def sending(self) -> "asyncio.Task[None] | None":
        """The fast answer that is being sent, if one is."""
        return self._sending

    @property
    def idle(self) -> bool:
        """Whether a request, or the rest of its head, is being waited for."""
        return self._sending is None and (self._long is None or self._long.idle)

    @property
    def at_rest(self) -> bool:
        """Whether everything that has come is answered, as far as can be told here."""
        return self.idle and not (
            self._backlog or self._partial or self._owed_bytes or self._going_on
        )

    @property
    def stays_long(self) -> bool:
        """Whether the long lane alone can say where its requests end."""
        return self._stays_long

    @property
    def ends_at_rest(self) -> bool:
        """Whether it is closed as soon as nothing is being answered."""
        return self._departs

    @property
    def leaving(self) -> bool:
        """Whether the answer being given is the last."""
        return self._gate.leaving

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._transport = cast(asyncio.Transport, transport)
        self.intake = Intake(wire)
        name = wire.get_extra_info("peername")
        self.remote = str(name[0]) if isinstance(name, tuple) else ""
        self.secure = wire.get_extra_info("sslcontext") is not None
        if not self.secure and wire.get_extra_info("socket") is not None:
            self._files = SocketFiles(wire, self._loop)
        if self._gate.enter(self):
            return
        if self._gate.explains:
            self.farewell(SlowDown(), "too many connections")
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._stays_long:
            self._feed(data)
        elif self._sending is not None or self._backlog or not self._rests:
            self._meanwhile(data)
        else:
            if self._partial:
                data, self._partial = self._partial + data, b""
            self._serve(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self._deaf or self.secure:
            # TLS has no half-closed connections here: asyncio closes it whatever is returned.
            return False
        if self._long is not None and not self._long.idle:
            return bool(self._long.eof_received())
        return self._sending is not None or self._going_on

    def pause_writing(self) -> None:
        self._paused = True
        if self._long is not None:
            self._long.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        if self._drained is not None:
            drained, self._drained = self._drained, None
            if not drained.done():
                drained.set_result(None)
        if self._long is not None:
            self._long.resume_writing()
        if self._backlog and self._sending is None:
            self._go_on_soon()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._gate.leave(self)
        self._transport = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._files is not None:
            self._files.close()
        if self._long is not None:
            self._long.connection_lost(exc)
        self.gone.set()

    # Whose turn it is

    @property
    def _rests(self) -> bool:
        """Whether the long lane has nothing to do."""
        return self._long is None or self._long.idle

    def _serve(self, data: bytes) -> None:
        """Answers the requests in `data`, until one has to be waited for."""
        start = answered = 0
        while start < len(data):
            if self._transport is None or self._transport.is_closing():
                return
            if answered == _TURN_REQUESTS:
                self._keep(data[start:])
                self._go_on_soon()
                return
            if self._paused:
                # Backpressure before buffering: the client takes what it has asked for, first.
                self._keep(data[start:])
                return
            read = parse(data, start, self._header_bytes)
            if read is None:
                self._hand_over(data, start)
                return
            held = self._gate.held.answer(
                read.head, remote=self.remote, secure=self.secure, files=self.sends_files
            )
            if held is None:
                self._hand_over(data, start, read.stop - start)
                return
            self._patience.active = True
            self._patience.head_since = None
            stop = read.stop
            closes = self._last_word
            try:
                sent = self._gate.held.send_now(held, self, connection=closes)
            except Exception as error:
                self._break_off(error)
                return
            if not sent:
                self._sending = asyncio.create_task(self._send(held, data[start:stop], closes))
                if stop < len(data):
                    self._keep(data[stop:])
                return
            if closes:
                self.end(listens=stop < len(data))
                return
            start = stop
            answered += 1

    def _meanwhile(self, data: bytes) -> None:
        """Takes what comes while a request is being answered: the rest of its body, and what is
        for later."""
        if self._owed_bytes:
            body, data = data[: self._owed_bytes], data[self._owed_bytes :]
            self._owed_bytes -= len(body)
            self._feed(body)
        if data:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._backlog += data
        self.intake.pause("backlog")

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Takes up what came in while a request was being answered."""
        self._going_on = False
        if self._transport is None or self._deaf or self._sending is not None or not self._rests:
            return
        backlog, self._backlog = self._backlog, b""
        if backlog:
            self.intake.resume("backlog")
            self._serve(backlog)
        ends = self._ended or self.ends_at_rest
        if ends and self._sending is None and self._rests and not self._backlog:
            self.end()

    # The fast lane

    async def _send(self, held: HeldAnswer, request: bytes, closes: str) -> None:
        try:
            sent = await self._gate.held.send(held, self, connection=closes)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:
            self._break_off(error)
            return
        finally:
            self._sending = None
        if self._transport is None:
            return
        if not sent:
            self._hand_over(request, 0, len(request))
            return
        if closes:
            self.end()
        else:
            self.rested()

    def _break_off(self, error: Exception) -> None:
        """Ends an answer that has begun, so that it is seen to be incomplete."""
        if not isinstance(error, ClientGoneError):
            log.warning("answer broken off", remote=self.remote, reason=str(error))
        self.abort()

    @property
    def _last_word(self) -> str:
        """The Connection header of the answer being given."""
        return "close" if self.leaving else ""

    # The long lane

    def _hand_over(self, data: bytes, start: int, size_bytes: int | None = None) -> None:
        """Gives the long lane the message at `start`; `size_bytes` is its length, if known."""
        if size_bytes is None:
            if may_go_on(data, start):
                self._await_head(data[start:])
                return
            size_bytes = message_bytes(data, start, self._header_bytes)
        self._patience.head_since = None
        if size_bytes is None:
            self._stays_long = True
            self._feed(data[start:] if start else data)
            return
        stop = start + size_bytes
        self._owed_bytes = max(0, stop - len(data))
        if stop < len(data):
            self._keep(data[stop:])
        self._feed(data[start:stop])
        if self._ended and self._owed_bytes and self._long is not None:
            # The lane was busy with another request when the client ended in the midst of this one.
            self._long.eof_received()

    def _await_head(self, beginning: bytes) -> None:
        """Keeps the beginning of a head until more of it comes."""
        self._patience.awaits_head(self._loop.time())
        if len(beginning) > self._header_bytes:
            self.farewell(RequestHeaderSectionTooLarge(), "header too large")
        else:
            self._partial = beginning

    def _feed(self, data: bytes) -> None:
        lane = self._long
        if lane is None:
            assert self._transport is not None  # noqa: S101 - data came over it
            lane = self._long = self._gate.long_lane(self)
            lane.connection_made(self._transport)
            if self._paused:
                lane.pause_writing()
        lane.data_received(data)
        if not lane.idle:
            self._patience.head_since = None
            self._head_bytes = 0
        elif self._stays_long:
            self._patience.awaits_head(self._loop.time())
            self._head_bytes += len(data)
            if self._head_bytes > self._header_bytes:
                self.farewell(RequestHeaderSectionTooLarge(), "header too large")

    def rested(self) -> None:
        """An answer has gone out, by whichever lane, and that lane waits for another request."""
        self._patience.active = True
        if self._backlog or self._ended or self.ends_at_rest:
            self._go_on_soon()

    # A wire

    @property
    def sends_files(self) -> bool:
        return self._files is not None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport is None:
            raise ClientGoneError
        self._transport.write(data)

    async def drain(self) -> None:
        if self._paused and self._transport is not None:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await self._drained
        if self._transport is None or self._transport.is_closing():
            raise ClientGoneError

    def send_region_now(self, head: bytes, region: FileRegion) -> tuple[bytes, FileRegion] | None:
        assert self._files is not None  # noqa: S101 - it has said that it sends files
        return self._files.send_now(head, region)

    async def send_region(self, head: bytes, region: FileRegion) -> None:
        await self.drain()
        assert self._files is not None  # noqa: S101 - it has said that it sends files
        await self._files.send(head, region)

    # Time, and ends

    def sweep(self, now: float) -> None:
        """Cuts the client if it has kept us waiting for too long. `now` is the loop's time."""
        wire, files = self._transport, self._files
        if wire is None:
            return
        verdict = self._patience.judge(
            now,
            untaken_bytes=wire.get_write_buffer_size(),
            sent_bytes=files.sent_bytes if files is not None else 0,
            sending=files is not None and files.waiting,
            idle=self.idle and not self._deaf,
        )
        match verdict:
            case "write timeout":
                self._gate.metrics.connections_refused.labels(verdict).inc()
                wire.abort()
            case "header timeout":
                self.farewell(RequestTimeout(), verdict)
            case "idle timeout":
                self.end()

    def depart(self) -> None:
        """Closes after the request in flight, which is being read and answered as ever."""
        self._departs = True
        if self._long is not None and not self._long.idle:
            self._long.depart()
        elif self._sending is None:
            self.end()

    def abort(self) -> None:
        """Breaks the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def end(self, *, listens: bool = False) -> None:
        """Closes once everything written has been taken. `listens`: the client may send on."""
        wire = self._transport
        if wire is None or wire.is_closing() or self._parting is not None:
            return
        self._deaf = True
        self._parting = Parting(
            wire,
            self._loop,
            write_timeout_seconds=self._gate.limits.write_timeout_seconds,
            sends_on=not self._ended and (listens or bool(self._backlog) or None),
        )

    def refuse_all(self) -> None:
        """Heeds nothing more that the client sends: it has not been HTTP."""
        self._gate.metrics.connections_refused.labels("malformed").inc()
        self._deaf = True

    def refusal(self, failure: S3Error) -> Answer:
        """The answer to what never became a request."""
        return self._gate.refuse(failure, self.remote)

    async def part(self, *, listens: bool) -> None:
        """Returns once the connection has ended, after the last answer of the long lane.
        `listens`: the client may send on."""
        self.end(listens=listens)
        await self.gone.wait()

    def farewell(self, failure: S3Error, reason: str) -> None:
        """Says why, and closes."""
        wire = self._transport
        if wire is None:
            return
        self._gate.metrics.connections_refused.labels(reason).inc()
        answer = self.refusal(failure)
        wire.write(render_head(answer.status, answer.headers, len(answer.body), "close"))
        wire.write(answer.body)
        self.end(listens=True)
