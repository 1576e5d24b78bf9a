"""A node's part in the cluster's data path: whom it asks, and the port where it is asked."""

from gateway.cluster.members import Members
from gateway.cluster.placement import Placement
from gateway.cluster.proof import Prover
from gateway.config import Config, read_secret
from gateway.peers.address import advertised, listen_of
from gateway.peers.port import PeerPort
from gateway.peers.rdma import PeerRdma
from gateway.peers.reads import read_routes
from gateway.rdma import verbs
from gateway.rdma.server import OpenDevice, RdmaServer
from gateway.store.giving import Giving
from gateway.telemetry.metrics import Metrics
from gateway.tiers.peers.client import PeerClient
from gateway.tiers.peers.moving import Moving
from gateway.tiers.peers.near import Near
from gateway.tiers.protocol import Holders


class PeerParts:
    """Needs `[cluster]` in the configuration. `near` is for the object service, which `serve` gives
    to others; `client` and `port` are for whoever has more to ask or to answer."""

    def __init__(
        self,
        config: Config,
        members: Members,
        metrics: Metrics,
        *,
        holders: Holders | None = None,
        open_device: OpenDevice = verbs.open_device,
    ) -> None:
        cluster = config.cluster
        assert cluster is not None  # noqa: S101 - the caller has looked
        self._config = config
        prover = Prover(read_secret(cluster.secret_file, "cluster.secret_file"))
        self.placement = Placement(members, rack_aware=cluster.rack_aware)
        self.client = PeerClient(members, prover, metrics)
        self.moving = Moving(
            config.rdma,
            config.cache.chunk_size,
            self.client,
            members,
            metrics,
            open_device=open_device,
        )
        self.near = Near(
            members, self.placement, self.client, metrics, holders=holders, moving=self.moving
        )
        self._metrics = metrics
        self.port = PeerPort(config.node.id, listen_of(config), prover, metrics)

    def serve(self, service: Giving, rdma: RdmaServer) -> None:
        """Gives others what `service` has, by `rdma` where both can; before `start`."""
        timeout_seconds = self._config.rdma.transfer_timeout_seconds
        moved = PeerRdma(rdma, self._metrics, timeout_seconds=timeout_seconds)
        for route in (*read_routes(service, moved), *moved.routes()):
            self.port.add(route)

    @property
    def address(self) -> str:
        """What `Member.peers` says, once the port is bound."""
        return advertised(self._config, self.port.port)

    async def start(self) -> None:
        """Begins to answer. OSError where the address cannot be had."""
        await self.port.start()

    async def close(self) -> None:
        """Answers what was asked, then neither answers nor asks any more."""
        await self.port.drain()
        await self.port.close()
        await self.moving.close()
        self.client.close()
