"""The composition root: the only place that builds a node and knows who needs whom.

A node of several workers is the same node, as their keeper; what differs is in
`processes/keeper.py` and `processes/worker.py`.
"""

import asyncio
import gc
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.admin.dataset_pages import DatasetPages
from gateway.admin.datasets import Datasets
from gateway.admin.origins import OriginWatch
from gateway.admin.report import NodeReport, own_usage
from gateway.admin.server import AdminServer
from gateway.auth.readers import Readers
from gateway.cluster.jobs import Jobs, RedisJobs
from gateway.cluster.local_jobs import LocalJobs
from gateway.cluster.members import Members
from gateway.config import Config, DirectoryOriginConfig, Secret, admin_url, read_secret, s3_url
from gateway.errors import FeedrackError
from gateway.joining import Joining
from gateway.listing import Listing
from gateway.peers.counting import held_route
from gateway.peers.parts import PeerParts
from gateway.peers.taking import take_route
from gateway.rdma import verbs
from gateway.rdma.server import OpenDevice, RdmaServer
from gateway.s3.doors import Door, TcpDoor
from gateway.s3.entry import authenticator_of
from gateway.s3.server import S3Server, object_server
from gateway.s3.tls import certificate
from gateway.store.buckets import BucketTable
from gateway.store.fill import Filler
from gateway.store.handover import Handover
from gateway.store.prefetch import Prefetcher
from gateway.store.service import ObjectService
from gateway.store.versions import Observer, VersionTable
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.own_counts import OwnCounts
from gateway.tiers.packed.files import IndexFiles
from gateway.tiers.packed.handing import Handing
from gateway.tiers.packed.origin import PackedOrigin
from gateway.tiers.peers.counting import HeldAsker
from gateway.tiers.peers.taking import TakeAsker
from gateway.tiers.protocol import Origin

# A shard larger than this part of the cache is read by ranges: it would sweep out the rest.
_LARGEST_SHARD = 4

log = structlog.get_logger()


