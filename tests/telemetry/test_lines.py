"""Lines reach standard error together, whole and in order; what is wrong with it stays there."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.telemetry.lines import LineWriter

_HELD_BYTES = 50_000


class Pipe:
    """A pipe whose ends may be closed early."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader, self.writer = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)

        self.got: list[bytes] = []

    async def read(self, enough: Callable[[], bool]) -> list[bytes]:
        """All lines that came, once there are enough."""
        os.set_blocking(self.reader.fileno(), False)
        got = b""
        async with asyncio.timeout(60):
            while not enough() or not got.endswith(b"\n"):
                got += self.reader.read(1 << 16) or b""
                self.got = got.splitlines(keepends=True)
                await asyncio.sleep(0.001)
        return self.got


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    with made.reader, made.writer:
        yield made


@pytest.fixture
def lines(pipe: Pipe) -> Iterator[LineWriter]:
    writer = LineWriter(pipe.writer.fileno(), held_bytes=_HELD_BYTES)
    yield writer
    writer.close()


def _line(number: int, size_bytes: int = 300) -> bytes:
    return b"%06d" % number + b"." * (size_bytes - 7) + b"\n"


async def test_lines_of_a_moment_go_out_in_one_write() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        lines = LineWriter(ours.fileno())
        for number in range(5):
            lines.add(_line(number))
        with pytest.raises(BlockingIOError):
            theirs.recv(1 << 16)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(theirs, 1 << 16) == b"".join(map(_line, range(5)))
        lines.close()


async def test_a_line_that_must_go_out_now_takes_those_before_it_along() -> None:
    with tempfile.TemporaryFile() as file:
        lines = LineWriter(file.fileno())
        lines.add(b"one\n")
        lines.write(b"two\n")
        file.seek(0)
        assert file.read() == b"one\ntwo\n"


def test_without_a_loop_a_line_goes_out_at_once() -> None:
    with tempfile.TemporaryFile() as file:
        LineWriter(file.fileno()).add(b"one\n")
        file.seek(0)
        assert file.read() == b"one\n"


def test_a_loop_that_ended_early_takes_no_line_along() -> None:
    async def tell(lines: LineWriter, line: bytes) -> None:
        lines.add(line)

    with tempfile.TemporaryFile() as file:
        lines = LineWriter(file.fileno())
        asyncio.run(tell(lines, b"one\n"))
        asyncio.run(tell(lines, b"two\n"))
        lines.drain()
        file.seek(0)
        assert file.read() == b"one\ntwo\n"


async def test_a_burst_larger_than_a_pipe_arrives_whole_and_in_order(
    pipe: Pipe, lines: LineWriter
) -> None:
    for number in range(350):
        lines.add(_line(number))
    assert await pipe.read(lambda: len(pipe.got) == 350) == list(map(_line, range(350)))


async def test_a_reader_that_does_not_read_costs_bounded_memory_and_is_told(
    pipe: Pipe, lines: LineWriter
) -> None:
    for number in range(10_000):
        lines.add(_line(number))
    assert len(lines._pending) <= _HELD_BYTES
    assert len(lines._gathered) <= 256
    with capture_logs() as logs:
        got = await pipe.read(lambda: bool(logs) and len(pipe.got) == 10_000 - logs[0]["lines"])
    assert got == list(map(_line, range(len(got))))
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("log lines lost", "warning")
    ]


def test_the_flag_not_to_wait_is_kept_from_others_who_share_the_pipe(
    pipe: Pipe, lines: LineWriter
) -> None:
    lines.write(b"one\n")
    assert os.get_blocking(pipe.writer.fileno())


async def test_a_long_line_torn_by_a_full_pipe_arrives_whole(pipe: Pipe, lines: LineWriter) -> None:
    lines.write(_line(1, 100_000))
    lines.write(_line(2))
    assert await pipe.read(lambda: len(pipe.got) == 2) == [_line(1, 100_000), _line(2)]


def test_a_reader_that_is_gone_raises_nothing(pipe: Pipe, lines: LineWriter) -> None:
    pipe.reader.close()
    for number in range(1_000):
        lines.write(_line(number))
    lines.drain()
    assert not lines._pending


def test_a_full_disk_raises_nothing() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        lines = LineWriter(full.fileno())
        lines.write(b"one\n")
        lines.drain()
        assert not lines._pending


def test_what_is_left_goes_out_at_the_end_as_fast_as_the_reader_takes_it(
    pipe: Pipe, lines: LineWriter
) -> None:
    with tempfile.TemporaryFile() as file:
        for number in range(350):
            lines.write(_line(number))
        assert lines._pending
        reader = subprocess.Popen(["cat"], stdin=pipe.reader, stdout=file)
        lines.drain(30)
        assert not lines._pending
        lines.close()
        pipe.writer.close()
        assert reader.wait(timeout=30) == 0
        file.seek(0)
        assert file.read() == b"".join(map(_line, range(350)))


def test_the_end_waits_for_a_reader_that_does_not_read_so_long_and_no_longer(
    lines: LineWriter,
) -> None:
    for number in range(350):
        lines.write(_line(number))
    lines.drain(0.01)
    assert lines._pending


_LOGGING = """
import asyncio, structlog
from gateway.config import LogConfig
from gateway.telemetry.lines import standard_error
from gateway.telemetry.logs import configure
configure(LogConfig())
async def main():
    structlog.get_logger().info("hello")
    standard_error().add(b"told\\n")
asyncio.run(main())
print("done")
"""


def test_no_line_is_lost_where_a_process_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOGGING], capture_output=True, timeout=60, check=True
    )
    assert b'"hello"' in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1] == b"told"


_FORKING = """
import asyncio, os
from gateway.telemetry.lines import standard_error
async def main():
    lines = standard_error()
    lines.add(b"before\\n")
    child = os.fork()
    if not child:
        lines.add(b"child\\n")
        lines.flush()
        os._exit(0)
    os.waitpid(child, 0)
asyncio.run(main())
"""


def test_a_forked_process_tells_its_own_lines_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKING], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b"child\nbefore\n"


def test_a_process_started_without_standard_error_runs_all_the_same() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, _LOGGING],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"done\n"
