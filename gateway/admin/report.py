"""What the admin port tells of this node, gathered from its parts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, Protocol

from gateway.admin.origins import OriginWatch
from gateway.cluster.directory import Directory
from gateway.cluster.members import Member, Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.config import NodeConfig
from gateway.errors import TierUnavailable
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier

# Asks a node by id what it holds of a bucket's prefix; None where it does not say.
AskHeld = Callable[[str, str, str], Awaitable[int | None]]
_Node = Member | NodeConfig


class Joins(Protocol):
    """What makes this node one of several."""

    @property
    def members(self) -> Members: ...

    def refresh(self) -> None:
        """Brings the gauges up to now."""
        ...


class Lists(Protocol):
    """What knows who holds what."""

    @property
    def directory(self) -> Directory: ...

    @property
    def rebuilding(self) -> Rebuilding: ...


class NodeReport:
    """Answers as plain values, ready for JSON. `state` says "starting", "serving", "draining"."""

    def __init__(
        self,
        node: NodeConfig,
        *,
        disk: DiskTier,
        service: ObjectService,
        metrics: Metrics,
        state: Callable[[], str],
        s3_url: Callable[[], str],
        origins: OriginWatch,
        joining: Joins | None = None,
        listing: Lists | None = None,
        ask_held: AskHeld | None = None,
    ) -> None:
        self._listing = listing
        self._ask_held = ask_held
        self._joining = joining
        self._node = node
        self._disk = disk
        self._service = service
        self._metrics = metrics
        self._state = state
        self._s3_url = s3_url
        self._origins = origins

    async def readiness(self) -> dict[str, Any]:
        """Whether S3 requests are answered; whether the cache disk and each origin take part.

        Only a node that does not serve is not ready: with an origin away, what is fresh is still
        answered, and taking every node out of the balancer would end that too.
        """
        state = self._state()
        if state == "starting":
            return {"ready": False, "state": state}
        degraded = self._disk.usage().degraded
        return {
            "ready": state == "serving",
            "state": state,
            "cache": degraded or "ok",
            "origins": {
                name: "ok" if answers else "away"
                for name, answers in (await self._origins.look()).items()
            },
        }

    def members(self) -> list[dict[str, Any]]:
        """The nodes alive; without a cluster, this one."""
        usage = self._disk.usage()
        return [
            {
                "id": self._node.id,
                "rack": self._node.rack,
                "zone": self._node.zone,
                "state": self._state(),
                "version": version("feedrack"),
                "s3": self._s3_url() if self._state() != "starting" else "",
                "cache_bytes": usage.bytes,
                "cache_capacity_bytes": int(usage.capacity_bytes),
                "cache_degraded": usage.degraded,
                "rebuilding": self._listing.rebuilding.ratios if self._listing else {},
            }
        ]

    async def dataset(self, bucket: str, prefix: str) -> dict[str, Any]:
        """Bytes held of the objects under `prefix`, by node and by rack, from the directory's
        counters; where these are too coarse, or Redis is away, from the nodes. `unknown`: the nodes
        that did not say. NoSuchBucket."""
        members = self._members_now()
        held = await self._counted(bucket, prefix)
        if held is None:
            held = await self._asked(bucket, prefix, members)
        racks: dict[str, int] = {}
        for member in members:
            racks[member.rack] = racks.get(member.rack, 0) + (held.get(member.id) or 0)
        return {
            "dataset": f"s3://{bucket}/{prefix}",
            "nodes": [
                {"id": each.id, "rack": each.rack, "bytes": held.get(each.id) or 0}
                for each in members
            ],
            "racks": [{"rack": rack, "bytes": size} for rack, size in sorted(racks.items())],
            "unknown": [each.id for each in members if held.get(each.id) is None],
        }

    async def held_here(self, bucket: str, prefix: str) -> int:
        """As this node's part of `dataset`, from its index. NoSuchBucket."""
        return await self._service.held_bytes(bucket, prefix)

    def _members_now(self) -> Sequence[_Node]:
        members = self._joining.members.all() if self._joining is not None else ()
        if any(each.id == self._node.id for each in members):
            return members
        return (*members, self._node)

    async def _counted(self, bucket: str, prefix: str) -> dict[str, int | None] | None:
        """What the counters say; None where they say too little."""
        if self._listing is None:
            return None
        where = self._service.bucket(bucket)
        try:
            roots = await self._service.pack_roots(bucket, prefix)
            if roots is None:
                return None
            held = await self._listing.directory.dataset(
                where.origin.name, where.origin_bucket, prefix, roots
            )
        except TierUnavailable:
            return None
        return {**held.nodes} if held.exact else None

    async def _asked(
        self, bucket: str, prefix: str, members: Sequence[_Node]
    ) -> dict[str, int | None]:
        """What each node says for itself; None of those that do not."""

        async def ask(node: _Node) -> int | None:
            if node.id == self._node.id:
                return await self.held_here(bucket, prefix)
            if self._ask_held is None:
                return None
            return await self._ask_held(node.id, bucket, prefix)

        answers = await asyncio.gather(*map(ask, members))
        return {node.id: answer for node, answer in zip(members, answers, strict=True)}

    def fills(self) -> list[dict[str, Any]]:
        """The spans on their way in now."""
        return [
            {
                "bucket": span.version.ref.bucket,
                "key": span.version.ref.key,
                "chunk": span.number,
                "bytes": span.size_bytes,
                "received_bytes": received,
            }
            for span, received in self._service.fills()
        ]

    def refresh(self) -> None:
        """Brings the gauges up to now that nobody keeps current."""
        usage = self._disk.usage()
        self._metrics.cache_bytes.set(usage.bytes)
        self._metrics.cache_capacity_bytes.set(usage.capacity_bytes)
        if self._joining is not None:
            self._joining.refresh()
        else:
            self._metrics.members.set(1)
