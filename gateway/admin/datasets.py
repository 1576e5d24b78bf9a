"""How much of a dataset each node holds: from the directory's counters, which takes a few commands
of Redis however many nodes there are; where these are too coarse, or Redis is away, from the
nodes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.auth.readers import Readers
from gateway.cluster.directory import Directory
from gateway.cluster.members import Member, Members
from gateway.config import NodeConfig
from gateway.errors import TierUnavailable
from gateway.store.service import ObjectService

# Asks a node what it holds of a bucket's prefix; None where it does not say.
AskHeld = Callable[[Member, str, str], Awaitable[int | None]]
_Node = Member | NodeConfig


class Datasets:
    """Answers as plain values, ready for JSON. `members`, `directory` and `ask`: None on a single
    node."""

    def __init__(
        self,
        node: NodeConfig,
        service: ObjectService,
        readers: Readers,
        *,
        members: Members | None = None,
        directory: Directory | None = None,
        ask: AskHeld | None = None,
    ) -> None:
        self._node = node
        self._service = service
        self._readers = readers
        self._members = members
        self._directory = directory
        self._ask = ask

    async def held(self, bucket: str, prefix: str) -> dict[str, Any]:
        """Bytes held of the objects under `prefix`, by node and by rack, and who may read all of
        them. `unknown`: the nodes that did not say; their bytes count as none. NoSuchBucket."""
        where = self._service.bucket(bucket)
        nodes = self._nodes()
        held = await self._counted(bucket, prefix)
        if held is None:
            held = await self._asked(bucket, prefix, nodes)
        racks: dict[str, int] = {}
        for each in nodes:
            racks[each.rack] = racks.get(each.rack, 0) + (held.get(each.id) or 0)
        return {
            "dataset": f"s3://{bucket}/{prefix}",
            "nodes": [
                {"id": each.id, "rack": each.rack, "bytes": held.get(each.id) or 0}
                for each in nodes
            ],
            "racks": [{"rack": rack, "bytes": size} for rack, size in sorted(racks.items())],
            "unknown": [each.id for each in nodes if held.get(each.id) is None],
            "readers": self._readers.of(bucket, prefix, public_read=where.public_read),
        }

    def _nodes(self) -> Sequence[_Node]:
        members = self._members.all() if self._members is not None else ()
        if any(each.id == self._node.id for each in members):
            return members
        return (*members, self._node)

    async def _counted(self, bucket: str, prefix: str) -> dict[str, int | None] | None:
        """What the counters say; None where they say too little."""
        if self._directory is None:
            return None
        where = self._service.bucket(bucket)
        try:
            roots = await self._service.pack_roots(bucket, prefix)
            if roots is None:
                return None
            held = await self._directory.dataset(
                where.origin.name, where.origin_bucket, prefix, roots
            )
        except TierUnavailable:
            return None
        return {**held.nodes} if held.exact else None

    async def _asked(
        self, bucket: str, prefix: str, nodes: Sequence[_Node]
    ) -> dict[str, int | None]:
        """What each node says for itself; None of those that do not."""

        async def ask(node: _Node) -> int | None:
            if not isinstance(node, Member) or node.id == self._node.id:
                return await self._service.held_bytes(bucket, prefix)
            return None if self._ask is None else await self._ask(node, bucket, prefix)

        answers = await asyncio.gather(*map(ask, nodes))
        return {node.id: answer for node, answer in zip(nodes, answers, strict=True)}
