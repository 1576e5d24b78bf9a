"""Lines on their way to standard error: gathered, whole, and never in the way of who tells them.

A log that nobody reads must not stop a node. Writing never waits and never raises: a pipe or socket
that is full is tried again a little later; beyond a bound, and where standard error is gone, lines
are dropped, and how many is said once lines go out again.
"""

import asyncio
import atexit
import contextlib
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial

import structlog

# A write wakes whoever reads the log, which costs more than making a line: it pays to share one.
_GATHER_SECONDS = 0.005
_GATHERED_LINES = 256
_HELD_BYTES = 1024 * 1024
_RETRY_SECONDS = 0.1
_FAREWELL_SECONDS = 2.0
_LINE_FEED = 0x0A

log = structlog.get_logger()


class LineWriter:
    """Writes lines to `descriptor`, in order, those of some milliseconds together.

    From any thread. `descriptor` None: there is no standard error, every line is dropped.
    `held_bytes` bounds what waits for a reader that does not read.
    """

    def __init__(self, descriptor: int | None, *, held_bytes: int = _HELD_BYTES) -> None:
        self._descriptor = descriptor
        self._held_bytes = held_bytes
        self._send, self._release, self._piece_bytes = _sender(descriptor)
        # Gathered without a lock, as a deque allows, and moved on under it.
        self._gathered: deque[bytes] = deque()
        self._due: asyncio.AbstractEventLoop | None = None
        # Whoever writes may be told of what was lost by a line of its own, while it writes.
        self._lock = threading.RLock()
        self._pending = bytearray()
        self._torn = False
        self._lost = 0

    def add(self, line: bytes) -> None:
        """Takes one line, its line feed included; it goes out within 5 ms, at once where there is
        no event loop."""
        gathered, due = self._gathered, self._due
        gathered.append(line)
        if len(gathered) >= _GATHERED_LINES or (
            (due is None or due.is_closed()) and not self._try_later(_GATHER_SECONDS)
        ):
            self.flush()

    def write(self, line: bytes) -> None:
        """Takes one line, and sends it and all before it now."""
        self._gathered.append(line)
        self.flush()

    def flush(self) -> None:
        """Sends all there is, as far as it goes without waiting."""
        with self._lock:
            self._collect()
            while self._send_pending() and self._gathered:
                self._collect()
            # The reader is behind by all that may be held.
            while len(self._gathered) >= _GATHERED_LINES:
                self._gathered.pop()
                self._lost += 1
        if self._pending:
            self._try_later(_RETRY_SECONDS)

    def drain(self, timeout_seconds: float = _FAREWELL_SECONDS) -> None:
        """Sends all there is, waiting so long at most for a reader that is slow."""
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            self.flush()
            while self._pending and self._descriptor is not None:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(left_seconds * 1000)
                self.flush()

    def forget(self) -> None:
        """Lets go of lines that are another's to send: those a process had when it was forked."""
        self._lock = threading.RLock()
        self._gathered.clear()
        self._pending.clear()
        self._due = None
        self._lost = 0

    def close(self) -> None:
        """Lets go of what was opened for writing; what is added from now on is dropped."""
        with self._lock:
            self.flush()
            self._send = len
            self._release()
            self._release = _nothing

    def _try_later(self, after_seconds: float) -> bool:
        """Whether there is an event loop to flush in."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if loop is not self._due:
            self._due = loop
            loop.call_later(after_seconds, self._due_now)
        return True

    def _due_now(self) -> None:
        self._due = None
        self.flush()

    def _collect(self) -> None:
        gathered, pending = self._gathered, self._pending
        if self._torn and not pending and gathered:
            pending += b"\n"
        while gathered and (not pending or len(pending) + len(gathered[0]) <= self._held_bytes):
            pending += gathered.popleft()

    def _send_pending(self) -> bool:
        pending = self._pending
        while pending:
            piece = self._piece()
            try:
                written = self._send(piece)
            except BlockingIOError:
                return False
            except OSError:
                # Gone, or on a disk that is full: there is nobody who could be told.
                self._lost += pending.count(b"\n")
                pending.clear()
                return True
            self._torn = piece[written - 1] != _LINE_FEED
            del pending[:written]
        if self._lost:
            lines, self._lost = self._lost, 0
            log.warning("log lines lost", lines=lines)
        return True

    def _piece(self) -> bytes:
        """As many whole lines as go out in one write; one line at the least."""
        pending, limit = self._pending, self._piece_bytes
        if len(pending) <= limit:
            return bytes(pending)
        stop = pending.rfind(b"\n", 0, limit) + 1 or pending.find(b"\n", limit) + 1
        return bytes(pending[:stop])


@cache
def standard_error() -> LineWriter:
    """The writer of this process's standard error; what it still holds goes out at exit."""
    # Where the process was started without one, the number may be any file's by now.
    lines = LineWriter(None if sys.__stderr__ is None else sys.__stderr__.fileno())
    atexit.register(lines.drain)
    os.register_at_fork(after_in_child=lines.forget)
    return lines


def _sender(descriptor: int | None) -> tuple[Callable[[bytes], int], Callable[[], None], int]:
    """A way to write that does not wait, a way to let go of it, and the most to hand it at once.

    Several processes may share a pipe or socket: what is no longer than PIPE_BUF stays whole.
    """
    if descriptor is None:
        return len, _nothing, _HELD_BYTES
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        shared = socket.socket(fileno=os.dup(descriptor))
        return (
            lambda piece: shared.send(piece, socket.MSG_DONTWAIT),
            shared.close,
            select.PIPE_BUF,
        )
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        # Opened anew, because the flag would hold for everyone who shares the old one. Where that
        # is not allowed (a terminal of another user's), writing waits.
        with contextlib.suppress(OSError):
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            return partial(os.write, own), partial(os.close, own), select.PIPE_BUF
        return partial(os.write, descriptor), _nothing, select.PIPE_BUF
    return partial(os.write, descriptor), _nothing, _HELD_BYTES


def _nothing() -> None:
    """What there is to let go of where nothing was opened."""
