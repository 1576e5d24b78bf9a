"""Files sent over a socket by the kernel, without passing through this process (sendfile(2)).

The transport keeps the socket; while its own buffer is empty nothing of it is under way, and what
is sent here goes out in between. asyncio guards a transport's descriptor against other watchers, so
waiting is done on a duplicate.
"""

import asyncio
import os
import socket

from gateway.errors import TierUnavailable
from gateway.s3.call import ClientGoneError
from gateway.tiers.protocol import FileRegion


class SocketFiles:
    """Sends regions of files over a transport's socket. `waiting` while the client has to take
    something first; `sent_bytes` only grows."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._socket: socket.socket | None = None
        self._writable: asyncio.Future[None] | None = None
        self.sent_bytes = 0

    @property
    def waiting(self) -> bool:
        return self._writable is not None

    async def send(self, head: bytes, region: FileRegion) -> None:
        """Sends `head` and then the region, all of it. ClientGoneError; TierUnavailable where the
        file ends early."""
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
        try:
            wire = self._duplicate()
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
        return None

    def close(self) -> None:
        """Ends what is being sent; safe at any time."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ClientGoneError())
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    async def _room(self) -> None:
        """Returns once the socket takes bytes again."""
        descriptor = self._duplicate().fileno()
        writable = self._writable = self._loop.create_future()
        self._loop.add_writer(descriptor, _resolve, writable)
        try:
            await writable
        finally:
            self._writable = None
            if self._socket is not None and self._socket.fileno() == descriptor:
                self._loop.remove_writer(descriptor)

    def _duplicate(self) -> socket.socket:
        if self._socket is None:
            if self._transport.is_closing():
                raise ClientGoneError
            own = self._transport.get_extra_info("socket")
            self._socket = socket.socket(
                own.family, own.type, own.proto, fileno=os.dup(own.fileno())
            )
            self._socket.setblocking(False)
        elif self._socket.fileno() < 0:
            raise ClientGoneError
        return self._socket


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
