"""A connection's worth of trouble between two nodes: passes bytes on until it is told otherwise."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Between:
    """A proxy at `address`. `after_bytes` of an answer come through, then `then` happens: "cut" or
    "stall"; None lets all through. `change` rewrites what a node answers."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.address = ""
        self.after_bytes: int | None = None
        self.then = "cut"
        self.change: Callable[[bytes], bytes] = bytes
        self.connections = 0
        self._released = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a connection in; what serves it ends with `close`."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        self._released.set()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self.upstream.rpartition(":")
        there: asyncio.StreamWriter | None = None
        up: asyncio.Task[None] | None = None
        try:
            with contextlib.suppress(OSError):
                back, there = await asyncio.open_connection(host, int(port))
                up = asyncio.create_task(self._up(reader, there))
                await self._down(back, writer)
        finally:
            if up is not None:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)
            if there is not None:
                there.transport.abort()
            writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            there.write(data)
            await there.drain()

    async def _down(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent_bytes = 0
        while data := await back.read(65_536):
            data = self.change(data)
            if self.after_bytes is not None:
                data = data[: max(0, self.after_bytes - sent_bytes)]
            writer.write(data)
            await writer.drain()
            sent_bytes += len(data)
            if self.after_bytes is not None and sent_bytes >= self.after_bytes:
                if self.then == "stall":
                    await self._released.wait()
                return

    def release(self) -> None:
        self._released.set()


@asynccontextmanager
async def between(upstream: str) -> AsyncIterator[Between]:
    """A proxy before the node at `upstream`."""
    proxy = Between(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
