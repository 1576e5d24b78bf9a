"""Files sent over a socket by the kernel, without passing through this process (sendfile(2)).

The transport keeps the socket; while its own buffer is empty nothing of it is under way, and what
is sent here goes out in between. asyncio guards a transport's descriptor against other watchers, so
waiting is done on a duplicate.
"""

import asyncio
import errno
import os
import socket

from gateway.errors import TierUnavailable
from gateway.s3.call import ClientGoneError
from gateway.tiers.protocol import FileRegion

# What a failed sendfile says of the socket; all else it says of the file.
_CLIENT_ERRORS = frozenset(
    (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN)
)
# How long to wait for room where there is no descriptor left to be told by.
_LOOK_SECONDS = 0.02


class SocketFiles:
    """Sends regions of files over a transport's socket. `waiting` while the client has to take
    something first; `sent_bytes` only grows. `close` must be called before the transport closes
    its socket."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        # The transport's own descriptor, on loan until `close`.
        self._socket: socket.socket | None = None
        self._watched: int | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closed = False
        self.waiting = False
        self.sent_bytes = 0

    async def send(self, head: bytes, region: FileRegion) -> None:
        """Sends `head` and then the region, all of it. ClientGoneError; TierUnavailable where the
        file ends early or cannot be read."""
        left = self.send_now(head, region)
        while left is not None:
            await self._room()
            left = self.send_now(*left)

    def send_now(self, head: bytes, region: FileRegion) -> tuple[bytes, FileRegion] | None:
        """Sends as much of `head` and region as the client has room for; what is left, None where
        nothing is. Errors as `send`."""
        if self._transport.get_write_buffer_size():
            # What was written before goes out first.
            return head, region
        offset, left = region.offset, region.size_bytes
        wire = self._wire()
        try:
            while head:
                # More follows: head and file may leave in one packet.
                head = head[wire.send(head, socket.MSG_MORE) :]
            out, file = wire.fileno(), region.descriptor
            while left:
                sent = os.sendfile(out, file, offset, left)
                if not sent:
                    raise TierUnavailable("a cached file ended early")
                self.sent_bytes += sent
                offset += sent
                left -= sent
        except BlockingIOError:
            return head, FileRegion(region.descriptor, offset, left)
        except ConnectionError as error:
            raise ClientGoneError from error
        except OSError as error:
            if error.errno in _CLIENT_ERRORS:
                raise ClientGoneError from error
            raise TierUnavailable(f"a cached file cannot be sent: {error}") from error
        return None

    def close(self) -> None:
        """Ends what is being sent; safe at any time."""
        self._closed = True
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ClientGoneError())
        if self._watched is not None:
            self._loop.remove_writer(self._watched)
            os.close(self._watched)
            self._watched = None
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    async def _room(self) -> None:
        """Returns once the socket may take bytes again."""
        self.waiting = True
        try:
            if self._watched is None:
                try:
                    self._watched = os.dup(self._wire().fileno())
                except OSError:
                    # No descriptor is left; there is another way, if a slower one.
                    await asyncio.sleep(_LOOK_SECONDS)
                    return
            await self._told(self._watched)
        finally:
            self.waiting = False

    async def _told(self, descriptor: int) -> None:
        writable = self._writable = self._loop.create_future()
        self._loop.add_writer(descriptor, _resolve, writable)
        try:
            await writable
        finally:
            self._writable = None
            if self._watched is not None:
                self._loop.remove_writer(descriptor)

    def _wire(self) -> socket.socket:
        if self._closed or self._transport.is_closing():
            raise ClientGoneError
        if self._socket is None:
            own = self._transport.get_extra_info("socket")
            self._socket = socket.socket(own.family, own.type, own.proto, fileno=own.fileno())
            self._socket.setblocking(False)
        return self._socket


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
