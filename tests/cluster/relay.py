"""TCP relays between the parts of a fleet, in a process of their own: they delay, hold and cut.

    python -m tests.cluster.relay HOST

takes commands on standard input, a JSON line each, and answers each with one. A relay that *holds*
is a network that carries nothing: connections stand, new ones are accepted, no byte passes either
way, and what was held goes on its way once it opens again. One that *refuses* resets them all.

The process also sees to it that a test run which is killed leaves no other processes behind.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

Mode = Literal["open", "hold", "refuse"]
_BLOCK_BYTES = 262_144
# How many bytes may be on their way, delayed, in one direction of one connection.
_AHEAD_BLOCKS = 64


class Relays:
    """The relays' process, as its owner sees it. `port` 0 takes a free one."""

    def __init__(self, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self.host = host
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.cluster.relay", host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )

    def open(self, name: str, to: tuple[str, int], port: int = 0) -> int:
        """Makes a relay to `to` and tells its port."""
        return int(self._ask(do="open", name=name, host=to[0], to_port=to[1], port=port))

    def set(
        self,
        name: str,
        mode: Mode = "open",
        *,
        delay_seconds: float = 0.0,
        owners: Sequence[int] | None = None,
    ) -> None:
        """From now on. `owners`: only for connections that these processes have made."""
        self._ask(
            do="set",
            name=name,
            mode=mode,
            delay=delay_seconds,
            owners=None if owners is None else list(owners),
        )

    def mind(self) -> None:
        """The processes that this one has started end with it, however it ends."""
        found = psutil.Process().children(recursive=True)
        self._ask(do="mind", processes=[(each.pid, each.create_time()) for each in found])

    def close(self) -> None:
        self._ask(do="mind", processes=[])
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def _ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, "the relays' process has died"
        return json.loads(line)


class _Relay:
    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self._mode: Mode = "open"
        self._owners: frozenset[int] | None = None
        self._delay_seconds = 0.0
        self._changed = asyncio.Event()
        # The connections that stand, by the port they come from.
        self._standing: dict[int, tuple[asyncio.StreamWriter, ...]] = {}

    def set(self, mode: Mode, delay_seconds: float, owners: Sequence[int] | None) -> None:
        self._mode, self._delay_seconds = mode, delay_seconds
        self._owners = None if owners is None else frozenset(owners)
        self._changed.set()
        self._changed = asyncio.Event()
        if mode == "refuse":
            for port, writers in list(self._standing.items()):
                if self._concerns(port):
                    for writer in writers:
                        _reset(writer)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        if self._mode == "refuse" and self._concerns(port):
            _reset(writer)
            return
        self._standing[port] = (writer,)
        onward: asyncio.StreamWriter | None = None
        try:
            # The far end learns of a connection only when the network carries something.
            await self._passable(port)
            try:
                back, onward = await asyncio.open_connection(*self._to)
            except OSError:
                _reset(writer)
                return
            self._standing[port] = (writer, onward)
            if self._mode == "refuse" and self._concerns(port):
                _reset(onward)
                _reset(writer)
                return
            await asyncio.gather(self._carry(port, reader, onward), self._carry(port, back, writer))
        finally:
            del self._standing[port]
            for each in (writer, onward):
                if each is not None:
                    each.close()

    async def _carry(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One direction: every block goes on its way so long after it came, in order."""
        loop = asyncio.get_running_loop()
        blocks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_AHEAD_BLOCKS)

        async def deliver() -> None:
            while True:
                due, block = await blocks.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._passable(port)
                if not block:
                    writer.write_eof()
                    return
                writer.write(block)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while block := await reader.read(_BLOCK_BYTES):
                await blocks.put((loop.time() + self._delay_seconds, block))
                if delivering.done():
                    break
            await blocks.put((loop.time() + self._delay_seconds, b""))
            await delivering
        except OSError:
            _reset(writer)
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)

    async def _passable(self, port: int) -> None:
        while self._mode == "hold" and self._concerns(port):
            await self._changed.wait()

    def _concerns(self, port: int) -> bool:
        return self._owners is None or not self._owners.isdisjoint(_owners_of(port))


def _owners_of(port: int) -> set[int]:
    """The processes that have a TCP connection from this local port."""
    wanted = f":{port:04X}"
    inodes = {
        f"socket:[{fields[9]}]"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(wanted)
    }
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end while one looks.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in inodes:
                    found.add(int(process.name))
    return found


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes so that the other end sees a reset."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _serve(host: str) -> None:
    relays: dict[str, _Relay] = {}
    servers: list[asyncio.Server] = []
    minded: list[tuple[int, float]] = []
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command = json.loads(line)
        answer: Any = None
        if command["do"] == "open":
            relay = relays[command["name"]] = _Relay((command["host"], command["to_port"]))
            server = await asyncio.start_server(relay.accept, host, command["port"])
            servers.append(server)
            answer = server.sockets[0].getsockname()[1]
        elif command["do"] == "mind":
            minded = command["processes"]
        else:
            relays[command["name"]].set(command["mode"], command["delay"], command["owners"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid, created in minded:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == created and pid != os.getpid():
                process.kill()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
