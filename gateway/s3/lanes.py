"""What a connection needs of its surroundings: a gate to come in by, and a long lane."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.config import LimitsConfig
from gateway.errors import S3Error
from gateway.s3.answer import Answer
from gateway.s3.held import HeldEndpoint
from gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from gateway.s3.connection import Connection


class LongLane(Protocol):
    """What answers the requests that are not plain reads of something held. The connection tells
    it what asyncio tells a protocol."""

    @property
    def idle(self) -> bool:
        """Whether it waits for the first byte of a request. The connection's `rested` is called
        whenever it comes to wait for a request."""
        ...

    @property
    def answering(self) -> bool:
        """Whether an answer has begun to go out."""
        ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None:
        """As asyncio's: True keeps the connection open for an answer."""
        ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...

    def depart(self) -> None:
        """Closes the connection after the request in flight."""
        ...


class LaneMaker(Protocol):
    """Gives each connection that needs one a long lane."""

    def make(self, connection: "Connection") -> LongLane: ...

    async def close(self) -> None:
        """Ends whatever is still being answered, and returns when it has ended."""
        ...


class Gate(Protocol):
    """What connections ask of their server."""

    limits: LimitsConfig
    metrics: Metrics
    held: HeldEndpoint

    @property
    def refuse(self) -> Callable[[S3Error, str], Answer]:
        """Gives the answer to what never became a request, of a client at some address."""
        ...

    def long_lane(self, connection: "Connection") -> LongLane: ...

    @property
    def explains(self) -> bool:
        """Whether a client that is turned away is told why; in a flood it is not."""
        ...

    @property
    def leaving(self) -> bool:
        """Whether each connection's next answer says that it is the last."""
        ...

    @property
    def draining(self) -> bool:
        """Whether connections are closed as soon as nothing is being answered on them."""
        ...

    def enter(self, connection: "Connection") -> bool:
        """Counts a connection in; False where there are too many."""
        ...

    def leave(self, connection: "Connection") -> None: ...
