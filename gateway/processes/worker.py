"""A worker: it lets clients in, answers what is held, and hands the rest on to the keeper."""

import asyncio
import socket
from pathlib import Path
from typing import cast

import msgspec
import structlog

from gateway.config import Config, S3OriginConfig
from gateway.model.objects import KnownObject, Span
from gateway.model.ranges import ByteRange
from gateway.processes.control import ChildEnd, Order, Ready, Start
from gateway.s3.census import Census
from gateway.s3.doors import TcpDoor
from gateway.s3.entry import Entry, authenticator_of
from gateway.s3.held import HeldEndpoint
from gateway.s3.line import Line
from gateway.s3.record import Recorder
from gateway.s3.refusals import Refusals
from gateway.s3.remainder import Remainder
from gateway.s3.server import S3Server
from gateway.s3.tls import certificate
from gateway.s3.tunnel import Tunnels
from gateway.store.believed import SharedBelief
from gateway.store.buckets import Bucket, BucketTable
from gateway.store.held import HeldReads
from gateway.store.reading import SpanSource
from gateway.store.shared_heads import SharedHeadsView
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestReporter
from gateway.tiers.held_disk import HeldDisk
from gateway.tiers.protocol import InstantReader, Origin, SpanReader

log = structlog.get_logger()

_NOTE_SECONDS = 0.25


class Worker:
    """One worker, from what its supervisor has handed down."""

    def __init__(self, config: Config, start: Start, control: ChildEnd) -> None:
        self._config = config
        self._control = control
        self._ending: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()
        self._over = asyncio.Event()
        metrics = self._metrics = Metrics()
        self._census = Census(start.census, start.place)
        self._disk = HeldDisk(config.cache)
        self._heads = SharedHeadsView(start.heads)
        belief = SharedBelief(self._heads, self._disk, generation=start.generation)
        origins = {
            name: cast(Origin, _Elsewhere(name, relays=isinstance(origin, S3OriginConfig)))
            for name, origin in config.origins.items()
        }
        held = HeldReads(
            belief.believed,
            self._disk.holds,
            self._source,
            chunk_size_bytes=config.cache.chunk_size,
            whole_only=True,
        )
        recorder = Recorder(config.node.id, RequestReporter(metrics, config.log))
        entry = Entry(config.s3, authenticator_of(config), BucketTable(config, origins).resolve)
        self._certificate = certificate(config.s3)
        self._tunnels = str(Path(start.folder) / "keeper.sock")
        self._line = Line(self._tunnels)
        limits = config.s3.limits
        self._s3 = S3Server(
            limits,
            metrics,
            door=TcpDoor(
                config.s3.listen,
                listeners=[socket.socket(fileno=each) for each in start.listeners],
                census=self._census,
                certificate=self._certificate,
                handshake_timeout_seconds=limits.header_timeout_seconds or None,
            ),
            held=HeldEndpoint(entry, held, recorder, metrics),
            lanes=Tunnels(self._tunnels, self._line),
            refuse=Refusals(recorder).refuse,
            count=self._count,
            elsewhere=self._census.elsewhere,
        )

    async def run(self) -> None:
        """Serves until it is told to end, or the supervisor is gone."""
        self._control.open(on_order=self._obey, on_lost=self._be_alone)
        await self._disk.start()
        self._line.open()
        await self._s3.start()
        noting = asyncio.create_task(self._note())
        self._control.tell(Ready())
        await self._over.wait()
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)
        await self._s3.close()
        self._line.note(self._notes())
        await self._line.close()
        await self._disk.close()
        self._heads.close()
        self._census.close()

    def _count(self, connections: int) -> None:
        self._census.count(connections)
        self._metrics.connections.set(connections)

    def _obey(self, order: Order) -> None:
        if order == "reload":
            if self._certificate is not None:
                self._certificate.reload()
        elif order == "drain":
            self._draining.set()
            self._end()
        elif order == "retire":
            self._end()

    def _be_alone(self) -> None:
        log.error("supervisor lost", role="worker")
        self._draining.set()
        self._end()

    def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Retires, and drains as soon as that is asked for."""
        retiring = asyncio.create_task(self._s3.retire())
        draining = asyncio.create_task(self._draining.wait())
        await asyncio.wait((retiring, draining), return_when=asyncio.FIRST_COMPLETED)
        if self._draining.is_set():
            await self._s3.drain()
        for task in (retiring, draining):
            task.cancel()
        self._over.set()

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(_NOTE_SECONDS)
            if self._line.takes_notes:
                self._line.note(self._notes())

    def _notes(self) -> bytes:
        notes = self._disk.take_notes()
        return msgspec.msgpack.encode(notes) if notes else b""

    def _source(self, bucket: Bucket, known: KnownObject, wanted: ByteRange) -> SpanSource:
        return SpanSource(
            known.version,
            wanted,
            _Opener(self._disk, bucket.name, self._tunnels),
            chunk_size_bytes=self._config.cache.chunk_size,
            on_changed=lambda: None,
        )


class _Opener:
    """The disk; and the keeper for what is evicted, or found damaged, in mid-answer."""

    __slots__ = ("_bucket", "_disk", "_number", "_tunnels")

    def __init__(self, disk: HeldDisk, bucket: str, tunnels: str) -> None:
        self._disk = disk
        self._bucket = bucket
        self._tunnels = tunnels
        # Of the span last opened here. Whoever asks for it again could not read it.
        self._number = -1

    def open_now(self, span: Span) -> InstantReader | None:
        if span.number == self._number:
            return None
        reader = self._disk.open_now(span)
        if reader is not None:
            self._number = span.number
        return reader

    async def open(self, span: Span, direct: bool) -> SpanReader:  # noqa: ARG002 - as its protocol has it
        if span.number != self._number:
            self._number = span.number
            reader = await self._disk.open(span)
            if reader is not None:
                return reader
        return Remainder(self._tunnels, self._bucket, span)

    def close(self) -> None:
        """Nothing is filled from here."""


class _Elsewhere:
    """All that is known here of an origin: the keeper talks to it."""

    def __init__(self, name: str, *, relays: bool) -> None:
        self.name = name
        self.relays = relays


async def run(config: Config, start: Start, control: ChildEnd) -> None:
    """Runs a worker to its end."""
    await Worker(config, start, control).run()
