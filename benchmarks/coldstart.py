"""A cold start: all nodes empty, all readers at once, and what that asks of the origin.

Each node has a load generator of its own beside it. Every object is asked for by all of a node's
readers at one moment, and by all nodes at about the same: the worst there is.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import boto3
from botocore.config import Config
from msgspec import Struct

from benchmarks.coordinator import Coordinator, Load
from benchmarks.counted import CountedOrigin
from benchmarks.driver import Driver
from benchmarks.jobs import Job, Outcome
from benchmarks.measure import changed, job
from benchmarks.member import JuiceGateway, Node
from benchmarks.racks import Racks
from benchmarks.server import ACCESS_KEY, READ_BUCKET, SECRET_KEY, Server

MIB = 1024**2
CHUNK_BYTES = 8 * MIB
BLOCK_BYTES = 4 * MIB
READERS_A_NODE = 16
_MEMBERS_SECONDS = 120.0
_SOON_SECONDS = 0.3


class Kind(Struct, frozen=True, kw_only=True):
    """Objects of one size. `pieces`: how many an object has that are fetched each by itself."""

    name: str
    count: int
    size_bytes: int
    together: int

    @property
    def all_bytes(self) -> int:
        return self.count * self.size_bytes

    def pieces(self, piece_bytes: int) -> int:
        return self.count * math.ceil(self.size_bytes / piece_bytes)

    @property
    def said(self) -> str:
        size = (
            f"{self.size_bytes // MIB} MiB"
            if self.size_bytes >= MIB
            else f"{self.size_bytes // 1024} KiB"
        )
        return f"{self.count:,} objects of {size}"


class Start(Struct, frozen=True, kw_only=True):
    """One kind of objects, read cold by all. `pieces` are what one GET each would fetch; `gets`
    what the origin counted without `heads`, which it counts among them and those who asked tell.
    `cross_rack_bytes` came to nodes from nodes of other racks, by their own count (None: they do
    not count), and `entered_bytes` into racks over their uplinks, by the kernel's."""

    way: str
    kind: Kind
    pieces: int
    gets: int
    heads: int
    requests: dict[str, int]
    origin_bytes: int
    cross_rack_bytes: int | None
    entered_bytes: int | None
    seconds: float
    read_bytes: int
    failures: int
    first_failure: str | None
    redis: Load | None = None
    redis_sent: int = 0

    @property
    def gets_a_piece(self) -> float:
        return self.gets / self.pieces

    @property
    def times_read(self) -> float:
        """Bytes that the origin gave over those of the objects."""
        return self.origin_bytes / self.kind.all_bytes

    @property
    def times_crossed(self) -> float | None:
        if self.cross_rack_bytes is None:
            return None
        return self.cross_rack_bytes / self.kind.all_bytes

    @property
    def times_entered(self) -> float | None:
        return None if self.entered_bytes is None else self.entered_bytes / self.kind.all_bytes


def fill_origin(target: Server, bucket: str, kinds: Sequence[Kind]) -> None:
    """Uploads the objects to the origin, or through a gateway."""
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{target.host}:{target.port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=bucket)
    with Driver() as driver:
        for kind in kinds:
            put = changed(
                _job(target, kind),
                bucket=bucket,
                mix={"PUT": 1},
                connections=4,
                requests=kind.count,
            )
            outcome = driver.run(changed(put, together=1))
            if outcome.failures:
                raise RuntimeError(f"{outcome.failures} uploads failed: {outcome.first_failure}")


def cold_start(
    way: str,
    racks: Racks,
    origin: CountedOrigin,
    servers: Sequence[Server],
    kinds: Sequence[Kind],
    *,
    piece_bytes: int,
    coordinator: Coordinator | None = None,
) -> list[Start]:
    """Reads each kind, one after the other, by all readers of all servers at once."""
    with ExitStack() as stack:
        drivers = [stack.enter_context(Driver(server.prefix, server.cores)) for server in servers]
        return [
            _read(way, racks, origin, servers, drivers, kind, piece_bytes, coordinator)
            for kind in kinds
        ]


