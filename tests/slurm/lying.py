"""A gateway's admin port that says whatever it is told to."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

from aiohttp import web

# What it says, in pieces, to every question; None: it never ends.
Lie = bytes | None
_PIECE = b" " * 65_536


class LyingGateway:
    """`url` answers every question with `lie`; `asked` counts them."""

    def __init__(self) -> None:
        self.lie: Lie = b""
        self.status = 200
        self.asked = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(timeout=60)

    def stop(self) -> None:
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(timeout=60)
        self._loop.close()

    def tell(self, lie: Lie, status: int = 200) -> None:
        self.lie, self.status, self.asked = lie, status, 0

    async def _run(self) -> None:
        self._end = asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        answer = web.StreamResponse(status=self.status, headers={"Location": "/elsewhere"})
        with contextlib.suppress(ConnectionError):
            await answer.prepare(request)
            async for piece in self._pieces():
                await answer.write(piece)
            await answer.write_eof()
        return answer

    async def _pieces(self) -> AsyncIterator[bytes]:
        lie = self.lie
        if lie is not None:
            yield lie
            return
        while self._end is not None and not self._end.is_set() and self.lie is None:
            yield _PIECE
            await asyncio.sleep(0)


@contextlib.contextmanager
def lying_gateway() -> Iterator[LyingGateway]:
    gateway = LyingGateway()
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()
