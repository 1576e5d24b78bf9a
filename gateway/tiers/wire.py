"""One connection: heads and bodies out and in, as an origin or a peer is asked or answered.

The event loop waits, the kernel copies: bytes go from the socket to where they are to stay, as many
at once as are there. While a body comes in fast, the kernel is told to wake us only when some
hundred KiB have gathered (SO_RCVLOWAT); what comes slowly is handed on after a moment.
"""

import asyncio
import errno
import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from gateway.errors import TierUnavailable
from gateway.tiers.protocol import FileRegion
from gateway.tiers.wire_heads import HEAD_END, Head, MalformedAnswerError, parse_head

HEAD_BYTES = 65_536
# What is received without looking up. The loop serves nobody else meanwhile: some 80 µs.
STRIDE_BYTES = 512 * 1024
_SMALLEST_MARK_BYTES = 16 * 1024
# A wait shorter than this calls for fewer of them; no reader waits longer for what is there.
_SHORT_SECONDS = 0.002
_LONG_SECONDS = 0.02
# What a failed sendfile says of the socket; all else it says of the file.
_SOCKET_ERRORS = frozenset(
    (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN)
)
# Of these a TLS record may still be on its way where bytes are wanted.
_RECORD_BYTES = 32 * 1024


class Wire:
    """A connected socket, plain or TLS, used by one request at a time. All methods raise OSError,
    TimeoutError among them; after one the connection is of no use."""

    def __init__(self, sock: socket.socket, watch: "Watch") -> None:
        self._sock = sock
        self._descriptor = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._registered = False
        self._waiting: asyncio.Future[None] | None = None
        self._mark_bytes = 1
        self._next_mark_bytes = _SMALLEST_MARK_BYTES
        self._rest = memoryview(b"")
        self.answered = False
        self.idle_since = 0.0

    async def handshake(self) -> None:
        """Agrees on TLS, where it is spoken."""
        sock = self._sock
        if not isinstance(sock, ssl.SSLSocket):
            return
        while True:
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._readable()
            except ssl.SSLWantWriteError:
                await self._writable()
            else:
                return

    async def ask(self, request: bytes) -> Head:
        """Sends a request without a body and returns the head of its answer."""
        self.answered = False
        self._next_mark_bytes = _SMALLEST_MARK_BYTES
        await self.send(request)
        while True:
            head = parse_head(await self.receive_head())
            # 100 and 103 announce an answer, and are none.
            if head.status >= 200:
                return head

    def watched_by(self, watch: "Watch") -> None:
        """Another patience from the next wait on."""
        self._watch = watch

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all of it."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._writable()
            except ssl.SSLWantReadError:
                await self._readable()

    def send_now(self, data: bytes) -> bool:
        """Sends something short if that needs no waiting; whether it did. What is sent in part
        breaks the connection."""
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        if sent != len(data):
            raise ConnectionAbortedError("the connection takes nothing")
        return True

    async def send_file(self, region: FileRegion) -> None:
        """Sends a region of a file, which the kernel copies; not over TLS. TierUnavailable where
        the file ends early or cannot be read."""
        offset, left = region.offset, region.size_bytes
        while left:
            try:
                sent = os.sendfile(self._descriptor, region.descriptor, offset, left)
            except BlockingIOError:
                await self._writable()
                continue
            except ConnectionError:
                raise
            except OSError as error:
                if error.errno in _SOCKET_ERRORS or self._descriptor < 0:
                    raise
                raise TierUnavailable(f"a cached file cannot be sent: {error}") from error
            if not sent:
                raise TierUnavailable("a cached file ended early")
            offset += sent
            left -= sent

    async def receive_head(self, limit_bytes: int = HEAD_BYTES) -> bytes:
        """The next head, without the empty line that ends it; what follows it stays for `receive`.
        MalformedAnswerError where it is longer than that."""
        raw = bytes(self._rest)
        self._rest = memoryview(b"")
        self._mark(1)
        while (end := raw.find(HEAD_END)) < 0:
            if len(raw) > limit_bytes:
                raise MalformedAnswerError("the head is too long")
            await self._readable()
            more = self._take()
            if more is None:
                continue
            if not more:
                raise ConnectionResetError("the connection ended before the head did")
            self.answered = True
            raw += more
        self._rest = memoryview(raw)[end + len(HEAD_END) :]
        return raw[:end]

    async def receive(self, limit_bytes: int) -> bytes:
        """1 to `limit_bytes` of what comes next, b"" at the connection's end."""
        memory = memoryview(bytearray(min(limit_bytes, HEAD_BYTES)))
        return bytes(memory[: await self.receive_into(memory, 1)])

    async def receive_into(self, memory: memoryview, left_bytes: int) -> int:
        """Puts what comes next into `memory`, of `left_bytes` that are to come at all; 0 at the
        connection's end."""
        rest = self._rest
        if rest:
            size_bytes = min(len(rest), len(memory))
            memory[:size_bytes] = rest[:size_bytes]
            self._rest = rest[size_bytes:]
            return size_bytes
        memory = memory[:STRIDE_BYTES]
        got_bytes = self._receive_now(memory)
        if got_bytes is None:
            await self._gathered(min(len(memory), left_bytes))
            got_bytes = self._receive_now(memory)
        while got_bytes is None:
            self._mark(1)
            await self._readable()
            got_bytes = self._receive_now(memory)
        return got_bytes

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not asked for: neither bytes nor an end."""
        if self._rest or self._descriptor < 0:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def close(self) -> None:
        """Cuts the connection. Safe twice."""
        if self._descriptor < 0:
            return
        self._unregister()
        self._loop.remove_writer(self._descriptor)
        self._descriptor = -1
        self.fail(ConnectionAbortedError("the connection was closed"))
        self._sock.close()

    def rest(self) -> None:
        """Nothing is expected any more."""
        self._unregister()
        self._mark(1)

    # The socket
    def _take(self) -> bytes | None:
        try:
            return self._sock.recv(HEAD_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None

    def _receive_now(self, memory: memoryview) -> int | None:
        """What is there, None where that is nothing."""
        if not self._tls:
            try:
                return self._sock.recv_into(memory)
            except BlockingIOError:
                return None
        # A TLS connection gives a record at a time, of at most 16 KiB.
        got_bytes = 0
        with suppress(ssl.SSLWantReadError):
            while got_bytes < len(memory):
                size_bytes = self._sock.recv_into(memory[got_bytes:])
                got_bytes += size_bytes
                if not size_bytes:
                    return got_bytes
        return got_bytes or None

    # Waiting
    def _mark(self, size_bytes: int) -> None:
        """The kernel is to say "readable" only when so much is there."""
        if self._tls:
            # What TLS holds back of a record already is not in the kernel any more.
            size_bytes = max(1, size_bytes - _RECORD_BYTES)
        if size_bytes != self._mark_bytes:
            self._mark_bytes = size_bytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    async def _gathered(self, most_bytes: int) -> None:
        """Waits for a good deal of what comes, up to `most_bytes`, but not for long."""
        self._mark(min(self._next_mark_bytes, most_bytes))
        if self._mark_bytes == 1:
            await self._readable()
            return
        begun = monotonic()
        patience = self._loop.call_later(_LONG_SECONDS, self._wake)
        try:
            await self._readable()
        finally:
            patience.cancel()
        waited_seconds = monotonic() - begun
        if waited_seconds < _SHORT_SECONDS:
            self._next_mark_bytes = min(2 * self._next_mark_bytes, STRIDE_BYTES)
        elif waited_seconds >= _LONG_SECONDS:
            self._next_mark_bytes = max(self._next_mark_bytes // 4, _SMALLEST_MARK_BYTES)

    async def _readable(self) -> None:
        if not self._registered:
            self._loop.add_reader(self._descriptor, self._on_readable)
            self._registered = True
        await self._wait()

    async def _writable(self) -> None:
        self._loop.add_writer(self._descriptor, self._wake)
        try:
            await self._wait()
        finally:
            if self._descriptor >= 0:
                self._loop.remove_writer(self._descriptor)

    async def _wait(self) -> None:
        waiting = self._waiting = self._loop.create_future()
        self._watch.begin(self)
        try:
            await waiting
        finally:
            self._waiting = None
            self._watch.end(self)

    def fail(self, error: Exception) -> None:
        """Ends the wait that is going on."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _on_readable(self) -> None:
        if self._waiting is None:
            # More has come than anybody waits for: once is enough to be told.
            self._unregister()
        else:
            self._wake()

    def _unregister(self) -> None:
        if self._registered:
            self._loop.remove_reader(self._descriptor)
            self._registered = False


class Watch:
    """Ends waits that take too long, all with one timer. `seconds`: for each wait."""

    def __init__(self, seconds: float, now: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._now = now
        # In the order in which they began, so the first is due first.
        self._waiting: dict[Wire, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wire: Wire) -> None:
        self._waiting[wire] = self._now() + self._seconds
        if self._timer is None:
            self._set_timer(self._seconds)

    def end(self, wire: Wire) -> None:
        self._waiting.pop(wire, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        for wire, due in list(self._waiting.items()):
            if due > now:
                self._set_timer(max(due - now, self._seconds / 16))
                return
            del self._waiting[wire]
            wire.fail(TimeoutError("nothing comes, or goes"))
