"""A worker's line tells a keeper that listens, and gathers nothing for one that does not."""

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.s3.frames import HEADER_BYTES, Kind, frame
from gateway.s3.line import Line
from tests.waiting import until


@pytest.fixture
def path() -> Iterator[Path]:
    # A socket's name must be short.
    with tempfile.TemporaryDirectory(prefix="line") as folder:
        yield Path(folder) / "keeper.sock"


async def test_notes_are_not_heaped_up_for_a_keeper_that_does_not_read(path: Path) -> None:
    notes = bytes(300_000)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        line = Line(str(path))
        line.open()
        assert not line.takes_notes
        keeper, _ = await loop.sock_accept(listener)
        with keeper:
            await loop.sock_sendall(keeper, frame(Kind.HERE))
            await until(lambda: line.takes_notes)
            for _ in range(100):
                line.note(notes)
            assert not line.takes_notes
            assert line._transport is not None
            # The note that did not fit the socket, and no other.
            assert line._transport.get_write_buffer_size() <= HEADER_BYTES + len(notes)

            async def read() -> int:
                total = 0
                while not line.takes_notes:
                    total += len(await loop.sock_recv(keeper, 65_536))
                return total

            assert await read() < 100 * len(notes)
            line.note(b"once more")
            told = b""
            while not told.endswith(b"once more"):
                told += await loop.sock_recv(keeper, 65_536)
            await line.close()
