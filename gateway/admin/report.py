"""What the admin port tells of this node, gathered from its parts."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from gateway.admin.origins import OriginWatch
from gateway.cluster.members import Members
from gateway.config import NodeConfig
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier


class Joins(Protocol):
    """What makes this node one of several."""

    @property
    def members(self) -> Members: ...

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
    ) -> None:
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
            }
        ]

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
