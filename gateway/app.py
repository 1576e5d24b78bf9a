"""The composition root: the only place that builds objects and knows who needs whom."""

import asyncio
import signal
import time

import structlog

from gateway.admin.origins import OriginWatch
from gateway.admin.report import NodeReport
from gateway.admin.server import AdminServer
from gateway.auth.sigv4 import Authenticator
from gateway.auth.tenants import load_tenants
from gateway.config import Config, DirectoryOriginConfig, Secret, read_secret
from gateway.s3.doors import TcpDoor
from gateway.s3.endpoint import Endpoint
from gateway.s3.entry import Entry
from gateway.s3.held import HeldEndpoint
from gateway.s3.long_lane import Lanes
from gateway.s3.record import Recorder
from gateway.s3.server import S3Server
from gateway.s3.tls import certificate
from gateway.store.buckets import BucketTable
from gateway.store.fill import Filler
from gateway.store.service import ObjectService
from gateway.store.versions import VersionTable
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.requests import RequestReporter
from gateway.tiers.disk import DiskTier
from gateway.tiers.origin_directory import DirectoryOrigin
from gateway.tiers.origin_s3 import S3Origin
from gateway.tiers.protocol import Origin

log = structlog.get_logger()


class Node:
    """One gateway: everything between its configuration and its two ports."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.origins = {name: _origin(config, name, self.metrics) for name in config.origins}
        self.disk = DiskTier(config.cache, self.metrics)
        self.filler = Filler(
            self.disk, self.metrics, small_object_limit_bytes=config.cache.small_object_limit
        )
        self.service = ObjectService(
            buckets=BucketTable(config, self.origins),
            disk=self.disk,
            filler=self.filler,
            versions=VersionTable(now=time.monotonic),
            cache=config.cache,
        )
        self.certificate = certificate(config.s3)
        self.door = TcpDoor(
            config.s3.listen,
            certificate=self.certificate,
            handshake_timeout_seconds=config.s3.limits.header_timeout_seconds or None,
        )
        self.s3 = self._s3_server()
        self.stopping = asyncio.Event()
        self.admin = AdminServer(
            config.admin,
            token=_admin_token(config),
            report=NodeReport(
                config.node,
                disk=self.disk,
                service=self.service,
                metrics=self.metrics,
                state=lambda: self.state,
                s3_url=lambda: self.s3_url,
                origins=OriginWatch(self.origins, now=time.monotonic),
            ),
            metrics=self.metrics,
            on_drain=self.stopping.set,
        )
        self.state = "starting"

    def _s3_server(self) -> S3Server:
        config = self.config
        authenticator = Authenticator(
            load_tenants(config),
            region=config.s3.region,
            clock_skew_seconds=config.s3.clock_skew_seconds,
        )
        recorder = Recorder(config.node.id, RequestReporter(self.metrics, config.log))
        entry = Entry(config.s3, authenticator, self.service.bucket)
        endpoint = Endpoint(config, self.service, entry, recorder, self.metrics)
        return S3Server(
            config.s3.limits,
            self.metrics,
            door=self.door,
            held=HeldEndpoint(entry, self.service.held, recorder, self.metrics),
            lanes=Lanes(endpoint, header_bytes=config.s3.limits.header_bytes),
            refuse=endpoint.refuse,
        )

    @property
    def s3_url(self) -> str:
        """Where S3 is served, with the port that was really bound."""
        scheme = "https" if self.config.s3.tls_cert_file is not None else "http"
        host = self.config.s3.listen.rpartition(":")[0]
        return f"{scheme}://{host}:{self.door.port}"

    @property
    def admin_url(self) -> str:
        host = self.config.admin.listen.rpartition(":")[0]
        return f"http://{host}:{self.admin.port}"

    async def start(self) -> None:
        """Starts from the bottom up. The admin port answers first, so that `/readyz` can tell."""
        await self.admin.start()
        for origin in self.origins.values():
            await origin.start()
        await self.disk.start()
        await self.s3.start()
        self.state = "serving"
        log.info("serving", node=self.config.node.id, s3=self.s3_url, admin=self.admin_url)

    def reload_certificate(self) -> None:
        """Reads certificate and key again, where the S3 port has them."""
        if self.certificate is not None:
            self.certificate.reload()

    async def stop(self) -> None:
        """Drains the requests in flight, then stops from the top down."""
        self.state = "draining"
        log.info("draining", node=self.config.node.id)
        await self.s3.drain()
        await self.s3.close()
        await self.service.close()
        await self.disk.close()
        for origin in self.origins.values():
            await origin.close()
        await self.admin.close()
        log.info("stopped", node=self.config.node.id)


async def serve(config: Config) -> None:
    """Runs one node until SIGTERM, SIGINT or `POST /v1/drain`."""
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stopping.set)
    loop.add_signal_handler(signal.SIGHUP, node.reload_certificate)
    try:
        await node.start()
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
