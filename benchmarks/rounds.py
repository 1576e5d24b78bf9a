"""Rounds: every server takes its turn at every task, in an order that turns around each round.

So whatever else the machine does meets all of them alike. A server that caches starts anew each
round, with an empty folder; the others keep the objects they were given at the beginning.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import rmtree

import boto3
from botocore.config import Config
from rich.console import Console

from benchmarks import objects
from benchmarks.driver import Driver
from benchmarks.jobs import Job, answer_bytes
from benchmarks.measure import Cell, Sample, Samples, changed, job, measure
from benchmarks.nginx import SilentNginx
from benchmarks.node import OverS3
from benchmarks.plain import WAYS, measure_plain_read
from benchmarks.plan import Cold, Plan, Read, Size, Upload
from benchmarks.server import ACCESS_KEY, HOST, READ_BUCKET, SECRET_KEY, Server, client_cores

_CHECKED = 16
_LARGE_BYTES = 1024**2
_FIRST = Size(label="first", size_bytes=4096, count=64)


class Rounds:
    """The load, where samples are kept, and what was `wrong` besides what they say."""

    def __init__(self, plan: Plan, driver: Driver, console: Console) -> None:
        self.samples: Samples = {}
        self.wrong: list[str] = []
        self._plan = plan
        self._driver = driver
        self._console = console
        self._number = 0

    def give_objects(self, server: Server, sizes: Iterable[Size]) -> None:
        """Uploads what a server is to hold that serves no files, and reads all of it once."""
        _create_buckets(server)
        for size in sizes:
            self._console.print(f"{server.name}: given {size.label}", style="dim")
            once = _once(server, size)
            for mix in ("PUT", "GET"):
                outcome = self._driver.run(changed(once, mix={mix: 1}))
                if outcome.failures:
                    raise RuntimeError(f"{server.name}: {mix} failed: {outcome.first_failure}")
        # A bucket's first uploads may have to make room for it.
        first = changed(_once(server, _FIRST), bucket=server.put_bucket, mix={"PUT": 1})
        self._driver.run(first)

    def begin(self, servers: Sequence[Server]) -> list[Server]:
        """Starts caching servers anew; all servers in the order of this round."""
        self._number += 1
        for server in servers:
            if server.caches and self._number > 1:
                server.restart()
            server.cpu_seconds()
        return [*servers] if self._number % 2 else [*reversed(servers)]

    def fill(self, servers: Sequence[Server], sizes: Sequence[Size]) -> None:
        """Each object once through every server that caches: from its directory origin."""
        for size in sizes:
            for server in servers:
                if server.caches:
                    cell = Cell("cold GET", size.label, size.connections)
                    self._sample(cell, server, _once(server, size))

    def read(self, servers: Sequence[Server], tasks: Sequence[Read]) -> None:
        """What is held, as fast as it goes; then at half of each server's own speed."""
        for task in tasks:
            speeds: dict[str, float] = {}
            chosen = [
                server for server in servers if task.silent or not isinstance(server, SilentNginx)
            ]
            for server in chosen:
                cell = Cell(task.operation, task.label, task.connections)
                sample = self._sample(cell, server, _warm(server, task))
                speeds[server.name] = sample.per_second
                self._check(cell, server, _warm(server, task))
            for server in chosen:
                rate = speeds[server.name] / 2
                if task.paced and rate > 0 and not isinstance(server, SilentNginx):
                    cell = Cell(f"{task.operation}, half rate", task.label, task.connections)
                    paced = changed(
                        _warm(server, task), rate=rate, requests=int(rate * task.seconds) + 1
                    )
                    self._sample(cell, server, paced)

    def upload(self, servers: Sequence[Server], tasks: Sequence[Upload]) -> None:
        """New keys; then some are read back and compared."""
        for task in tasks:
            for server in servers:
                if server.put_missing is not None:
                    continue
                size = task.size
                once = changed(
                    _once(server, size),
                    bucket=server.put_bucket,
                    prefix=f"{size.prefix}-{self._number}",
                )
                put = changed(once, mix={"PUT": 1}, seconds=task.seconds)
                cell = Cell("PUT", size.label, size.connections)
                written = self._sample(cell, server, put).outcome.requests
                # The same order as the upload's: only what was uploaded is asked for.
                self._check(cell, server, changed(once, requests=min(written, once.requests)))
                if server.serves_files:
                    rmtree(server.data / server.put_bucket / once.prefix)

    def cold(self, origin: Server, node: OverS3, tasks: Sequence[Cold]) -> None:
        """One client: through a node that holds nothing, from its S3 origin itself, and plainly.

        The origin gets the load generator's core meanwhile, so that the node has one to itself.
        """
        origin.run_on(client_cores())
        try:
            with node:
                # Connections to the origin, and code that is needed only now, are there before.
                warm = self._plan.sizes[1]
                self._driver.run(changed(_once(node, warm), requests=4, connections=1))
                for task in tasks:
                    size = task.size
                    cell = Cell("cold GET from S3", size.label, 1)
                    pair: list[Server] = [origin, node]
                    for server in pair if self._number % 2 else reversed(pair):
                        once = changed(_once(server, size), requests=task.requests, connections=1)
                        self._sample(cell, server, once)
                    origin.check_alive()
                    once = changed(_once(origin, size), requests=task.requests)
                    for way in WAYS if task.plainly else ():
                        self._console.print(f"{way}: {cell.operation} {cell.size}", style="dim")
                        self._keep(cell, way, measure_plain_read(once, way))
        finally:
            origin.run_on(origin.cores)

    def two_cores(self, servers: Sequence[Server], task: Read) -> None:
        """Servers that may use two cores, each started anew, at a read of what is held.

        Where the machine has only two cores, the load generator has one of them too: compare
        their CPU a request, not their rates.
        """
        for server in servers if self._number % 2 else reversed(servers):
            with server:
                outcome = self._driver.run(_once(server, task.size))
                if outcome.failures:
                    raise RuntimeError(f"{server.name}: {outcome.first_failure}")
                cell = Cell("warm GET, two cores", task.label, task.connections)
                self._sample(cell, server, _warm(server, task))

    def _check(self, cell: Cell, server: Server, task: Job) -> None:
        """Asks for some of it again, off the clock, and looks at every byte."""
        some = 1 if answer_bytes(task) > _LARGE_BYTES else _CHECKED
        again = changed(
            task, mix={"GET": 1}, requests=min(task.requests, some), seconds=None, sample_every=1
        )
        found = self._driver.run(again)
        if found.failures or found.hashed != again.requests:
            what = f"{server.name}, {cell.operation} {cell.size}"
            self.wrong.append(f"{what}, asked again off the clock: {found.first_failure}")

    def _sample(self, cell: Cell, server: Server, task: Job) -> Sample:
        self._console.print(f"{server.name}: {cell.operation} {cell.size}", style="dim")
        sample = measure(server, self._driver, task)
        self._keep(cell, server.name, sample)
        return sample

    def _keep(self, cell: Cell, name: str, sample: Sample) -> None:
        self.samples.setdefault(cell, {}).setdefault(name, []).append(sample)


def write_objects(plan: Plan, data: Path) -> None:
    """The objects as files, for the servers that serve files."""
    for size in plan.sizes:
        objects.write_files(data / READ_BUCKET, size.prefix, size.count, size.size_bytes)


def _once(server: Server, size: Size) -> Job:
    task = job(
        server,
        prefix=size.prefix,
        count=size.count,
        size_bytes=size.size_bytes,
        connections=size.connections,
    )
    return changed(task, sample_every=size.sample_every)


def _warm(server: Server, task: Read) -> Job:
    return changed(
        _once(server, task.size),
        connections=task.connections,
        requests=task.requests,
        seconds=task.seconds,
        piece_bytes=task.piece_bytes,
        sample_every=64 if task.piece_bytes is not None else task.size.sample_every,
    )


def _create_buckets(server: Server) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{HOST}:{server.port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    for bucket in (READ_BUCKET, server.put_bucket):
        client.create_bucket(Bucket=bucket)
