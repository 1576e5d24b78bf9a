"""What the supervisor and a child say to each other: one JSON message a line, over a socket pair.

The socket's end is the other's: a supervisor that is gone is found out by it, and so is a child.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.errors import FeedrackError

Role = Literal["keeper", "worker"]
# drain: answer what is in flight and end. retire: let clients leave of their own accord, and end.
# announce: the node is about to drain. reload: read the certificate again. go: stand by no longer.
Order = Literal["drain", "retire", "announce", "reload", "go"]
Wish = Literal["drain", "restart"]

_READ_BYTES = 65_536
# How long a child may take to read a first message that does not fit its socket.
_START_SECONDS = 20.0


class Start(Struct, frozen=True, kw_only=True, tag=True):
    """The first message to a child: what to be, and what it has inherited, by descriptor.
    `stands_by`: it gets ready, and begins when it is told to go."""

    role: Role
    number: int
    generation: int
    config: dict[str, Any]
    folder: str
    s3_url: str
    heads: int
    census: int = -1
    place: int = -1
    listeners: list[int] = []
    admin: list[int] = []
    tunnels: int = -1
    stands_by: bool = False


class Do(Struct, frozen=True, tag=True):
    """An order to a child."""

    what: Order


class Prepared(Struct, frozen=True, tag=True):
    """A child that stands by could begin."""


class Ready(Struct, frozen=True, tag=True):
    """A child serves."""


class Asked(Struct, frozen=True, tag=True):
    """Somebody has asked a child for what is the supervisor's to do."""

    what: Wish


class Failed(Struct, frozen=True, tag=True):
    """A child cannot run: why, and the exit status that goes with it."""

    reason: str
    status: int


ToChild = Start | Do
FromChild = Prepared | Ready | Asked | Failed

_to_child = msgspec.json.Decoder(ToChild)
_from_child = msgspec.json.Decoder(FromChild)


class ControlLost(FeedrackError):  # noqa: N818 - named as the other internal errors are
    """The other end is gone."""


class SupervisorEnd:
    """The supervisor's end of one child's channel. Not blocking, but for the first message."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._partial = b""

    def fileno(self) -> int:
        return self._channel.fileno()

    def start(self, start: Start, timeout_seconds: float = _START_SECONDS) -> bool:
        """Hands the child its first message, waiting for it to read one that is large. False where
        it does not: it will never know what to be."""
        self._channel.settimeout(timeout_seconds)
        try:
            self._channel.sendall(msgspec.json.encode(start) + b"\n")
        except OSError:
            return False
        finally:
            self._channel.setblocking(False)
        return True

    def order(self, what: Order) -> None:
        """Gives an order; one that cannot take it is dead, or about to be found so."""
        with contextlib.suppress(OSError):
            self._channel.send(msgspec.json.encode(Do(what)) + b"\n")

    def receive(self) -> list[FromChild]:
        """What has come. ControlLost at its end."""
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ControlLost from error
        if not data:
            raise ControlLost
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [_from_child.decode(line) for line in lines]

    def close(self) -> None:
        self._channel.close()


class ChildEnd:
    """A child's end: `receive_start` first, blocking, then `open` on an event loop."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._partial = b""
        self._on_order: Callable[[Order], None] = lambda _: None
        self._on_lost: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self._channel.fileno()

    def receive_start(self) -> Start:
        """The first message. ControlLost where the supervisor is gone before it came."""
        self._channel.setblocking(True)
        while True:
            line, found, rest = self._partial.partition(b"\n")
            if found:
                self._partial = rest
                start = _to_child.decode(line)
                assert isinstance(start, Start)  # noqa: S101 - nothing else comes first
                return start
            data = self._channel.recv(_READ_BYTES)
            if not data:
                raise ControlLost
            self._partial += data

    def open(self, *, on_order: Callable[[Order], None], on_lost: Callable[[], None]) -> None:
        """Hears orders from now on, and of the supervisor's end."""
        self._on_order = on_order
        self._on_lost = on_lost
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._heed)
        self._take(b"")

    def tell(self, message: FromChild) -> None:
        """Tells the supervisor, if it is there."""
        with contextlib.suppress(OSError):
            self._channel.send(msgspec.json.encode(message) + b"\n")

    def _heed(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._on_lost()

    def _take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = _to_child.decode(line)
            if isinstance(message, Do):
                self._on_order(message.what)