class Parts:
    """What answers requests, whoever lets them in: everything of a node but its two ports.

    `observer` is told what is believed of objects, `on_index` which index may be, `on_trust` until
    when either is good. `members`: who is in the cluster, where no membership keeps it current.
    """

    def __init__(
        self,
        config: Config,
        *,
        observer: Observer | None = None,
        on_index: Callable[[Path | None], None] = lambda _: None,
        on_trust: Callable[[float], None] = lambda _: None,
        members: Members | None = None,
        open_device: OpenDevice = verbs.open_device,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.rdma = RdmaServer(config.rdma, self.metrics, open_device=open_device)
        cluster = config.cluster
        self.joining: Joining | None = None
        if cluster is not None and members is None:
            self.joining = Joining(config, cluster, self.metrics)
            members = self.joining.members
        trusted_until = self.joining.trusted_until if self.joining is not None else None
        self.listing: Listing | None = None
        self.peers: PeerParts | None = None
        if self.joining is not None:
            self.listing = Listing(self.joining.link, self.joining.members, self.metrics)
        if cluster is not None and members is not None:
            holders = self.listing.directory if self.listing is not None else None
            self.peers = PeerParts(config, members, self.metrics, holders=holders)
        self.disk = DiskTier(
            config.cache,
            self.metrics,
            on_index=on_index,
            observer=self.listing.observer if self.listing is not None else None,
        )
        self.indexes = IndexFiles(config.cache.path / "packs", self.disk.take_beside)
        self.origins: dict[str, PackedOrigin] = {}
        self.handing = Handing(config.node.id, self.disk, self.origins, trusted_until=trusted_until)
        for name in config.origins:
            self.origins[name] = PackedOrigin(
                _origin(config, name, self.metrics),
                self.indexes,
                node=config.node.id,
                limit_bytes=config.cache.capacity // _LARGEST_SHARD,
                now=time.monotonic,
                settled=self.handing.settled,
            )
        self.filler = Filler(
            self.disk, self.metrics, small_object_limit_bytes=config.cache.small_object_limit
        )
        versions = VersionTable(now=time.monotonic, observer=observer, trusted_until=trusted_until)
        buckets = BucketTable(config, self.origins, packs=self.origins)
        changes = None
        if self.joining is not None:
            changes = self.joining.attach(
                versions,
                self.disk,
                self.origins,
                immutable=buckets.immutable,
                on_trust=on_trust,
                tell=self._told,
            )

        def service(buckets: BucketTable, handing: Handing | None) -> ObjectService:
            return ObjectService(
                buckets=buckets,
                disk=self.disk,
                filler=self.filler,
                versions=versions,
                cache=config.cache,
                changes=changes,
                handing=handing,
                near=self.peers.near if self.peers is not None else None,
            )

        self.service = service(buckets, self.handing)
        if self.peers is not None:
            self.peers.serve(self.service)
            self.peers.port.add(held_route(self.service.held_bytes))
            if self.joining is not None:
                self.peers.port.add(take_route(self.service.take, self.joining.members))
        # The same tables, so that a write through either is seen by the other at once.
        past = {name: origin.past_packs for name, origin in self.origins.items()}
        self.past_packs = service(BucketTable(config, past, past_packs=True), None)
        self.prefetcher = self._prefetcher()
        self.leaving: asyncio.Task[None] | None = None
        self.authenticator = authenticator_of(config)
        self.readers = Readers(config.tenants)

    def _prefetcher(self) -> Prefetcher:
        config, joining, cluster = self.config, self.joining, self.config.cluster
        jobs: Jobs = LocalJobs()
        if joining is not None:
            jobs = RedisJobs(joining.link, config.node.id)
        return Prefetcher(
            jobs,
            self.service,
            config.node,
            config.cache,
            members=joining.members if joining is not None else None,
            rack_aware=cluster is None or cluster.rack_aware,
        )

    def s3(self, door: Door, **how: Any) -> S3Server:
        """The S3 face, for those who come in by `door`; `how` as `object_server` takes it."""
        return object_server(
            self.config,
            self.service,
            self.authenticator,
            self.metrics,
            past_packs=self.past_packs,
            rdma=self.rdma,
            door=door,
            **how,
        )

    def admin(
        self,
        *,
        state: Callable[[], str],
        s3_url: Callable[[], str],
        on_drain: Callable[[], None],
        on_restart: Callable[[], None] | None = None,
        listeners: Sequence[socket.socket] = (),
    ) -> AdminServer:
        """The admin port over all this."""
        config = self.config

        def state_now() -> str:
            found = state()
            return "draining" if found == "serving" and self.leaving is not None else found

        return AdminServer(
            config.admin,
            token=_admin_token(config),
            report=NodeReport(
                config.node,
                disk=self.disk,
                service=self.service,
                metrics=self.metrics,
                state=state_now,
                s3_url=s3_url,
                origins=OriginWatch(self.origins, now=time.monotonic),
                joining=self.joining,
                rebuilding=self.listing.rebuilding if self.listing is not None else None,
            ),
            metrics=self.metrics,
            datasets=Datasets(
                config.node,
                self.service,
                self.readers,
                members=self.joining.members if self.joining is not None else None,
                directory=self.listing.directory if self.listing is not None else None,
                ask=HeldAsker(self.peers.client) if self.peers is not None else None,
            ),
            pages=self._dataset_pages(),
            prefetcher=self.prefetcher,
            on_drain=lambda: self._leave(on_drain),
            on_restart=on_restart,
            listeners=listeners,
        )

    def _dataset_pages(self) -> DatasetPages:
        if self.joining is None or self.listing is None:
            counts = OwnCounts(self.config.node.id, self.disk)
            return DatasetPages(self.service, counts, self.readers)
        members = self.joining.members
        return DatasetPages(
            self.service,
            self.listing.directory.counters,
            self.readers,
            ready=lambda: members.here() is not None,
        )

    async def start(self) -> None:
        """Origins first, then the disk, which recovers. TierUnavailable where RDMA must be."""
        await self.rdma.start()
        for origin in self.origins.values():
            await origin.start()
        await self.disk.start()
        await self.indexes.start()
        await self.handing.start()
        if self.peers is not None:
            await self.peers.start()

    async def join(self, *, s3: str, admin: str) -> None:
        """Becomes a member of the cluster, where there is one. Claimed: another node that is alive
        has this one's id."""
        if self.joining is not None:
            # What an earlier run of this node handed to readers must be over first.
            await self.handing.settled()
            await self.joining.start(
                peers=self.peers.address if self.peers is not None else "",
                s3=s3,
                admin=admin,
                owns_folder=self.disk.accepting,
            )
        if self.listing is not None:
            self.listing.start()
        self.prefetcher.start()

    def _told(self) -> bytes:
        rebuilding = self.listing.rebuilding if self.listing is not None else None
        return msgspec.json.encode(own_usage(self.disk, rebuilding))

    def _leave(self, then: Callable[[], None]) -> None:
        """Hands over what only this node holds, and goes on with `then`. Once is enough."""
        if self.leaving is None:
            self.leaving = asyncio.create_task(self._hand_over())
            self.leaving.add_done_callback(lambda task: None if task.cancelled() else then())

    async def _hand_over(self) -> None:
        config, joining, listing = self.config, self.joining, self.listing
        if joining is None or listing is None or self.peers is None or config.cluster is None:
            return
        self.prefetcher.rest()
        handover = Handover(
            self.disk,
            listing.directory,
            joining.members,
            config.node,
            listing.rebuilding,
            TakeAsker(self.peers.client),
            rack_aware=config.cluster.rack_aware,
            deadline_seconds=config.cluster.drain_seconds,
        )
        try:
            await joining.announce_leave()
            await handover.run()
        except FeedrackError as error:
            log.warning("not handed over", reason=str(error))
        except Exception:  # a bug here must not keep the node from leaving
            log.exception("not handed over")

    async def stop(self) -> None:
        """Call when nothing is in flight any more."""
        if self.leaving is not None:
            self.leaving.cancel()
            await asyncio.gather(self.leaving, return_exceptions=True)
        await self.prefetcher.close()
        await self.rdma.close()
        if self.peers is not None:
            await self.peers.close()
        await self.handing.close()
        await self.past_packs.close()
        await self.service.close()
        if self.listing is not None:
            await self.listing.stop()
        if self.joining is not None:
            await self.joining.stop()
        await self.disk.close()
        for origin in self.origins.values():
            await origin.close()
        await self.indexes.remove_temporary()


class Node:
    """One gateway in one process: everything between its configuration and its two ports."""

    def __init__(
        self,
        config: Config,
        *,
        members: Members | None = None,
        open_device: OpenDevice = verbs.open_device,
    ) -> None:
        self.config = config
        self.parts = Parts(config, members=members, open_device=open_device)
        self.certificate = certificate(config.s3)
        self.door = TcpDoor(
            config.s3.listen,
            certificate=self.certificate,
            handshake_timeout_seconds=config.s3.limits.header_timeout_seconds or None,
        )
        parts = self.parts
        self.metrics, self.service, self.origins = parts.metrics, parts.service, parts.origins
        self.s3 = parts.s3(self.door)
        self.stopping = asyncio.Event()
        self.admin = parts.admin(
            state=lambda: self.state, s3_url=lambda: self.s3_url, on_drain=self.stopping.set
        )
        self.state = "starting"

    @property
    def s3_url(self) -> str:
        """Where S3 is served, with the port that was really bound."""
        return s3_url(self.config, self.door.port)

    @property
    def admin_url(self) -> str:
        return admin_url(self.config, self.admin.port)

    async def start(self) -> None:
        """Starts from the bottom up. The admin port answers first, so that `/readyz` can tell."""
        await self.admin.start()
        await self.parts.start()
        await self.s3.start()
        await self.parts.join(s3=self.s3_url, admin=self.admin_url)
        self.state = "serving"
        log.info("serving", node=self.config.node.id, s3=self.s3_url, admin=self.admin_url)

    def reload_certificate(self) -> None:
        """Reads certificate and key again, where the S3 port has them."""
        if self.certificate is not None:
            self.certificate.reload()

    def refuse_restart(self) -> None:
        """SIGUSR2 would otherwise end a process that has nobody to take over from it."""
        log.error("not restarted", reason="a node of one process cannot be restarted in parts")

    async def stop(self) -> None:
        """Drains the requests in flight, then stops from the top down."""
        self.state = "draining"
        log.info("draining", node=self.config.node.id)
        await self.s3.drain()
        await self.s3.close()
        await self.parts.stop()
        await self.admin.close()
        log.info("stopped", node=self.config.node.id)


async def serve(config: Config) -> None:
    """Runs a node of one process until SIGTERM, SIGINT or `POST /v1/drain`."""
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stopping.set)
    loop.add_signal_handler(signal.SIGHUP, node.reload_certificate)
    loop.add_signal_handler(signal.SIGUSR2, node.refuse_restart)
    try:
        await node.start()
        # What stands now stands to the end: not looking through it again keeps full collections
        # from holding everybody up for a tenth of a second.
        gc.collect()
        gc.freeze()
        await node.stopping.wait()
    finally:
        await node.stop()


def _origin(config: Config, name: str, metrics: Metrics) -> Origin:
    origin = config.origins[name]
    if isinstance(origin, DirectoryOriginConfig):
        return DirectoryOrigin(name, origin.path, metrics)
    secret = (
        read_secret(origin.secret_key_file, f"origins.{name}.secret_key_file")
        if origin.secret_key_file is not None
        else None
    )
    return S3Origin(name, origin, secret, metrics)


def _admin_token(config: Config) -> Secret | None:
    path = config.admin.token_file
    return read_secret(path, "admin.token_file") if path is not None else None
