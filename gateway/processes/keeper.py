"""The keeper: a whole node that lets in its workers' tunnels in place of clients."""

import asyncio
import socket
from pathlib import Path

import msgspec
import structlog

from gateway.app import Parts
from gateway.config import Config, admin_url
from gateway.processes.control import Asked, ChildEnd, Order, Prepared, Ready, Start
from gateway.processes.run_folder import remove
from gateway.s3.tunnel_end import TunnelDoor, TunnelledConnection, tunnel_limits
from gateway.store.shared_heads import SharedHeads, index_mark
from gateway.tiers.notes import Notes

log = structlog.get_logger()

# What workers may take longer than their requests may, where nobody tells that they are gone.
_GRACE_SECONDS = 15.0

_notes = msgspec.msgpack.Decoder(Notes)


class Keeper:
    """One keeper, from what its supervisor has handed down."""

    def __init__(self, config: Config, start: Start, control: ChildEnd) -> None:
        self._config = config
        self._generation = start.generation
        self._control = control
        self._folder = Path(start.folder)
        self._lines = 0
        self._state = "starting"
        self._s3_url = start.s3_url
        self._ordered = asyncio.Event()
        self._alone = asyncio.Event()
        self._no_lines = asyncio.Event()
        self._go = asyncio.Event()
        if not start.stands_by:
            self._go.set()
        self._heads = SharedHeads(start.heads, unbounded=config.cluster is None)
        parts = self._parts = Parts(
            config,
            observer=self._heads,
            on_index=self._mark_index,
            on_trust=self._heads.trust,
        )
        self._door = TunnelDoor(
            socket.socket(fileno=start.tunnels),
            leaving_seconds=config.s3.limits.drain_timeout_seconds,
            on_lines=self._count_lines,
            on_notes=self._take_notes,
            remainder=parts.service.remainder,
        )
        self._s3 = parts.s3(
            self._door,
            limits=tunnel_limits(config.s3.limits),
            connect=TunnelledConnection,
            count=lambda _: None,
        )
        self._admin = parts.admin(
            state=lambda: self.state,
            s3_url=lambda: start.s3_url,
            on_drain=lambda: control.tell(Asked("drain")),
            on_restart=lambda: control.tell(Asked("restart")),
            listeners=[socket.socket(fileno=each) for each in start.admin],
        )

    @property
    def state(self) -> str:
        """As `/readyz` tells it: a node whose workers are all away does not serve."""
        if self._state == "serving" and not self._lines:
            return "starting"
        return self._state

    async def run(self) -> None:
        """Serves until it is told to drain, or has been left alone."""
        self._control.open(on_order=self._obey, on_lost=self._be_alone)
        if not await self._stand_by():
            return
        # Before anything else: what an earlier keeper left is not believed any more from here on.
        self._heads.begin()
        try:
            await self._admin.start()
            await self._parts.start()
            await self._s3.start()
            await self._parts.join(s3=self._s3_url, admin=admin_url(self._config, self._admin.port))
            self._state = "serving"
            self._control.tell(Ready())
            await self._ordered.wait()
        finally:
            self._state = "draining"
            await self._s3.drain()
            await self._s3.close()
            await self._door.end()
            await self._parts.stop()
            await self._admin.close()
            self._heads.close()
            if self._alone.is_set():
                remove(self._folder)

    async def _stand_by(self) -> bool:
        """Waits until it is this keeper's turn; False where that never comes."""
        if not self._go.is_set():
            self._control.tell(Prepared())
        turns = [asyncio.create_task(each.wait()) for each in (self._go, self._ordered)]
        await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
        for turn in turns:
            turn.cancel()
        return self._go.is_set()

    def _obey(self, order: Order) -> None:
        if order == "go":
            self._go.set()
        elif order == "drain":
            self._ordered.set()
        elif order == "announce":
            self._state = "draining"

    def _be_alone(self) -> None:
        """The supervisor has died. The workers drain; they still need a keeper until they have."""
        log.error("supervisor lost", role="keeper")
        if not self._go.is_set():
            self._ordered.set()
            return
        self._state = "draining"
        self._alone.set()
        self._last_orders = asyncio.create_task(self._outlive_workers())

    async def _outlive_workers(self) -> None:
        seconds = self._config.s3.limits.drain_timeout_seconds + _GRACE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                while self._lines:
                    self._no_lines.clear()
                    await self._no_lines.wait()
        except TimeoutError:
            log.warning("workers do not end", lines=self._lines)
        self._ordered.set()

    def _count_lines(self, lines: int) -> None:
        self._lines = lines
        if not lines:
            self._no_lines.set()

    def _take_notes(self, raw: bytes) -> None:
        self._parts.disk.note(_notes.decode(raw))

    def _mark_index(self, index: Path | None) -> None:
        file = None
        if index is not None:
            status = index.stat()
            file = status.st_dev, status.st_ino
        self._heads.mark_index(index_mark(file, self._generation))


async def run(config: Config, start: Start, control: ChildEnd) -> None:
    """Runs a keeper to its end."""
    await Keeper(config, start, control).run()