def _read(
    way: str,
    racks: Racks,
    origin: CountedOrigin,
    servers: Sequence[Server],
    drivers: Sequence[Driver],
    kind: Kind,
    piece_bytes: int,
    coordinator: Coordinator | None,
) -> Start:
    nodes = [server for server in servers if isinstance(server, Node)]
    before = _Counts.now(racks, origin, servers)
    redis_before = coordinator.totals() if coordinator is not None else None
    soon = time.monotonic() + _SOON_SECONDS + kind.count * kind.together * 2e-4
    for driver, server in zip(drivers, servers, strict=True):
        driver.ask(changed(_job(server, kind), not_before=soon))
    outcomes = [driver.outcome() for driver in drivers]
    seconds = time.monotonic() - soon
    redis = None
    if coordinator is not None and redis_before is not None:
        redis = coordinator.totals().since(redis_before)
    after = _Counts.now(racks, origin, servers)
    requests = {
        name: count - before.requests.get(name, 0)
        for name, count in after.requests.items()
        if count != before.requests.get(name, 0)
    }
    return Start(
        way=way,
        kind=kind,
        pieces=kind.pieces(piece_bytes),
        gets=requests.get("GET", 0) - (after.heads - before.heads),
        heads=after.heads - before.heads,
        requests=requests,
        origin_bytes=after.origin_bytes - before.origin_bytes,
        cross_rack_bytes=after.cross_rack_bytes - before.cross_rack_bytes if nodes else None,
        entered_bytes=None
        if after.entered_bytes is None or before.entered_bytes is None
        else after.entered_bytes - before.entered_bytes,
        seconds=seconds,
        read_bytes=sum(outcome.body_bytes for outcome in outcomes),
        failures=sum(outcome.failures for outcome in outcomes),
        first_failure=_first(outcomes),
        redis=redis,
        redis_sent=after.redis_commands - before.redis_commands,
    )


class _Counts(Struct, frozen=True):
    requests: dict[str, int]
    heads: int
    origin_bytes: int
    cross_rack_bytes: int
    redis_commands: int
    entered_bytes: int | None

    @classmethod
    def now(cls, racks: Racks, origin: CountedOrigin, servers: Sequence[Server]) -> "_Counts":
        nodes = [server for server in servers if isinstance(server, Node)]
        return cls(
            dict(origin.requests()),
            sum(each.heads() for each in servers if isinstance(each, Node | JuiceGateway)),
            origin.sent_bytes(),
            sum(int(node.metric("feedrack_cross_rack_bytes_total")) for node in nodes),
            sum(int(node.metric("feedrack_redis_commands_total")) for node in nodes),
            racks.entered_bytes,
        )


def _first(outcomes: Sequence[Outcome]) -> str | None:
    return next((each.first_failure for each in outcomes if each.first_failure), None)


def _job(server: Server, kind: Kind) -> Job:
    task = job(
        server,
        prefix=kind.name,
        count=kind.count,
        size_bytes=kind.size_bytes,
        connections=READERS_A_NODE,
    )
    return changed(
        task,
        host=server.host,
        bucket=READ_BUCKET,
        requests=kind.count * kind.together,
        together=kind.together,
        sample_every=0 if kind.size_bytes > MIB else 64,
        timeout_seconds=120.0,
    )


@contextmanager
def running(servers: Sequence[Server]) -> Iterator[None]:
    """Servers that start side by side, and are ended as a crash would."""
    try:
        for server in servers:
            shutil.rmtree(server.folder, ignore_errors=True)
            server.folder.mkdir(parents=True)
            server.launch()
        for server in servers:
            server.await_ready()
        yield
    finally:
        for server in servers:
            server.stop_signal = signal.SIGKILL
            server.stop()


def await_members(nodes: Sequence[Node]) -> None:
    """Waits until every node knows every other, and until the first quiet time of a new Redis is
    over: from then on they trust what they remember."""

    def known() -> bool:
        return all(
            node.members() == len(nodes) and node.metric("feedrack_lease_seconds") > 0
            for node in nodes
        )

    wait(known, "the nodes never became members")


def wait(condition: Callable[[], bool], what: str, seconds: float = _MEMBERS_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(what)
        time.sleep(0.1)
