"""Several nodes in one process over one origin, who know each other from the start."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gateway.app import Node
from gateway.cluster.members import Member, Members
from gateway.cluster.placement import homes
from gateway.config import Config, parse
from gateway.model.objects import ObjectRef, ObjectVersion
from gateway.model.ranges import span
from gateway.peers.parts import PeerParts
from gateway.rdma import verbs
from gateway.rdma.server import OpenDevice
from gateway.store.reading import ReadAnswer
from tests.store.gated import GatedOrigin
from tests.waiting import until

CHUNK_BYTES = 256 * 1024
SMALL_BYTES = 64 * 1024


class Running:
    """One node, and what it has asked its origin."""

    def __init__(
        self,
        folder: Path,
        id_: str,
        rack: str,
        settings: dict[str, Any],
        open_device: OpenDevice = verbs.open_device,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.members = Members(id_)
        self.config = config_of(folder, id_, rack, settings)
        self.node = Node(self.config, members=self.members, open_device=open_device)
        self.gate: GatedOrigin | None = None

    @property
    def id(self) -> str:
        return self.config.node.id

    @property
    def parts(self) -> PeerParts:
        assert self.node.parts.peers is not None
        return self.node.parts.peers

    def gated(self) -> GatedOrigin:
        """Puts a gate before its origin."""
        if self.gate is None:
            packed: Any = self.node.origins["main"]
            self.gate = packed._origin = GatedOrigin(packed._origin)
        return self.gate

    async def die(self) -> None:
        """As a kill does: its connections are cut, and nothing it was doing is finished."""
        await self.parts.port.close()
        await self.node.parts.filler.close()

    def member(self, joined: int = 0) -> Member:
        return Member(
            id=self.id,
            incarnation="1",
            rack=self.config.node.rack,
            zone="z1",
            peers=self.parts.address,
            s3=self.node.s3_url,
            admin=self.node.admin_url,
            capacity_bytes=self.config.cache.capacity,
            version="0",
            joined=joined,
        )

    async def open(self, key: str, **how: Any) -> ReadAnswer:
        return await self.node.service.get("train", key, **how)

    async def read(self, key: str, **how: Any) -> bytes:
        answer = await self.open(key, **how)
        try:
            return b"".join([bytes(block) async for block in answer.blocks()])
        finally:
            await answer.close()

    async def tiers(self, key: str, **how: Any) -> tuple[str, dict[str, int]]:
        """Where a read's first byte came from, and how many came from where."""
        answer = await self.open(key, **how)
        try:
            async for _ in answer.blocks():
                pass
            return answer.tier, dict(answer.served)
        finally:
            await answer.close()

    def counted(self, name: str, **labels: str) -> float:
        return counted(self.node, name, **labels)

    async def holds(self, key: str, number: int = 0) -> bool:
        """Whether a chunk is on its disk, once what comes in has come."""
        await until(lambda: not self.node.parts.filler.under_way())
        head = await self.node.service.head("train", key)
        version = ObjectVersion(
            self.node.service.bucket("train").ref(key), head.info.etag, head.info.size_bytes
        )
        return self.node.parts.disk.holds(span(version, number, CHUNK_BYTES))


class Cluster:
    """All of them."""

    def __init__(self, nodes: Sequence[Running]) -> None:
        self.nodes = list(nodes)
        self._by_id = {each.id: each for each in nodes}

    def __getitem__(self, id_: str) -> Running:
        return self._by_id[id_]

    def origin_gets(self) -> float:
        return sum(
            each.counted("feedrack_origin_requests_total", operation="GetObject")
            for each in self.nodes
        )

    def origin_requests(self) -> float:
        """GETs and HEADs of objects."""
        heads = sum(
            each.counted("feedrack_origin_requests_total", operation="HeadObject")
            for each in self.nodes
        )
        return self.origin_gets() + heads

    async def settled(self) -> None:
        """Until nothing comes in anywhere."""
        for each in self.nodes:
            await until(partial(_is_quiet, each))
        # Until those who brought it in have let go of it, too.
        for _ in range(5):
            await asyncio.sleep(0)

    def origin_bytes(self) -> float:
        return sum(each.counted("feedrack_origin_read_bytes_total") for each in self.nodes)

    def meet(self, ids: Sequence[str] | None = None) -> None:
        """Those are the members from now on, as all of them see it."""
        ids = list(self._by_id) if ids is None else ids
        members = [self._by_id[id_].member(number) for number, id_ in enumerate(ids)]
        for each in self.nodes:
            each.members.set(members)

    def homes(self, key: str, number: int = 0) -> list[Running]:
        """The homes of a chunk, the best first."""
        found = homes(
            self.nodes[0].members.all(),
            ObjectRef("main", "train", key),
            number,
            count=len(self.nodes),
        )
        return [self._by_id[each.id] for each in found]

    def key_at(self, home: str, number: int = 0, prefix: str = "k") -> str:
        """A key whose chunk has its first home there."""
        return next(
            key
            for key in (f"{prefix}{n}" for n in range(10_000))
            if self.homes(key, number)[0].id == home
        )


@asynccontextmanager
async def cluster(
    folder: Path,
    racks: dict[str, str],
    settings: dict[str, Any] | None = None,
    open_device: Callable[[str], OpenDevice] = lambda _: verbs.open_device,
) -> AsyncIterator[Cluster]:
    """Nodes by id, each in its rack, over one directory `folder/origin`. `open_device` of an id is
    how that node opens its RDMA device."""
    (folder / "origin" / "train").mkdir(parents=True, exist_ok=True)
    (folder / "secret").write_text("between us")
    nodes = [
        Running(folder / id_, id_, rack, {"over": folder, **(settings or {})}, open_device(id_))
        for id_, rack in racks.items()
    ]
    try:
        await asyncio.gather(*(each.node.start() for each in nodes))
        made = Cluster(nodes)
        made.meet()
        yield made
    finally:
        await asyncio.gather(*(each.node.stop() for each in nodes))


def _is_quiet(each: Running) -> bool:
    return not each.node.parts.filler.under_way()


def config_of(folder: Path, id_: str, rack: str, settings: dict[str, Any]) -> Config:
    settings = dict(settings)
    over = settings.pop("over")
    raw: dict[str, Any] = {
        "node": {"id": id_, "rack": rack},
        "s3": {"listen": "127.0.0.1:0", "limits": {"drain_timeout_seconds": 1}},
        "admin": {"listen": "127.0.0.1:0"},
        "cache": {
            "path": str(folder / "cache"),
            "capacity": "256MiB",
            "chunk_size": CHUNK_BYTES,
            "small_object_limit": SMALL_BYTES,
            **settings.pop("cache", {}),
        },
        "cluster": {"redis_url": "redis://127.0.0.1:1/0", "secret_file": str(over / "secret")},
        "origins": {"main": {"type": "directory", "path": str(over / "origin")}},
        "buckets": {"train": {"freshness_seconds": 3600}},
        **settings,
    }
    return parse(raw)


def counted(node: Node, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry `labels`."""
    return sum(
        sample.value
        for family in node.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
