"""The end of a connection whose client may still be sending, or has not taken everything.

A socket that is closed with bytes unread resets its connection, and a reset takes along what the
client has not read yet of its answers. So such a connection is closed for writing alone, and
listened to until the client has taken everything (RFC 9112, 9.6). TLS is not closed by halves, but
its own farewell, which listens as well, must not begin before the client has taken everything.
"""

import asyncio
import fcntl
import struct
import termios

# How long a client that has taken everything may still send, or take no notice.
FAREWELL_SECONDS = 2.0
_LOOK_SECONDS = 0.25


class Parting:
    """Ends a connection once the client has everything, or has taken nothing more for
    `write_timeout_seconds` (0: for ever). Whoever reads it must drop what still comes.

    `sends_on`: whether the client may send anything more; None: if it has just done so.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        write_timeout_seconds: float,
        sends_on: bool | None,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._write_timeout_seconds = write_timeout_seconds
        self._farewell_seconds = 0.0
        halves = transport.can_write_eof()
        if sends_on is None:
            sends_on = not halves or _asked(transport, termios.FIONREAD) > 0
        if not sends_on:
            transport.close()
            return
        if halves:
            transport.write_eof()
            self._farewell_seconds = FAREWELL_SECONDS
        transport.resume_reading()
        self._untaken_bytes = self._untaken()
        self._since = loop.time()
        self._look()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        now = self._loop.time()
        untaken_bytes = self._untaken()
        if untaken_bytes != self._untaken_bytes:
            self._untaken_bytes = untaken_bytes
            self._since = now
        quiet_seconds = now - self._since
        if not untaken_bytes and quiet_seconds >= self._farewell_seconds:
            self._transport.close()
        elif untaken_bytes and 0 < self._write_timeout_seconds <= quiet_seconds:
            self._transport.abort()
        else:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _untaken(self) -> int:
        """Bytes written that the client has not acknowledged."""
        return self._transport.get_write_buffer_size() + _asked(self._transport, termios.TIOCOUTQ)


def _asked(transport: asyncio.Transport, question: int) -> int:
    """What the kernel says of a transport's socket."""
    wire = transport.get_extra_info("socket")
    descriptor = wire.fileno() if wire is not None else -1
    if descriptor < 0:
        # Closed, or a tunnel, which has no socket of the client's.
        return 0
    answer: int = struct.unpack("i", fcntl.ioctl(descriptor, question, b"\0\0\0\0"))[0]
    return answer
