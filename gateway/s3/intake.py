"""Whether a client's bytes are read: not while anybody has a reason against it."""

import asyncio
from typing import Literal

# What came meanwhile waits for its turn; no more can be kept to send again; the tunnel is full.
Reason = Literal["backlog", "kept", "tunnel"]


class Intake:
    """Pauses and resumes a transport for all who have reasons to; each has its own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reasons: set[Reason] = set()

    def pause(self, reason: Reason) -> None:
        """Reads no more until the reason is gone, at least."""
        self._reasons.add(reason)
        self._transport.pause_reading()

    def resume(self, reason: Reason) -> None:
        """The reason is gone, if it was there."""
        if reason in self._reasons:
            self._reasons.remove(reason)
            if not self._reasons:
                self._transport.resume_reading()
