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
        while self._transport.get_write_buffer_size():
            # What was written before goes out first; the kernel says when there is room.
            await self._room()
        try:
            await self._send_head(head)
            offset, left = region.offset, region.size_bytes
            while left:
                try:
                    sent = os.sendfile(self._duplicate().fileno(), region.descriptor, offset, left)
                except BlockingIOError:
                    await self._room()
                    continue
                if not sent:
                    raise TierUnavailable("a cached file ended early")
                self.sent_bytes += sent
                offset += sent
                left -= sent
        except ConnectionError as error:
            raise ClientGoneError from error

    def close(self) -> None:
        """Ends what is being sent; safe at any time."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ClientGoneError())
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    async def _send_head(self, head: bytes) -> None:
        while head:
            try:
                # More follows: head and file may leave in one packet.
                sent = self._duplicate().send(head, socket.MSG_MORE)
            except BlockingIOError:
                await self._room()
            else:
                head = head[sent:]

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
