"""A node whose clients are let in by a worker and answered through a tunnel, in one process."""

import asyncio
import socket
import tempfile
from pathlib import Path

from gateway.app import Node
from gateway.config import Config
from gateway.rdma.server import OpenDevice
from gateway.s3.line import Line
from gateway.s3.server import S3Server
from gateway.s3.tunnel import Tunnels
from gateway.s3.tunnel_end import TunnelDoor, TunnelledConnection, tunnel_limits


class TunnelledNode(Node):
    """Stands in for `Node`: what is held goes the fast lane here, everything else the tunnel."""

    def __init__(self, config: Config, *, open_device: OpenDevice) -> None:
        super().__init__(config, open_device=open_device)
        self._folder = tempfile.TemporaryDirectory(prefix="tunnel")
        self.path = str(Path(self._folder.name) / "keeper.sock")
        self.notes: list[bytes] = []
        self.lines: list[int] = []
        self.line = Line(self.path)
        # The server that `Node` has made is the keeper's but for its door.
        held, refuse = self.s3.held, self.s3.refuse
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(128)
        self.keeper = self.make_keeper()
        self.tunnels = Tunnels(self.path, self.line)
        self.s3 = S3Server(
            config.s3.limits,
            self.metrics,
            door=self.door,
            held=held,
            lanes=self.tunnels,
            refuse=refuse,
        )

    def make_keeper(self) -> S3Server:
        """A keeper's server on the socket that all of them have."""
        config = self.config
        self.tunnel_door = TunnelDoor(
            socket.socket(fileno=self.listener.dup().detach()),
            leaving_seconds=config.s3.limits.drain_timeout_seconds,
            on_lines=self.lines.append,
            on_notes=self.notes.append,
            remainder=self.service.remainder,
        )
        return self.parts.s3(
            self.tunnel_door,
            limits=tunnel_limits(config.s3.limits),
            connect=TunnelledConnection,
            count=lambda _: None,
        )

    async def start(self) -> None:
        self.line.open()
        await self.keeper.start()
        await super().start()

    async def stop(self) -> None:
        await self.s3.drain()
        await self.s3.close()
        await self.end_keeper()
        await super().stop()
        await self.line.close()
        self.listener.close()
        # Transports close their sockets at the next turn of the loop.
        await asyncio.sleep(0)
        self._folder.cleanup()

    async def end_keeper(self) -> None:
        await self.keeper.drain()
        await self.keeper.close()
        await self.tunnel_door.end()
