"""A worker's line to the keeper: whether there is one, and what it should be told.

The keeper's socket belongs to the supervisor, so a line can always be asked for: where no keeper
lives it lies in the socket's queue, and is taken up by the next.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import structlog

from gateway.s3.frames import FrameError, FrameReader, Kind, count_in, frame

log = structlog.get_logger()

# How long a request waits for a keeper where none is due.
_PATIENCE_SECONDS = 15.0
_AGAIN_SECONDS = 0.2


def connect(path: str) -> socket.socket:
    """A connection to the keeper's socket. OSError where nobody listens, or too many wait."""
    wire = socket.socket(socket.AF_UNIX)
    try:
        wire.setblocking(False)
        wire.connect(path)
    except BaseException:
        wire.close()
        raise
    return wire


class Line(asyncio.Protocol):
    """Kept open for as long as the worker lives. `on_change` hears when a keeper comes or goes."""

    def __init__(
        self,
        path: str,
        *,
        on_change: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.here = False
        self.patience_seconds = _PATIENCE_SECONDS
        self.lost_at = now()
        self._path = path
        self._on_change = on_change
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def open(self) -> None:
        """Asks for a line, now and whenever it is lost."""
        self._task = self._loop.create_task(self._connect())

    async def close(self) -> None:
        """The worker serves no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()

    @property
    def takes_notes(self) -> bool:
        """Whether a keeper is there that has read what it was told before."""
        wire = self._transport
        return self.here and wire is not None and not wire.get_write_buffer_size()

    def note(self, notes: bytes) -> None:
        """Tells the keeper, where it `takes_notes`; else they are lost."""
        if self.takes_notes and self._transport is not None and notes:
            self._transport.write(frame(Kind.NOTES, notes))

    async def _connect(self) -> None:
        while not self._closed:
            try:
                await self._loop.create_unix_connection(
                    cast(Any, lambda: self), sock=connect(self._path)
                )
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._frames = FrameReader()
        self._transport.write(frame(Kind.LINE))

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._frames.feed(data):
                if kind is Kind.HERE:
                    self.here = True
                    self.patience_seconds = _PATIENCE_SECONDS
                    self._on_change()
                elif kind is Kind.LEAVING:
                    # It may take as long as this to answer what it has; the next one comes then.
                    self.patience_seconds = count_in(payload) + _PATIENCE_SECONDS
        except FrameError:
            log.exception("the keeper's line is broken")
            assert self._transport is not None  # noqa: S101 - data came over it
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self.here:
            self.here = False
            self.lost_at = self._now()
            self._on_change()
        if not self._closed:
            self.open()
