"""Redis under more members than this machine has room for nodes: real memberships, many in one
process, over a real Redis. What Redis takes for it is its own count; how long it takes here is the
one process's, and is not told.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.coordinator import Coordinator, Load
from benchmarks.member import CLUSTER, Redis
from gateway.cluster.changes import Begun, Ended
from gateway.cluster.chunk_sets import encode_bits, stretch_key, stretch_name
from gateway.cluster.members import Member, Members
from gateway.cluster.membership import Membership
from gateway.cluster.writing import SharedChanges
from gateway.config import ClusterConfig
from gateway.index.cluster import Link
from gateway.model.objects import ObjectRef

# One process for all is late now and then: no lease ends for that.
_LEASE_SECONDS = 20.0
_JOINING_AT_ONCE = 20
_IDLE_SECONDS = 4.0
_TOLD = b'{"' + b"x" * 300 + b'":0}'
_PIPELINE = 1000

Word = bytes | bytearray | memoryview | str | int | float


class Crowd(Struct, frozen=True, kw_only=True):
    """So many members, and what Redis does for them."""

    members: int
    memory_bytes: int
    idle: Load
    renewals: int
    writes: int
    written: Load
    writes_together: int
    written_together: Load

    @property
    def memory_a_member(self) -> float:
        return self.memory_bytes / self.members

    @property
    def renewal_us(self) -> float:
        """Redis's CPU for a renewal and all else that an idle member does, by the renewal."""
        return self.idle.cpu_seconds * 1e6 / max(self.renewals, 1)

    @property
    def renewals_a_second(self) -> float:
        return self.renewals / self.idle.seconds

    @property
    def write_us(self) -> float:
        return self.written.beyond(self.idle).cpu_seconds * 1e6 / self.writes

    @property
    def write_together_us(self) -> float:
        return self.written_together.beyond(self.idle).cpu_seconds * 1e6 / self.writes_together


class Entry(Struct, frozen=True, kw_only=True):
    """A kind of entry of the directory, and what one takes in Redis."""

    what: str
    fields: int
    entries: int
    bytes_each: float


class _Forgetful:
    """A memory with nothing in it."""

    def begun(self, begun: Begun) -> Awaitable[None]:
        del begun
        return asyncio.sleep(0)

    def ended(self, ended: Ended) -> None:
        pass

    async def missed(self, refs: Sequence[ObjectRef] | None) -> None:
        pass


class _Someone:
    """One member."""

    def __init__(self, server: Redis, number: int) -> None:
        self.id = f"node-{number:04}"
        config = ClusterConfig(
            redis_url=f"redis://{server.address}/0",
            secret_file=Path("unused"),
            name=CLUSTER,
            lease_seconds=_LEASE_SECONDS,
        )
        self._link = Link(config.redis_url, config.name, patience_seconds=10.0)
        self.members = Members(self.id)
        self._membership = Membership(
            self._link, config, self.members, _Forgetful(), tell=lambda: _TOLD
        )
        self.changes = SharedChanges(self._link, config, self._membership)

    async def start(self) -> None:
        await self._link.start()
        await self._membership.start(
            Member(
                id=self.id,
                incarnation="",
                rack="r" + self.id[-2:],
                zone="z1",
                peers="198.18.100.100:9002",
                s3="http://198.18.100.100:9000",
                admin="http://198.18.100.100:9001",
                capacity_bytes=2**44,
                version="0.1.0",
                shape=(8 * 2**20, 2**20),
            )
        )

    async def write(self, key: str) -> None:
        change = self.changes.begin([ObjectRef("main", "train", key)])
        await change.settled()
        change.end()

    async def stop(self) -> None:
        await self._membership.close()
        await self._link.close()


def crowd(server: Redis, coordinator: Coordinator, members: int, *, writes: int) -> Crowd:
    """Lets so many join an empty Redis, and leave again."""
    return asyncio.run(_crowd(server, coordinator, members, writes))


async def _crowd(server: Redis, coordinator: Coordinator, members: int, writes: int) -> Crowd:
    client = coordinator.client
    client.flushall()
    # No lease of an earlier Redis can stand here: nobody has to wait for its end.
    client.hset(f"{{{CLUSTER}}}:meta", "established", client.info("server")["run_id"])
    before_bytes = int(client.info("memory")["used_memory"])
    all_of_them = [_Someone(server, number) for number in range(members)]
    try:
        for first in range(0, members, _JOINING_AT_ONCE):
            some = all_of_them[first : first + _JOINING_AT_ONCE]
            await asyncio.gather(*(each.start() for each in some))
        await _known_to_all(all_of_them)
        memory_bytes = int(client.info("memory")["used_memory"]) - before_bytes
        before = coordinator.totals()
        await asyncio.sleep(_IDLE_SECONDS)
        idle = coordinator.totals().since(before)
        writers = all_of_them[:: max(1, members // writes)][:writes]
        before = coordinator.totals()
        for number in range(writes):
            await writers[number % len(writers)].write(f"one/{number}")
        await asyncio.sleep(0.5)
        written = coordinator.totals().since(before)
        before = coordinator.totals()
        await asyncio.gather(
            *(writers[n % len(writers)].write(f"many/{n}") for n in range(4 * writes))
        )
        await asyncio.sleep(0.5)
        together = coordinator.totals().since(before)
    finally:
        await asyncio.gather(*(each.stop() for each in all_of_them))
    return Crowd(
        members=members,
        memory_bytes=memory_bytes,
        idle=idle,
        renewals=idle.commands.get("hincrby", 0),
        writes=writes,
        written=written,
        writes_together=4 * writes,
        written_together=together,
    )


async def _known_to_all(all_of_them: Sequence[_Someone]) -> None:
    async with asyncio.timeout(60):
        while any(len(each.members.all()) < len(all_of_them) for each in all_of_them):
            await asyncio.sleep(0.05)


def entries(coordinator: Coordinator, count: int) -> list[Entry]:
    """What the directory's entries take, as `gateway/cluster/directory.py` writes them."""
    kinds = (
        ("a shard, or an object of one chunk, held in one rack", 1, 1, count),
        ("the same, held in three racks", 1, 3, count),
        ("an object of 64 chunks, held by 16 nodes of one rack", 64, 16, count // 5),
        ("the same, held by 48 nodes of three racks", 64, 48, count // 10),
    )
    return [_entry(coordinator, *kind) for kind in kinds]


def _entry(coordinator: Coordinator, what: str, chunks: int, fields: int, count: int) -> Entry:
    client = coordinator.client
    client.flushall()
    before_bytes = int(client.info("memory")["used_memory"])
    pipeline = client.pipeline(transaction=False)
    for number in range(count):
        digest = hashlib.sha256(str(number).encode()).digest()[:16]
        key = f"{{{CLUSTER}}}:dir:v:{stretch_name(stretch_key(digest, 0))}"
        pipeline.hset(key, mapping=fields_of(chunks, fields))
        if number % _PIPELINE == _PIPELINE - 1:
            pipeline.execute()
    pipeline.execute()
    taken = int(client.info("memory")["used_memory"]) - before_bytes
    client.flushall()
    return Entry(what=what, fields=fields, entries=count, bytes_each=taken / count)


def fields_of(chunks: int, nodes: int) -> dict[Word, Word]:
    """One version's fields, its chunks dealt out among the nodes of a rack."""
    racks = nodes if chunks == 1 else max(1, nodes // 16)
    here = nodes // racks
    found: dict[Word, Word] = {}
    for number in range(nodes):
        bits = sum(1 << chunk for chunk in range(number % here, chunks, here))
        found[f"node-{number:04}"] = encode_bits(bits)
    return found
