"""What the admin port tells of this node, gathered from its parts."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from gateway.config import NodeConfig
from gateway.store.service import ObjectService
from gateway.telemetry.metrics import Metrics
from gateway.tiers.disk import DiskTier


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
    ) -> None:
        self._node = node
        self._disk = disk
        self._service = service
        self._metrics = metrics
        self._state = state
        self._s3_url = s3_url

    def readiness(self) -> dict[str, Any]:
        """Whether S3 requests are answered, and whether the cache disk takes part in it."""
        state = self._state()
        degraded = self._disk.usage().degraded if state != "starting" else None
        return {"ready": state == "serving", "state": state, "cache": degraded or "ok"}

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
                "s3": self._s3_url(),
                "cache_bytes": usage.bytes,
                "cache_capacity_bytes": int(usage.capacity_bytes),
                "cache_degraded": usage.degraded,
            }
        ]

    async def dataset(self, bucket: str, prefix: str) -> dict[str, Any]:
        """Bytes held of the objects under `prefix`, by node and by rack."""
        where = self._service.bucket(bucket)
        held = await self._disk.held_bytes(where.origin.name, where.origin_bucket, prefix)
        return {
            "dataset": f"s3://{bucket}/{prefix}",
            "nodes": [{"id": self._node.id, "rack": self._node.rack, "bytes": held}],
            "racks": [{"rack": self._node.rack, "bytes": held}],
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
        self._metrics.members.set(1)
