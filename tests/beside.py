"""Real processes that tests talk to, a JSON line for a JSON line."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Other:
    """A process under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, do: str, **arguments: Any) -> Any:
        """What the process answers to a command."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await self.process.stdin.drain()
        line = await self.process.stdout.readline()
        assert line, "the process has died"
        return json.loads(line)

    async def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def other_process(module: str, *arguments: object) -> AsyncIterator[Other]:
    """Runs `python -m module` with the arguments; it ends when nobody speaks to it any more."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield Other(process)
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
