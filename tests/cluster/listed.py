"""Nodes of the directory without their servers: what each holds, and its part in a real Redis."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gateway.cluster.directory import Directory
from gateway.cluster.holdings import Holdings
from gateway.cluster.members import Member, Members
from gateway.cluster.rebuilding import Rebuilding
from gateway.cluster.reconcile import Reconciliation
from gateway.index.cluster import Link
from gateway.index.records import ChunkRecord, SmallRecord, Table, chunk_key, encode, name_of
from gateway.model.objects import ObjectVersion
from gateway.model.ranges import span
from tests.cluster.one_redis import OneRedis
from tests.tiers.cached import CHUNK_BYTES


def member(id_: str, rack: str = "r1") -> Member:
    return Member(
        id=id_,
        incarnation=f"{id_}.1",
        rack=rack,
        zone="z1",
        peers="127.0.0.1:1",
        s3="",
        admin="",
        capacity_bytes=2**40,
        version="0",
    )


class Listed:
    """One node's holdings, as its disk would tell them, and what it makes of them."""

    def __init__(
        self, redis: OneRedis, id_: str, members: Sequence[Member], now: Callable[[], float]
    ) -> None:
        self.commands_sent = 0
        self.link = Link(redis.url, "test", patience_seconds=0.5, count=self._sent)
        self.members = Members(id_)
        self.holdings = Holdings()
        self.rebuilding = Rebuilding()
        self.directory = Directory(
            self.link,
            self.members,
            self.holdings,
            now=now,
            batch_seconds=0.02,
            look_seconds=0.05,
        )
        self.reconciliation = Reconciliation(
            self.link,
            self.members,
            self.holdings,
            self.directory,
            self.rebuilding,
            now=now,
            gone_seconds=60.0,
        )
        self.members.set(members)
        self.holdings.begin()
        for table in (Table.CHUNKS, Table.SMALL):
            self.holdings.count(table, [], None, lambda _: None)

    def hold(self, version: ObjectVersion, *numbers: int) -> None:
        """The disk has these chunks from now on."""
        for number in numbers:
            self._change(version, number, came=True)

    def drop(self, version: ObjectVersion, *numbers: int) -> None:
        for number in numbers:
            self._change(version, number, came=False)

    def hold_small(self, version: ObjectVersion) -> None:
        record = SmallRecord(name_of(version), 1, 0, 0, 0, version.size_bytes, 0)
        self.holdings.changed(Table.SMALL, version.digest, None, encode(record))

    def _sent(self, commands: int) -> None:
        self.commands_sent += commands

    async def racks(self, version: ObjectVersion, number: int = 0) -> list[str]:
        return list(await self.directory.racks_holding(span(version, number, CHUNK_BYTES)))

    def _change(self, version: ObjectVersion, number: int, *, came: bool) -> None:
        size_bytes = span(version, number, CHUNK_BYTES).size_bytes
        raw = encode(ChunkRecord(name_of(version), size_bytes, b""))
        before, now = (None, raw) if came else (raw, None)
        self.holdings.changed(Table.CHUNKS, chunk_key(version.digest, number), before, now)


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def listed(
    redis: OneRedis,
    id_: str,
    members: Sequence[Member],
    now: Callable[[], float] | None = None,
    *,
    reconciling: bool = True,
) -> AsyncIterator[Listed]:
    node = Listed(redis, id_, members, now or Clock())
    await node.link.start()
    node.directory.start()
    if reconciling:
        node.reconciliation.start()
    try:
        yield node
    finally:
        await node.reconciliation.close()
        await node.directory.close()
        await node.link.close()
