"""A reading process (`benchmarks.reading`) on the load generator's core, and what it cost."""

import os
import subprocess
import sys

import msgspec
from msgspec import Struct

from benchmarks.reading import Asked, Told
from benchmarks.server import Server, client_cores


class Turn(Struct, frozen=True, kw_only=True):
    """One way's turn: what was read, and the CPU seconds of reader and server."""

    told: Told
    server_cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.told.objects / self.told.seconds

    @property
    def reader_us(self) -> float:
        """CPU microseconds of the reading process an object."""
        return self.told.cpu_seconds * 1e6 / self.told.objects

    @property
    def server_us(self) -> float:
        """CPU microseconds of the server an object."""
        return self.server_cpu_seconds * 1e6 / self.told.objects

    @property
    def cpu_us(self) -> float:
        """Both together."""
        return self.reader_us + self.server_us


def take_turn(asked: Asked, server: Server) -> Turn:
    """Starts a reading process, lets it read, waits for its end. RuntimeError where it breaks."""
    cores = client_cores()
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.reading"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - no threads
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(asked) + b"\n")
        process.stdin.flush()
        ready = process.stdout.readline()
        server.check_alive()
        before = server.cpu_seconds()
        if ready:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        said = process.stdout.readline()
    if not said:
        raise RuntimeError(f"the reader of the way {asked.way!r} broke; its message is above")
    return Turn(
        told=msgspec.json.decode(said, type=Told),
        server_cpu_seconds=server.cpu_seconds() - before,
    )
