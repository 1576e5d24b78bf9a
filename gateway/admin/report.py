"""What the admin port tells of this node, gathered from its parts."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import msgspec

from gateway.admin.origins import OriginWatch
from gateway.cluster.members import Member, Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.config import NodeConfig
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier


def own_usage(disk: DiskTier, rebuilding: Rebuilding | None) -> dict[str, Any]:
    """What a node tells of its cache, to clients and to other nodes. "rebuilding": what is under
    way, each with its part done, 0 to 1; "evicted_bytes": since its process started."""
    usage = disk.usage()
    return {
        "rebuilding": dict(rebuilding.ratios) if rebuilding is not None else {},
        "cache_bytes": usage.bytes,
        "cache_capacity_bytes": int(usage.capacity_bytes),
        "evicted_bytes": usage.evicted_bytes,
        "cache_degraded": usage.degraded,
    }


def _there(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "rack": member.rack,
        "zone": member.zone,
        "state": member.state,
        "version": member.version,
        "s3": member.s3,
    }


def _usage(raw: bytes | None) -> dict[str, Any]:
    unknown: dict[str, Any] = {
        "cache_bytes": 0,
        "cache_capacity_bytes": 0,
        "evicted_bytes": 0,
        "cache_degraded": None,
        "rebuilding": {},
    }
    return unknown if raw is None else unknown | msgspec.json.decode(raw, type=dict[str, Any])


class Joins(Protocol):
    """What makes this node one of several."""

    @property
    def members(self) -> Members: ...

    async def told(self) -> dict[str, bytes]:
        """What each member last told of itself, as JSON."""
        ...

    def refresh(self) -> None:
        """Brings the gauges up to now."""
        ...


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
        rebuilding: Rebuilding | None = None,
    ) -> None:
        self._rebuilding = rebuilding
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

    async def members(self) -> list[dict[str, Any]]:
        """The nodes alive; without a cluster, or while this node is no member, this one alone."""
        joining = self._joining
        if joining is None or joining.members.here() is None:
            return [self._here() | own_usage(self._disk, self._rebuilding)]
        told = await joining.told()
        return [
            self._here() | own_usage(self._disk, self._rebuilding)
            if member.id == self._node.id
            else _there(member) | _usage(told.get(member.id))
            for member in joining.members.all()
        ]

    def _here(self) -> dict[str, Any]:
        return {
            "id": self._node.id,
            "rack": self._node.rack,
            "zone": self._node.zone,
            "state": self._state(),
            "version": version("feedrack"),
            "s3": self._s3_url() if self._state() != "starting" else "",
        }

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
